from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Regex, pre_tokenizers

from suffixspec_index.errors import TokenizerError
from suffixspec_traces.gguf_tokenizer import PRE_TOKENIZERS, read_gguf_metadata
from suffixspec_traces.tokenizers import load_tokenizer
from tests.traces.tiny_tokenizer import tiny_vocabulary, write_gguf


def test_metadata_is_read(tmp_path: Path) -> None:
    metadata = read_gguf_metadata(write_gguf(tmp_path / "t.gguf", template="X"))
    assert metadata["general.architecture"] == "llama"
    assert metadata["tokenizer.ggml.tokens"] == tiny_vocabulary()
    assert metadata["tokenizer.ggml.eos_token_id"] == 2
    assert load_tokenizer(tmp_path / "t.gguf").chat_template == "X"


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "t.gguf").read_bytes()
    for size in (5, 20, 200, len(whole) // 2):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(TokenizerError, match=r"cut\.gguf"):
            load_tokenizer(tmp_path / "cut.gguf")


def test_another_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04" * 10)
    with pytest.raises(TokenizerError, match="not a GGUF file"):
        load_tokenizer(tmp_path / "x.gguf")
    (tmp_path / "v.gguf").write_bytes(b"GGUF\x63\x00\x00\x00" + b"\x00" * 32)
    with pytest.raises(TokenizerError, match="GGUF version 99"):
        load_tokenizer(tmp_path / "v.gguf")


@pytest.mark.parametrize(("field", "value"), [("pre", "klingon"), ("model", "rwkv")])
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, field: str, value: str) -> None:
    path = write_gguf(tmp_path / "t.gguf", **{field: value})  # type: ignore[arg-type]
    with pytest.raises(TokenizerError, match=rf"{value!r} is not supported.*tokenizer\.json"):
        load_tokenizer(path)


def test_sentencepiece_merges_follow_the_scores(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", "▁", "a", "b", "ab", "▁a", "▁ab"]
    scores = [0.0, 0.0, 0.0, -8.0, -9.0, -9.0, -1.0, -2.0, -3.0]
    path = write_gguf(tmp_path / "t.gguf", model="llama", tokens=pieces, scores=scores)
    tokenizer = load_tokenizer(path)
    assert tokenizer.token_texts(tokenizer.encode("ab")) == [" ab"]
    assert tokenizer.token_texts(tokenizer.encode("ab", continuation=True)) == ["ab"]
    # "a" and "b" merge first: "ab" has the better score.
    assert tokenizer.token_texts(tokenizer.encode("aab")) == [" a", "ab"]


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_split_patterns_lose_nothing(name: str) -> None:
    text = "It's 12345 naïve\u00a0words,\n\n  don't!! 日本語 x_y HTTPServer\t\r\n end  "
    pieces = [text]
    for pattern in PRE_TOKENIZERS[name]:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        pieces = [part for piece in pieces for part, _ in split.pre_tokenize_str(piece)]
    assert "".join(pieces) == text


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("smollm", ["1", "2", "3", "4"]),
        ("gpt-2", ["1234"]),
        ("llama-bpe", ["123", "4"]),
        ("qwen2", ["1", "2", "3", "4"]),
    ],
)
def test_how_digits_are_split(name: str, pieces: list[str]) -> None:
    found = ["1234"]
    for pattern in PRE_TOKENIZERS[name]:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        found = [part for piece in found for part, _ in split.pre_tokenize_str(piece)]
    assert found == pieces
