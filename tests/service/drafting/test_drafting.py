from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from suffixspec_index.errors import (
    ConfigError,
    InputError,
    LimitExceededError,
    OutOfStepError,
    SuffixSpecError,
    TokenError,
    TooLargeError,
    UnavailableError,
    UnknownLeaseError,
    UnknownRequestError,
)
from suffixspec_index.namespaces import NamespaceKey
from suffixspec_index.proposers.suffix import SuffixProposer
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_service.callers import Tenant
from suffixspec_service.drafting import Drafting, DraftingConfig, NewRequest, OpenLease, Step
from suffixspec_service.monitor.records import RequestRecord
from suffixspec_service.spaces import Spaces
from tests.service.grpc_service import VOCAB, phrases

ANNE, BOB = Tenant("anne"), Tenant("bob")
WISH = OpenLease(model="m", tokenizer="t", vocab_size=VOCAB)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """A drafting service, its clock, and the records that it made."""

    def __init__(
        self, speculative: SpeculativeConfig | None = None, config: DraftingConfig | None = None
    ) -> None:
        self.clock = Clock()
        self.records: list[RequestRecord] = []
        self.spaces = Spaces(speculative or SpeculativeConfig())
        self.purged: list[NamespaceKey] = []
        self.drafting = Drafting(
            self.spaces,
            config,
            observe=self.records.append,
            purged=self.purged.append,
            clock=self.clock,
        )
        self.lease = self.drafting.open(ANNE, WISH).lease

    def begin(self, number: int, prompt: Any, session: str = "s", **fields: Any) -> None:
        request = NewRequest(request=number, session=session, prompt=ids(prompt), **fields)
        self.drafting.begin(ANNE, self.lease, [request])

    def gained(self, number: int, tokens: Any) -> None:
        step = Step([number], [len(tokens)], ids(tokens))
        self.drafting.step(ANNE, self.lease, step)

    @property
    def live(self) -> tuple[int, int]:
        return self.drafting.open_requests, self.spaces.live_requests


def ids(tokens: Any) -> Any:
    return np.asarray(tokens, np.int32)


@pytest.mark.parametrize("shape", ["path", "tree"])
def test_drafts_are_those_of_a_proposer_of_ones_own(shape: Any) -> None:
    config = SpeculativeConfig(draft_shape=shape)
    desk, own = Desk(config), SuffixProposer(config, vocab_size=VOCAB)
    handles: dict[int, int] = {}
    rng = np.random.default_rng(3)
    for turn in range(6):
        texts = {n: phrases(10 * turn + n, 260) for n in range(8)}
        for n, text in texts.items():
            desk.begin(n, text[:150], session=f"s{n % 5}", max_tokens=100)
            handles[n] = own.begin(f"s{n % 5}", text[:150], max_tokens=100)
        at = dict.fromkeys(texts, 150)
        while at:
            rows = list(at)
            gain = [texts[n][at[n] : at[n] + int(rng.integers(1, 5))] for n in rows]
            step = Step(rows, [len(g) for g in gain], np.concatenate(gain), rows[::-1], [7])
            found = desk.drafting.step(ANNE, desk.lease, step)
            for n, tokens in zip(rows, gain, strict=True):
                own.advance(handles[n], tokens)
                at[n] += len(tokens)
            for n, draft in zip(rows[::-1], found, strict=True):
                wanted = own.propose(handles[n], 7)
                draft.check_integrity()
                assert draft.token_ids.tolist() == wanted.token_ids.tolist()
                assert draft.parents.tolist() == wanted.parents.tolist()
                assert draft.match_len == wanted.match_len
                np.testing.assert_allclose(draft.probs, wanted.probs, rtol=1e-6)
            at = {n: where for n, where in at.items() if where < 250}
        desk.drafting.finish(ANNE, desk.lease, list(texts))
        for n in texts:
            own.finish(handles[n])
    assert desk.live == (0, 0)
    assert sum(record.accepted for record in desk.records) > 0
    for space in desk.spaces.all():
        assert space.index is not None
        space.index.check_integrity()


def test_a_record_counts_what_happened() -> None:
    desk = Desk()
    text = phrases(1, 100).tolist()
    desk.begin(1, [*text, *text[:20]])
    drafts = desk.drafting.step(ANNE, desk.lease, Step(proposed=[1]))
    size = len(drafts.token_ids)
    assert size > 0
    desk.gained(1, text[20 : 20 + size])
    (counts,) = desk.drafting.finish(ANNE, desk.lease, [1])
    (record,) = desk.records
    assert (counts.drafted, counts.accepted, counts.output_tokens) == (size, size, size)
    assert (record.tenant, record.model, record.api, record.status) == (
        "anne",
        "m",
        "drafting",
        "ok",
    )
    assert (record.drafted, record.accepted, record.prompt_tokens) == (size, size, 120)
    assert record.by_source == {"session": (size, size)}
    assert desk.lease not in record.request_id
    found = desk.drafting.statistics(ANNE, desk.lease)
    assert (found.finished_requests, found.acceptance.accepted) == (1, size)
    assert found.index is not None
    assert found.index.sequences == 1


def test_a_prompt_goes_on_from_what_the_session_held() -> None:
    desk = Desk()
    text = phrases(2, 120)
    desk.begin(1, text[:100])
    desk.gained(1, text[100:])
    desk.drafting.finish(ANNE, desk.lease, [1])
    crc = zlib.crc32(text.tobytes())
    with pytest.raises(OutOfStepError, match="121 tokens, but the service holds 120"):
        desk.begin(2, [1], base=121)
    with pytest.raises(OutOfStepError, match="base_crc32"):
        desk.begin(2, [1], base=120, base_crc32=crc ^ 1)
    with pytest.raises(OutOfStepError, match="holds 0 of session 'other'"):
        desk.begin(2, [1], session="other", base=5)
    desk.begin(2, [7, 8], base=120, base_crc32=crc)
    (space,) = desk.spaces.all()
    assert space.index is not None
    context = space.index.session_context("drafting/s")
    assert context is not None
    assert context.tolist() == [*text.tolist(), 7, 8]
    desk.drafting.finish(ANNE, desk.lease, [2])


TOO_LONG = np.ones(50, np.int32)
BAD_BEGINNINGS: dict[str, tuple[dict[str, Any], type[SuffixSpecError], str]] = {
    "empty prompt": ({"prompt": ids([])}, InputError, "prompt"),
    "negative id": ({"prompt": ids([1, -1])}, TokenError, "position 1 is -1"),
    "id beyond the vocabulary": ({"prompt": ids([VOCAB])}, TokenError, "1000 ids"),
    "too long": ({"prompt": TOO_LONG}, TooLargeError, "50 tokens is longer than the 40"),
    "no session": ({"session": ""}, InputError, "session"),
    "long session": ({"session": "x" * 257}, InputError, "session"),
    "negative number": ({"request": -1}, InputError, "request"),
    "open number": ({"request": 1}, InputError, "1 is open already"),
    "negative max_tokens": ({"max_tokens": -1}, InputError, "max_tokens"),
    "bad prediction": ({"prediction": ids([-5])}, TokenError, "prediction"),
    "long prediction": ({"prediction": TOO_LONG}, TooLargeError, "prediction"),
    "unknown base": ({"session": "new", "base": 3}, OutOfStepError, "base"),
}


@pytest.mark.parametrize("case", BAD_BEGINNINGS)
def test_a_bad_request_begins_none_of_its_message(case: str) -> None:
    fields, kind, text = BAD_BEGINNINGS[case]
    desk = Desk(config=DraftingConfig(max_context_tokens=40))
    desk.begin(1, [1, 2, 3])
    good = NewRequest(request=8, session="good", prompt=ids([1, 2]))
    bad = replace(NewRequest(request=9, session="bad", prompt=ids([1, 2])), **fields)
    with pytest.raises(kind, match=text):
        desk.drafting.begin(ANNE, desk.lease, [good, bad])
    assert desk.live == (1, 1)
    assert desk.drafting.open_sessions == 1


BAD_STEPS: dict[str, tuple[Step, type[SuffixSpecError], str]] = {
    "unknown advanced": (Step([5], [1], ids([1])), UnknownRequestError, "advanced: no request 5"),
    "unknown proposed": (Step([1], [1], ids([1]), [6]), UnknownRequestError, "no request 6"),
    "advanced twice": (Step([1, 1], [1, 0], ids([1])), InputError, "request 1 twice"),
    "proposed twice": (Step([1], [1], ids([1]), [2, 2]), InputError, "request 2 twice"),
    "too few lengths": (Step([1, 2], [1], ids([1])), InputError, "1 numbers for 2"),
    "tokens of nobody": (Step([], [], ids([1])), InputError, "token_ids holds 1"),
    "too few tokens": (Step([1], [3], ids([1])), InputError, "add up to 3"),
    "negative length": (Step([1, 2], [2, -1], ids([1])), InputError, "advanced_lengths"),
    "bad id": (Step([1], [2], ids([1, VOCAB])), TokenError, "position 1"),
    "too long": (Step([1], [38], ids([1] * 38)), TooLargeError, "41 tokens"),
    "negative limit": (Step([1], [1], ids([1]), [1, 2], [1, -1]), InputError, "limits"),
    "too many limits": (Step([1], [1], ids([1]), [1, 2], [1, 1, 1]), InputError, "limits"),
    "too many rows": (Step(proposed=list(range(9))), InputError, "9 are more than the 8"),
}


@pytest.mark.parametrize("case", BAD_STEPS)
def test_a_bad_step_changes_nothing(case: str) -> None:
    step, kind, text = BAD_STEPS[case]
    desk = Desk(config=DraftingConfig(max_context_tokens=40, max_rows=8))
    desk.begin(1, [1, 2, 3])
    desk.begin(2, [1, 2, 3], session="s2")
    with pytest.raises(kind, match=text):
        desk.drafting.step(ANNE, desk.lease, step)
    counts = desk.drafting.finish(ANNE, desk.lease, [1, 2])
    assert [c.output_tokens for c in counts] == [0, 0]


def test_bad_leases() -> None:
    desk = Desk()
    wrong: dict[str, Any] = {
        "model": "",
        "tokenizer": "",
        "adapter": "x" * 300,
        "vocab_size": 0,
        "ttl_seconds": -1.0,
    }
    for field, value in wrong.items():
        with pytest.raises(InputError, match=field):
            desk.drafting.open(ANNE, replace(WISH, **{field: value}))
    with pytest.raises(InputError, match="vocab_size"):  # the namespace has another
        desk.drafting.open(ANNE, replace(WISH, vocab_size=VOCAB + 1))
    assert desk.drafting.open_leases == 1


def test_finishing_is_all_or_nothing() -> None:
    desk = Desk()
    desk.begin(1, [1, 2, 3])
    for numbers, kind in (([1, 2], UnknownRequestError), ([1, 1], InputError)):
        with pytest.raises(kind):
            desk.drafting.finish(ANNE, desk.lease, numbers)
    assert desk.live == (1, 1)
    desk.drafting.finish(ANNE, desk.lease, [1], discard=True)
    assert desk.live == (0, 0)
    assert [record.status for record in desk.records] == ["cancelled"]


CALLS: dict[str, Callable[[Drafting, Tenant, str], object]] = {
    "keep_alive": lambda d, t, lease: d.keep_alive(t, lease),
    "close": lambda d, t, lease: d.close(t, lease),
    "begin": lambda d, t, lease: d.begin(t, lease, []),
    "step": lambda d, t, lease: d.step(t, lease, Step(proposed=[1])),
    "finish": lambda d, t, lease: d.finish(t, lease, [1]),
    "end_sessions": lambda d, t, lease: d.end_sessions(t, lease, ["s"]),
    "ingest": lambda d, t, lease: d.ingest(t, lease, []),
    "purge": lambda d, t, lease: d.purge(t, lease),
    "statistics": lambda d, t, lease: d.statistics(t, lease),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_lease_is_its_tenants_and_ends(call: str) -> None:
    desk = Desk()
    desk.begin(1, [1, 2, 3])
    for tenant, lease in ((BOB, desk.lease), (ANNE, "guessed"), (ANNE, "")):
        with pytest.raises(UnknownLeaseError):
            CALLS[call](desk.drafting, tenant, lease)
    assert desk.live == (1, 1)
    desk.clock.now += 61
    with pytest.raises(UnknownLeaseError):
        CALLS[call](desk.drafting, ANNE, desk.lease)


def test_tenants_share_nothing() -> None:
    desk = Desk()
    other = desk.drafting.open(BOB, WISH).lease
    text = phrases(4, 200)
    desk.drafting.ingest(ANNE, desk.lease, [text])
    request = NewRequest(request=1, session="s", prompt=text[:50])
    desk.drafting.begin(BOB, other, [request])
    assert len(desk.drafting.step(BOB, other, Step(proposed=[1])).token_ids) == 0
    desk.drafting.begin(ANNE, desk.lease, [request])
    assert len(desk.drafting.step(ANNE, desk.lease, Step(proposed=[1])).token_ids) > 0
    desk.drafting.purge(BOB, other)
    assert [key.tenant for key in desk.purged] == ["bob"]
    found = desk.drafting.statistics(ANNE, desk.lease).index
    assert found is not None
    assert found.tokens == 200
    # Naming a lease of somebody else as the one to replace does nothing to it.
    desk.drafting.open(BOB, replace(WISH, replaces=desk.lease))
    assert desk.drafting.keep_alive(ANNE, desk.lease) == 60


def test_what_a_vanished_client_leaves_is_ended() -> None:
    desk = Desk(config=DraftingConfig(lease_seconds=10, session_idle_seconds=30))
    desk.begin(1, phrases(1, 80))
    desk.gained(1, [5, 6, 7])
    desk.clock.now += 9
    assert desk.drafting.expire() == 0
    desk.drafting.keep_alive(ANNE, desk.lease)
    desk.clock.now += 9
    assert desk.drafting.expire() == 0
    desk.clock.now += 2
    assert desk.drafting.expire() == 1
    assert desk.live == (0, 0)
    assert desk.drafting.open_leases == 0
    assert [(r.status, r.output_tokens) for r in desk.records] == [("abandoned", 3)]
    assert desk.drafting.open_sessions == 1
    desk.clock.now += 31
    assert desk.drafting.expire() == 1
    assert desk.drafting.open_sessions == 0
    (space,) = desk.spaces.all()
    assert space.index is not None
    assert space.index.statistics().sessions == 0


def test_a_lease_takes_the_place_of_another() -> None:
    desk = Desk(config=DraftingConfig(max_leases=1, max_requests=1))
    desk.begin(1, [1, 2, 3])
    with pytest.raises(LimitExceededError, match="leases"):
        desk.drafting.open(ANNE, WISH)
    old, desk.lease = desk.lease, desk.drafting.open(ANNE, replace(WISH, replaces=desk.lease)).lease
    assert desk.live == (0, 0)
    desk.begin(1, [1, 2, 3])
    with pytest.raises(UnknownLeaseError):
        desk.drafting.step(ANNE, old, Step(proposed=[1]))
    assert [record.status for record in desk.records] == ["replaced"]


def test_limits_are_per_tenant() -> None:
    desk = Desk(config=DraftingConfig(max_requests=2, max_sessions=2, max_leases=1))
    desk.begin(1, [1], session="a")
    with pytest.raises(LimitExceededError, match=r"requests: 1 are open.*before beginning 2"):
        desk.drafting.begin(
            ANNE,
            desk.lease,
            [NewRequest(request=n, session="a", prompt=ids([1])) for n in (2, 3)],
        )
    other = desk.drafting.open(BOB, WISH).lease
    desk.drafting.begin(BOB, other, [NewRequest(request=1, session="a", prompt=ids([1]))])
    assert desk.drafting.open_requests == 2


def test_the_session_used_longest_ago_makes_room() -> None:
    desk = Desk(config=DraftingConfig(max_sessions=2))
    text = phrases(1, 60)
    for number, session in enumerate(("a", "b")):
        desk.begin(number, text, session=session)
        desk.drafting.finish(ANNE, desk.lease, [number])
    desk.begin(7, text, session="a")
    desk.begin(8, text, session="c")  # b goes: a has an open request
    desk.drafting.finish(ANNE, desk.lease, [7])
    desk.begin(9, [1], session="a", base=60)
    with pytest.raises(OutOfStepError):
        desk.begin(10, [1], session="b", base=60)
    with pytest.raises(LimitExceededError, match="sessions: 2 have open requests"):
        desk.begin(10, [1], session="b")
    assert desk.drafting.open_requests == 2


def test_ending_a_session_forgets_it() -> None:
    desk = Desk()
    desk.begin(1, phrases(1, 60))
    desk.drafting.finish(ANNE, desk.lease, [1])
    desk.drafting.end_sessions(ANNE, desk.lease, ["s", "never seen"])
    with pytest.raises(OutOfStepError):
        desk.begin(2, [1], base=60)
    assert desk.drafting.open_sessions == 0


def test_a_stopping_service_goes_on_with_what_is_open() -> None:
    desk = Desk()
    desk.begin(1, [1, 2, 3])
    desk.drafting.stop()
    for refused in (
        lambda: desk.begin(2, [1]),
        lambda: desk.drafting.open(ANNE, WISH),
        lambda: desk.drafting.ingest(ANNE, desk.lease, []),
    ):
        with pytest.raises(UnavailableError):
            refused()
    desk.gained(1, [4])
    desk.drafting.close_all()
    assert desk.live == (0, 0)
    assert desk.drafting.open_leases == 0


def test_a_prediction_is_followed() -> None:
    desk = Desk()
    expected = np.arange(100, 140, dtype=np.int32)
    desk.begin(1, [1, 2, 3], prediction=expected)
    desk.begin(2, [1, 2, 3], session="other")
    drafts = desk.drafting.step(ANNE, desk.lease, Step(proposed=[2, 1], limits=[4]))
    assert [draft.token_ids.tolist() for draft in drafts] == [[], [100, 101, 102, 103]]
    both = Step([2, 1], [1, 2], ids([9, 100, 101]), [1, 2])
    drafts = desk.drafting.step(ANNE, desk.lease, both)
    assert drafts[0].token_ids[0] == 102
    counts = desk.drafting.finish(ANNE, desk.lease, [1, 2])
    assert [(c.drafted, c.accepted) for c in counts] == [(4, 2), (0, 0)]


def test_paths_only() -> None:
    config = SpeculativeConfig(draft_shape="tree", suffix_decoding_min_token_prob=0.01)
    desk = Desk(config)
    said = [[1, 2, 3, 10 * end, *range(50, 60)] for end in (4, 5, 4, 5, 6)]
    desk.drafting.ingest(ANNE, desk.lease, [ids(tokens) for tokens in said])
    paths = desk.drafting.open(ANNE, replace(WISH, paths_only=True))
    assert not paths.trees
    for lease, number in ((desk.lease, 1), (paths.lease, 1)):
        request = NewRequest(request=number, session=lease, prompt=ids([9, 1, 2, 3]))
        desk.drafting.begin(ANNE, lease, [request])
    tree = desk.drafting.step(ANNE, desk.lease, Step(proposed=[1]))[0]
    path = desk.drafting.step(ANNE, paths.lease, Step(proposed=[1]))[0]
    assert not tree.is_path
    assert path.is_path
    assert 0 < len(path) < len(tree)


def test_ingesting() -> None:
    desk = Desk(config=DraftingConfig(max_context_tokens=300))
    assert desk.drafting.ingest(ANNE, desk.lease, [phrases(1, 200), ids([])]) == 200
    for bad, kind in ((ids([1, -1]), TokenError), (ids([1] * 301), TooLargeError)):
        with pytest.raises(kind, match=r"sequences\[1\]"):
            desk.drafting.ingest(ANNE, desk.lease, [phrases(2, 100), bad])
    found = desk.drafting.statistics(ANNE, desk.lease).index
    assert found is not None
    assert found.tokens == 200
    forgetful = Desk(SpeculativeConfig(method="none", num_speculative_tokens=1))
    with pytest.raises(ConfigError, match="remembers no sequences"):
        forgetful.drafting.ingest(ANNE, forgetful.lease, [ids([1])])
    assert forgetful.drafting.statistics(ANNE, forgetful.lease).index is None


def test_it_may_stall_only_where_somebody_writes_or_little_room_is_left() -> None:
    desk = Desk()
    assert not desk.drafting.may_stall(ANNE, desk.lease, 64)
    assert not desk.drafting.may_stall(ANNE, "unknown", 64)
    (space,) = desk.spaces.all()
    assert space.index is not None
    with space.index._lock.writing():
        assert desk.drafting.may_stall(ANNE, desk.lease, 64)
    full = Desk(SpeculativeConfig(suffix_decoding_max_cached_requests=3))
    for _ in range(3):
        full.drafting.ingest(ANNE, full.lease, [phrases(1, 50)])
    assert full.drafting.may_stall(ANNE, full.lease, 1)
