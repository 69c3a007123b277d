"""Segments made tokens alone are what the tokenizer makes of the whole text."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from suffixspec_service import segments
from suffixspec_service.segments import SegmentTokens
from tests.threads import ended

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|im", "<s>")
ALPHABET = sorted({*"abcdefghijklmnop <|>_\n", "é", "▁", "#"})


def made(**parts: Any) -> Tokenizer:
    """A small tokenizer of pairs, with special tokens of which one begins another."""
    vocab = {letter: i for i, letter in enumerate([*ALPHABET, "Ġ", "Ċ", "Ã", "©", "â", "ĸ", "ģ"])}
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("▁", "a"), ("Ġ", "a"), ("|", ">")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=None))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in SPECIAL])
    return tokenizer


def with_normalized(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_tokens([AddedToken("hij", normalized=True), AddedToken("é", normalized=True)])
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: made(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "bytes, a space first": lambda: made(
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)
    ),
    "metaspace, first": lambda: made(
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first"),
        decoder=decoders.Metaspace(),
    ),
    "metaspace, always": lambda: made(
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    ),
    "prepending": lambda: made(
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ),
    "lowering": lambda: with_normalized(
        made(normalizer=normalizers.Lowercase(), pre_tokenizer=pre_tokenizers.Whitespace())
    ),
}
TEXTS = st.lists(
    st.one_of(
        st.sampled_from([*SPECIAL, "<|im_st", "hij", "HIJ", "<|im_start|", "▁"]),
        st.text(ALPHABET, max_size=12),
    ),
    max_size=12,
).map("".join)


@pytest.fixture
def no_segment_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_SHORT", 0)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.usefixtures("no_segment_is_short")
def test_tokens_are_those_of_the_whole_text(kind: str) -> None:
    backend = TOKENIZERS[kind]()
    encoder = SegmentTokens(backend)
    assert encoder.remembers

    @given(TEXTS)
    def same(text: str) -> None:
        expected = backend.encode(text, add_special_tokens=False).ids
        assert encoder.encode(text).tolist() == expected
        assert encoder.encode(text).tolist() == expected  # from what is remembered

    same()


def test_of_a_real_model(smollm2_target: Any) -> None:
    smollm2_backend = smollm2_target.tokenizer.backend_tokenizer
    encoder = SegmentTokens(smollm2_backend)
    seed = random.Random(1)
    words = ["def", " f(x):\n", "    return", " x", "<|im_end|>\n", "<|im_start|>user\n", "  ", "é"]
    text = ""
    for _ in range(30):
        text += "".join(seed.choices(words, k=150))
        expected = smollm2_backend.encode(text, add_special_tokens=False).ids
        assert encoder.encode(text).tolist() == expected


class Counting:
    """A tokenizer that counts the characters it was given."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode(self, text: str, **options: Any) -> Any:
        self.characters += len(text)
        return self._backend.encode(text, **options)


def turns(count: int, words: str = "abc def ") -> str:
    return "".join(f"<|im_start|>{'ab' * (i % 7)}{words * 50}<|im_end|>" for i in range(count))


def test_what_was_sent_before_is_not_made_tokens_again() -> None:
    backend = Counting(TOKENIZERS["bytes"]())
    encoder = SegmentTokens(backend)
    encoder.encode(turns(20))
    before = backend.characters
    encoder.encode(turns(21))
    assert backend.characters - before < len(turns(21)) / 10


def test_scopes_do_not_know_of_each_other() -> None:
    backend = Counting(TOKENIZERS["bytes"]())
    encoder = SegmentTokens(backend)
    first = encoder.encode(turns(7), "one").tolist()
    before = backend.characters
    assert encoder.encode(turns(7), "two").tolist() == first
    assert backend.characters - before == len(turns(7))


def test_the_least_recently_used_is_forgotten() -> None:
    backend = Counting(TOKENIZERS["bytes"]())
    encoder = SegmentTokens(backend, max_bytes=20_000)
    for i in range(50):
        encoder.encode(turns(1, f"{'abcdefghij'[i % 10]}{'klmnop'[i % 6]} def "))
        assert encoder.bytes <= 20_000
    assert encoder.bytes > 10_000
    before = backend.characters
    encoder.encode(turns(1, "jk def "))  # of the ten last
    encoder.encode("a" * 100_000)  # larger than all together: not remembered
    assert encoder.bytes <= 20_000
    assert backend.characters - before >= 100_000


@pytest.mark.parametrize("trait", ["lstrip", "rstrip", "single_word"])
def test_tokenizers_that_cannot_be_cut(trait: str) -> None:
    backend = TOKENIZERS["bytes"]()
    backend.add_special_tokens([AddedToken("<mask>", normalized=False, **{trait: True})])
    encoder = SegmentTokens(backend)
    assert not encoder.remembers
    text = turns(3) + "  <mask>  ab"
    assert encoder.encode(text).tolist() == backend.encode(text, add_special_tokens=False).ids
    assert encoder.bytes == 0


def test_without_special_tokens_or_with_a_limit() -> None:
    assert not SegmentTokens(Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))).remembers
    backend = TOKENIZERS["bytes"]()
    backend.enable_truncation(10)
    assert not SegmentTokens(backend).remembers


def test_many_threads_at_once() -> None:
    backend = TOKENIZERS["bytes"]()
    encoder = SegmentTokens(backend, max_bytes=30_000)
    texts = [turns(1 + i % 5, f"{'abcdef'[i % 6]} ") for i in range(30)]
    expected = [backend.encode(text, add_special_tokens=False).ids for text in texts]
    wrong: list[int] = []

    def work(seed: int) -> None:
        order = random.Random(seed)
        wrong.extend(
            i
            for i in order.choices(range(30), k=100)
            if encoder.encode(texts[i], "ab"[i % 2]).tolist() != expected[i]
        )

    threads = [threading.Thread(daemon=True, target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    ended(threads)
    assert wrong == []
    held = sum(segments._size(key, tokens) for key, tokens in encoder._known.items())
    assert encoder.bytes == held <= 30_000


def test_an_empty_text() -> None:
    tokens = SegmentTokens(TOKENIZERS["bytes"]()).encode("")
    assert tokens.dtype == np.int32
    assert not len(tokens)
