"""A tiny byte-level tokenizer, written the way model directories and GGUF files hold one."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "Ġ"), ("Ġ", "w"), ("o", "r"), ("Ġw", "or")]
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def tiny_vocabulary() -> list[str]:
    """Control tokens, the 256 bytes, then the merged tokens, in id order."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*SPECIALS, *alphabet, *("".join(pair) for pair in MERGES)]


def write_tokenizer_directory(folder: Path, template: str | None = None) -> Path:
    """``tokenizer.json`` and its configuration; the digits are split as SmolLM's are."""
    vocab = {token: i for i, token in enumerate(tiny_vocabulary())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.Split(Regex(GPT2_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {
        "eos_token": {"content": "<|im_end|>"},
        "bos_token": "<|endoftext|>",
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_gguf(
    path: Path,
    *,
    model: str = "gpt2",
    pre: str = "smollm",
    template: str | None = None,
    tokens: list[str] | None = None,
    scores: list[float] | None = None,
) -> Path:
    """A GGUF that holds nothing but a tokenizer."""
    tokens = tiny_vocabulary() if tokens is None else tokens
    kinds = [gguf.TokenType.CONTROL if t in SPECIALS else gguf.TokenType.NORMAL for t in tokens]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    if scores is None:
        writer.add_token_merges([" ".join(pair) for pair in MERGES])
    else:
        writer.add_token_scores(scores)
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(0)
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
