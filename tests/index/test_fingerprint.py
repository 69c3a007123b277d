"""Fingerprints of tokenizers."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.models import BPE, WordLevel

from suffixspec_index.fingerprint import tokenizer_fingerprint


def bpe(merges: list[tuple[str, str]]) -> Tokenizer:
    vocab = {"a": 0, "b": 1, "ab": 2, "ba": 3}
    return Tokenizer(BPE(vocab=vocab, merges=merges))


def test_same_ids_same_fingerprint() -> None:
    assert tokenizer_fingerprint(bpe([("a", "b")])) == tokenizer_fingerprint(bpe([("a", "b")]))


def test_merges_and_added_tokens_count() -> None:
    plain = bpe([("a", "b"), ("b", "a")])
    other = bpe([("b", "a"), ("a", "b")])
    more = bpe([("a", "b"), ("b", "a")])
    more.add_special_tokens(["<end>"])
    assert len({tokenizer_fingerprint(t) for t in (plain, other, more)}) == 3


def test_items_are_hashed_with_their_lengths() -> None:
    one = Tokenizer(WordLevel({"a0": 0, "b": 1}, unk_token="b"))
    two = Tokenizer(WordLevel({"a": 0, "0b": 1}, unk_token="a"))
    assert tokenizer_fingerprint(one) != tokenizer_fingerprint(two)
