"""Text to token ids and back, for one vocabulary.

Special tokens. The literals that a chat template writes (``<|im_end|>``) become their control
tokens. The same literals inside a *message* are data, not control: :meth:`TraceTokenizer.escape`
replaces them before the template runs, and encoding spells them as ordinary text. So a file that
a tool printed cannot end a turn.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from suffixspec_index.errors import TokenError, TokenizerError
from suffixspec_index.fingerprint import tokenizer_fingerprint

# Unicode noncharacters: no text holds them, and no special token's literal survives between them.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_ESCAPED = re.compile(f"{_OPEN}(\\d+){_CLOSE}")

_END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<|return|>",
    "<|call|>",
    "</s>",
    "<eos>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
)
_CACHE_CHARS = 64_000_000


class TraceTokenizer:
    """Text to ids and back for one vocabulary.

    Attributes: ``name`` (what was loaded), ``kind`` (``"tokenizer.json"`` or ``"gguf"``),
    ``chat_template`` (Jinja text or ``None``), ``template_origin`` (where it came from),
    ``named_tokens`` (``{"bos_token": "<s>", ...}``, what templates may name),
    ``eos_token_ids`` (ids that end a turn), ``special_token_ids`` (control tokens, ascending).
    Instances are safe to share between threads.
    """

    def __init__(
        self,
        backend: Tokenizer,
        *,
        name: str,
        kind: str,
        named_tokens: dict[str, str] | None = None,
        eos_token_ids: Iterable[int] = (),
        chat_template: str | None = None,
        template_origin: str | None = None,
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.name = name
        self.kind = kind
        self.named_tokens = dict(named_tokens or {})
        self.chat_template = chat_template
        self.template_origin = template_origin
        self._vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        if not self._vocab:
            raise TokenizerError(f"{name}: the vocabulary is empty")
        self.vocab_size = max(self._vocab.values()) + 1
        added = backend.get_added_tokens_decoder()
        specials = {i: t.content for i, t in added.items() if t.special}
        self.special_token_ids: tuple[int, ...] = tuple(sorted(specials))
        self._literals = [specials[i] for i in self.special_token_ids if specials[i]]
        # A control token that swallows the blanks before it must see them when it is encoded.
        self._splittable = not any(t.lstrip for t in added.values())
        self.eos_token_ids = self._end_ids(specials, eos_token_ids)
        longest_first = sorted(self._literals, key=len, reverse=True)
        alternatives = "|".join(re.escape(literal) for literal in longest_first)
        self._special_pattern = re.compile(f"({alternatives})") if alternatives else None
        self._cache: dict[tuple[str, bool], NDArray[np.int32]] = {}
        self._cached_chars = 0
        self._prefix_ids = self._find_prefix()

    def _end_ids(self, specials: dict[int, str], given: Iterable[int]) -> tuple[int, ...]:
        ends = {int(i) for i in given}
        eos = self.named_tokens.get("eos_token")
        if eos is not None and eos in self._vocab:
            ends.add(self._vocab[eos])
        ends.update(i for i, text in specials.items() if text in _END_OF_TURN)
        outside = [i for i in ends if not 0 <= i < self.vocab_size]
        if outside:
            raise TokenizerError(
                f"{self.name}: end-of-turn ids {outside} are outside the vocabulary of "
                f"{self.vocab_size}; correct eos_token_id in generation_config.json"
            )
        return tuple(sorted(ends))

    def _find_prefix(self) -> list[int]:
        """The ids to drop when a later piece is encoded behind a newline; empty: none needed.

        SentencePiece tokenizers put a blank before whatever they encode. A piece in mid-text must
        not get one, so it is encoded behind a newline whose ids are then dropped.
        """
        probe = self.backend.encode("a", add_special_tokens=False).ids
        first = self.backend.id_to_token(probe[0]) if probe else None
        if first is None or not first.startswith("▁"):
            return []
        return list(self.backend.encode("\n", add_special_tokens=False).ids)

    # -- text to ids ---------------------------------------------------------------------------

    def encode(
        self, text: str, *, parse_special: bool = True, continuation: bool = False
    ) -> NDArray[np.int32]:
        """``(n,)`` int32 ids of ``text``; no BOS or EOS is added. O(text), cached by segment.

        Args:
            parse_special: control-token literals become control tokens; else they are spelled out.
                What :meth:`escape` replaced is spelled out in either case.
            continuation: the text stands behind other text, so a tokenizer that starts its input
                with a blank does not add one.
        """
        return self.encode_many([text], parse_special=parse_special, continuation=continuation)[0]

    def encode_many(
        self, texts: Sequence[str], *, parse_special: bool = True, continuation: bool = False
    ) -> list[NDArray[np.int32]]:
        """:meth:`encode` for many texts at once, batched. The arrays are read-only."""
        if not parse_special:
            texts = [self.escape(text) for text in texts]
        rows = [self._segments(text) for text in texts]
        keys = [[(s, continuation or at > 0) for at, s in enumerate(segments)] for segments in rows]
        missing = list(dict.fromkeys(key for row in keys for key in row if key not in self._cache))
        found = dict(zip(missing, self._encode_segments(missing), strict=True))
        results = [
            _frozen([found[k] if k in found else self._cache[k] for k in row]) for row in keys
        ]
        self._remember(found)
        return results

    def _segments(self, text: str) -> list[str]:
        """Cut before every control-token literal and around every escaped one.

        A control token always breaks the merges, so the pieces' ids are the whole's ids, and a
        message that comes again is found in the cache.
        """
        pieces = _ESCAPED.split(text) if _OPEN in text else [text]
        segments: list[str] = []
        for at, piece in enumerate(pieces):
            if at % 2:
                segments.append(f"{_OPEN}{piece}{_CLOSE}")
            elif self._special_pattern is None or not self._splittable:
                segments.append(piece)
            else:
                parts = self._special_pattern.split(piece)
                segments.append(parts[0])
                segments.extend(parts[i] + parts[i + 1] for i in range(1, len(parts) - 1, 2))
        return [s for s in segments if s]

    def _encode_segments(self, keys: list[tuple[str, bool]]) -> list[NDArray[np.int32]]:
        plain: list[str] = []
        for segment, continuation in keys:
            if segment.startswith(_OPEN) and _ESCAPED.fullmatch(segment):
                plain.append("")
            elif continuation and self._prefix_ids and not self._starts_special(segment):
                plain.append("\n" + segment)
            else:
                plain.append(segment)
        encoded = self.backend.encode_batch_fast(plain, add_special_tokens=False)
        results = []
        for (segment, _), row, sent in zip(keys, encoded, plain, strict=True):
            ids = row.ids
            if not sent:
                ids = self._spelled(segment)
            elif len(sent) > len(segment):
                drop = len(self._prefix_ids)
                if ids[:drop] == self._prefix_ids:
                    ids = ids[drop:]
                else:  # the newline merged with what follows it: keep the plain encoding
                    ids = self.backend.encode(segment, add_special_tokens=False).ids
            results.append(np.asarray(ids, dtype=np.int32))
        return results

    def _starts_special(self, segment: str) -> bool:
        return self._special_pattern is not None and bool(self._special_pattern.match(segment))

    def _spelled(self, segment: str) -> list[int]:
        """The ids of an escaped literal as ordinary text, in halves that are no control token."""
        literal = self.unescape(segment)
        ids: list[int] = []
        # Cutting it in two keeps the backend from seeing the literal; no global switch is flipped.
        for half in (literal[:1], literal[1:]):
            ids.extend(self.backend.encode(half, add_special_tokens=False).ids if half else ())
        return ids

    def _remember(self, found: dict[tuple[str, bool], NDArray[np.int32]]) -> None:
        size = sum(len(segment) for segment, _ in found)
        if self._cached_chars + size > _CACHE_CHARS:
            self._cache, self._cached_chars = {}, 0
        if size <= _CACHE_CHARS:
            self._cache.update(found)
            self._cached_chars += size

    def escape(self, text: str) -> str:
        """Replace control-token literals in message text, so that they are encoded as text."""
        if self._special_pattern is None:
            return text
        return self._special_pattern.sub(
            lambda m: f"{_OPEN}{self._literals.index(m.group())}{_CLOSE}", text
        )

    def unescape(self, text: str) -> str:
        """Undo :meth:`escape`."""
        if _OPEN not in text:
            return text
        return _ESCAPED.sub(lambda m: self._literals[int(m.group(1))], text)

    # -- ids to text ---------------------------------------------------------------------------

    def decode(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """The text of ``ids``, control tokens included; broken UTF-8 becomes U+FFFD. O(n)."""
        return "".join(self.token_texts(ids))

    def token_texts(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> list[str]:
        """One string per id, for display; joined they are the text.

        A character whose bytes are spread over several tokens is shown at the last of them, and
        the others show ``""``. Raises :class:`TokenError` for an id outside the vocabulary.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        table = self._token_bytes
        texts = []
        for i in np.asarray(ids).tolist():
            if not 0 <= i < self.vocab_size:
                raise TokenError(
                    f"token id {i} is outside the vocabulary of {self.name} "
                    f"(0 to {self.vocab_size - 1}); was the trace made with another tokenizer?"
                )
            texts.append(decoder.decode(table[i]))
        if texts:
            texts[-1] += decoder.decode(b"", final=True)
        return texts

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        """``vocab_size`` byte strings, what each token adds to the text."""
        description = json.loads(self.backend.to_str())
        decoder = json.dumps(description.get("decoder"))
        added = {i: t.content for i, t in self.backend.get_added_tokens_decoder().items()}
        table = [b""] * self.vocab_size
        byte_level = '"ByteLevel"' in decoder
        alphabet = _byte_alphabet()
        for token, i in self._vocab.items():
            if i in added:
                table[i] = added[i].encode()
            elif byte_level and all(c in alphabet for c in token):
                table[i] = bytes(alphabet[c] for c in token)
            elif re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", token):
                table[i] = bytes([int(token[3:5], 16)])
            else:
                table[i] = token.replace("▁", " ").encode("utf-8", "replace")
        return table

    # -- identity ------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        """See :func:`suffixspec_index.fingerprint.tokenizer_fingerprint`."""
        return tokenizer_fingerprint(self.backend)

    def describe(self) -> dict[str, object]:
        """What a report says about the tokenizer; JSON-ready."""
        return {
            "tokenizer": self.name,
            "kind": self.kind,
            "vocab_size": self.vocab_size,
            "special_tokens": len(self.special_token_ids),
            "fingerprint": self.fingerprint,
            "chat_template": self.template_origin or "none",
        }

    def token_id(self, token: str) -> int | None:
        """The id of a token by its vocabulary name, or ``None``."""
        return self._vocab.get(token)

    def __repr__(self) -> str:
        return f"TraceTokenizer({self.name!r}, vocab_size={self.vocab_size})"


def _frozen(parts: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    ids = np.concatenate(parts) if parts else np.empty(0, np.int32)
    ids.flags.writeable = False
    return ids


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's printable stand-ins: character -> byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}
