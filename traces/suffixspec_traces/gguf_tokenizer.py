"""The tokenizer inside a GGUF file, rebuilt with the ``tokenizers`` library.

A GGUF carries vocabulary, merges or scores, token types and the name of its pre-tokenizer, not the
pre-tokenizer itself. Only the names listed here are built. Any other name is refused, because a
wrong pre-tokenizer yields plausible, wrong tokens.

The header is walked here and not by ``gguf.GGUFReader``, which makes several memory-map views for
each vocabulary string: 2.2 s for SmolLM2's 49,152 tokens where this takes 0.1 s. The type codes are
the ``gguf`` package's.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gguf.constants import GGUF_MAGIC, GGUFValueType, TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from suffixspec_index.errors import TokenizerError

_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}

# The split patterns as the models' own tokenizer files spell them (Oniguruma syntax).
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_TAIL}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}|{_CASED_TAIL}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_CASED_TAIL}"
)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DIGIT_THEN_GPT2 = (r"\p{N}", _GPT2)

PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "gpt2", "mpt", "olmo", "jais", "trillion"), (_GPT2,)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        _DIGIT_THEN_GPT2,
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2", "dbrx", "smaug-bpe"),
        (_LLAMA3,),
    ),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "grok-2"), (_QWEN2,)
    ),
    "qwen35": (_QWEN35,),
    "chatglm-bpe": (_LLAMA3,),
    "glm4": (_LLAMA3,),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), (_GPT4O,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), (r"\p{N}{1,3}", _CJK, _DEEPSEEK3)),
}
"""GGUF pre-tokenizer name -> the split patterns, applied in order, each piece isolated."""


class _Walker:
    """A cursor over the bytes of a GGUF header."""

    def __init__(self, data: mmap.mmap | bytes, endian: str) -> None:
        self.data = data
        self.at = 4
        self.endian = endian

    def scalars(self, code: str, count: int = 1) -> tuple[Any, ...]:
        fmt = f"{self.endian}{count}{code}"
        values = struct.unpack_from(fmt, self.data, self.at)
        self.at += struct.calcsize(fmt)
        return values

    def string(self) -> str:
        (size,) = self.scalars("Q")
        raw = self.data[self.at : self.at + size]
        if len(raw) != size:
            raise struct.error("the file ends inside a string")
        self.at += size
        return raw.decode("utf-8", "replace")

    def value(self, kind: GGUFValueType) -> Any:
        if kind is GGUFValueType.STRING:
            return self.string()
        if kind is GGUFValueType.ARRAY:
            inner, count = GGUFValueType(self.scalars("I")[0]), int(self.scalars("Q")[0])
            if count > len(self.data):
                raise struct.error(f"an array of {count} values cannot fit the file")
            if inner in _SCALARS:
                return list(self.scalars(_SCALARS[inner], count))
            return [self.value(inner) for _ in range(count)]
        return self.scalars(_SCALARS[kind])[0]


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of a GGUF header (versions 2 and 3). O(header), tensors are not read.

    Raises:
        TokenizerError: not a GGUF file, an unsupported version, or a truncated header.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != struct.pack("<I", GGUF_MAGIC):
                raise TokenizerError(f"{path}: not a GGUF file (it does not start with 'GGUF')")
            version = struct.unpack_from("<I", data, 4)[0]
            endian = "<" if version & 0xFFFF else ">"
            walker = _Walker(data, endian)
            version = walker.scalars("I")[0]
            if version not in (2, 3):
                raise TokenizerError(f"{path}: GGUF version {version}; versions 2 and 3 are read")
            _, pairs = walker.scalars("Q", 2)
            metadata = {}
            for _ in range(pairs):
                key = walker.string()
                metadata[key] = walker.value(GGUFValueType(walker.scalars("I")[0]))
            return metadata
    except (struct.error, ValueError, OSError) as error:
        if isinstance(error, TokenizerError):
            raise
        raise TokenizerError(
            f"{path}: cannot read the GGUF header ({error}); the file is truncated or damaged: "
            "download it again"
        ) from error


def build_gguf_tokenizer(metadata: dict[str, Any], path: Path) -> Tokenizer:
    """Build the tokenizer that GGUF ``metadata`` describes. O(vocabulary × token length).

    Raises:
        TokenizerError: no vocabulary, or a model or pre-tokenizer that is not supported.
    """
    model = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(model, str) or not tokens:
        raise TokenizerError(
            f"{path}: the GGUF holds no tokenizer (no tokenizer.ggml.model or no "
            "tokenizer.ggml.tokens); use the model's tokenizer.json"
        )
    builder = _BUILDERS.get(model)
    if builder is None:
        raise TokenizerError(
            f"{path}: tokenizer.ggml.model {model!r} is not supported (supported: "
            f"{', '.join(sorted(_BUILDERS))}); use the model's tokenizer.json"
        )
    tokenizer = builder(metadata, path)
    types = metadata.get("tokenizer.ggml.token_type") or []
    added = [
        AddedToken(token, normalized=False, special=kind == TokenType.CONTROL)
        for token, kind in zip(tokens, types, strict=False)
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    return tokenizer


def _byte_level(metadata: dict[str, Any], path: Path) -> Tokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    patterns = PRE_TOKENIZERS.get(name)
    if patterns is None:
        raise TokenizerError(
            f"{path}: tokenizer.ggml.pre {name!r} is not supported (supported: "
            f"{', '.join(sorted(PRE_TOKENIZERS))}); use the model's tokenizer.json"
        )
    merges = metadata.get("tokenizer.ggml.merges")
    if merges is None:
        raise TokenizerError(f"{path}: tokenizer.ggml.merges is missing from a BPE vocabulary")
    vocab = _vocabulary(metadata)
    pairs = [_pair(merge) for merge in merges]
    # Llama 3's merges do not spell every token of its vocabulary; whole words are looked up first.
    whole_words = patterns == (_LLAMA3,) or name == "tekken"
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=whole_words))
    splits = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in patterns]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(metadata: dict[str, Any], path: Path) -> Tokenizer:
    """SentencePiece BPE: merges are recovered from the scores, best score first."""
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None:
        raise TokenizerError(f"{path}: tokenizer.ggml.scores is missing from an SPM vocabulary")
    architecture = str(metadata.get("general.architecture", ""))
    if architecture.startswith("gemma"):
        raise TokenizerError(
            f"{path}: the SentencePiece vocabulary of {architecture!r} is not supported from a "
            "GGUF (its scores do not give the merge order); use the model's tokenizer.json"
        )
    vocab = _vocabulary(metadata)
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, index in vocab.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                ranked.append((-scores[index], vocab[left], vocab[right], left, right))
    ranked.sort()
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[(left, right) for *_, left, right in ranked],
            unk_token=metadata["tokenizer.ggml.tokens"][unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    steps: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    ending: list[decoders.Decoder] = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ending]
    )
    return tokenizer


def _vocabulary(metadata: dict[str, Any]) -> dict[str, int]:
    return {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}


def _pair(merge: str) -> tuple[str, str]:
    # The first character may itself be a space in vocabularies that do not escape it.
    left, _, right = merge[1:].partition(" ")
    return merge[0] + left, right


_BUILDERS: dict[str, Callable[[dict[str, Any], Path], Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
}
