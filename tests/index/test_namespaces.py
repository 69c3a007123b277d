from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from suffixspec_index.errors import (
    CapacityError,
    ConfigError,
    InputError,
    UnknownNamespaceError,
)
from suffixspec_index.index import SuffixIndex
from suffixspec_index.index_config import IndexConfig
from suffixspec_index.namespaces import NamespaceKey, Namespaces
from tests.threads import ended

KEY = NamespaceKey("tenant", "model", "tok")


def test_namespaces_share_nothing() -> None:
    """Tenants, models, tokenizers and adapters each part what is remembered."""
    spaces = Namespaces(IndexConfig(min_token_prob=0.0))
    keys = [
        KEY,
        NamespaceKey("other", "model", "tok"),
        NamespaceKey("tenant", "other", "tok"),
        NamespaceKey("tenant", "model", "other"),
        NamespaceKey("tenant", "model", "tok", "lora"),
    ]
    indexes = [spaces.get_or_create(key) for key in keys]
    indexes[0].ingest([1, 2, 3, 4, 5])
    handles = [index.begin("same session", [1, 2]) for index in indexes]
    drafts = [i.propose_batch([h])[0] for i, h in zip(indexes, handles, strict=True)]
    assert drafts[0].token_ids[:2].tolist() == [3, 4]
    assert [len(draft) for draft in drafts[1:]] == [0, 0, 0, 0]
    assert len({id(index.model) for index in indexes}) == 5
    assert list(spaces) == keys
    assert len(spaces) == 5
    statistics = spaces.statistics()
    assert [statistics[key].sequences for key in keys] == [1, 0, 0, 0, 0]
    assert spaces.nbytes == sum(s.bytes for s in statistics.values())


def test_get_or_create_makes_one() -> None:
    spaces = Namespaces()
    index = spaces.get_or_create(KEY, vocab_size=100, max_bytes=4 << 20)
    assert spaces.get_or_create(NamespaceKey("tenant", "model", "tok")) is index
    assert spaces.get(KEY) is index
    assert index.config.max_bytes == 4 << 20
    assert index.vocab_size == 100
    assert KEY in spaces
    assert "something" not in spaces
    with pytest.raises(InputError, match="vocab_size"):
        spaces.get_or_create(KEY, vocab_size=101)
    with pytest.raises(ConfigError, match="max_bytes"):
        spaces.get_or_create(NamespaceKey("a", "b", "c"), max_bytes=1)
    assert len(spaces) == 1


def test_forbidden_tokens_reach_every_index() -> None:
    index = Namespaces(IndexConfig(min_token_prob=0.0), forbidden=[3]).get_or_create(KEY)
    index.ingest([1, 2, 3, 4])
    assert len(index.propose_batch([index.begin("s", [1, 2])])[0]) == 0


def test_each_namespace_has_a_budget_of_its_own() -> None:
    rng = np.random.default_rng(1)
    spaces = Namespaces(IndexConfig(max_bytes=2 << 20))
    small, large = KEY, NamespaceKey("large", "model", "tok")
    spaces.get_or_create(small)
    spaces.get_or_create(large, max_bytes=8 << 20)
    for _ in range(40):
        for key in (small, large):
            spaces.get(key).ingest(rng.integers(0, 9000, 2000))
    statistics = spaces.statistics()
    assert statistics[small].bytes <= 2 << 20
    assert 2 << 20 < statistics[large].bytes <= 8 << 20
    assert statistics[small].sequences < statistics[large].sequences


def test_purge_and_drop() -> None:
    spaces = Namespaces()
    index = spaces.get_or_create(KEY)
    index.ingest([1, 2, 3])
    handle = index.begin("s", [1])
    spaces.purge(KEY)
    assert spaces.statistics()[KEY].sequences == 0
    spaces.drop(KEY)
    assert KEY not in spaces
    index.finish(handle)  # what runs ends as usual
    assert spaces.get_or_create(KEY) is not index
    for call in (spaces.get, spaces.purge, spaces.drop):
        with pytest.raises(UnknownNamespaceError, match="nobody/x/y/lora"):
            call(NamespaceKey("nobody", "x", "y", "lora"))


def test_number_of_namespaces_is_bounded() -> None:
    spaces = Namespaces(max_namespaces=1)
    spaces.get_or_create(KEY)
    with pytest.raises(CapacityError, match="max_namespaces"):
        spaces.get_or_create(NamespaceKey("b", "model", "tok"))
    assert len(spaces) == 1
    with pytest.raises(ConfigError, match="max_namespaces"):
        Namespaces(max_namespaces=0)


def test_an_index_from_elsewhere() -> None:
    made: list[SuffixIndex] = []

    def create(config: IndexConfig) -> SuffixIndex:
        made.append(SuffixIndex(config))
        return made[-1]

    spaces = Namespaces()
    assert spaces.get_or_create(KEY, create=create) is made[0]
    assert spaces.get_or_create(KEY, create=create) is made[0]
    assert len(made) == 1


def test_digests_do_not_run_fields_together() -> None:
    keys = [
        NamespaceKey("ab", "c", "d"),
        NamespaceKey("a", "bc", "d"),
        NamespaceKey("a", "b", "cd"),
        NamespaceKey("a", "b", "c", "d"),
        NamespaceKey("a/b", "c", "d"),
        NamespaceKey("a", "b/c", "d"),
        NamespaceKey("", "abcd", ""),
        NamespaceKey("\ud800", "c", "d"),
    ]
    digests = {key.digest for key in keys}
    assert len(digests) == len(keys)
    assert all(len(digest) == 32 for digest in digests)
    # The digest names streams and files: it must never change.
    assert NamespaceKey("ab", "c", "d").digest == "28ea01293497c089602d86daced9cec6"


@pytest.mark.parametrize("bad", [None, 1, b"bytes"])
def test_wrong_keys(bad: Any) -> None:
    with pytest.raises(InputError, match="adapter"):
        NamespaceKey("a", "b", "c", bad)
    with pytest.raises(InputError, match="NamespaceKey"):
        Namespaces().get_or_create(bad)
    with pytest.raises(UnknownNamespaceError):
        Namespaces().get(bad)


def test_many_threads_get_the_same_index() -> None:
    spaces = Namespaces()
    start, found = threading.Barrier(8), []

    def get() -> None:
        start.wait()
        found.append(spaces.get_or_create(KEY))

    threads = [threading.Thread(daemon=True, target=get) for _ in range(8)]
    for thread in threads:
        thread.start()
    ended(threads)
    assert len({id(index) for index in found}) == 1
