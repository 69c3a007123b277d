"""The plug-in against a batch that behaves as vLLM's does."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from suffixspec_engine.vllm import SuffixSpecProposer, adapters
from suffixspec_index.draft import Draft, DraftBatch, Source
from suffixspec_index.proposers.suffix import SuffixProposer
from suffixspec_index.speculative_config import SpeculativeConfig
from tests.engine.vllm.batches import VOCAB, Batch, Scripted, vllm_config

STATIC = {"speculative": {"dynamic": False}}


def texts(seed: int, count: int, length: int = 60) -> list[list[int]]:
    """Texts that quote each other, as agents' do."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(1, VOCAB, 12).tolist() for _ in range(6)]
    made = []
    for _ in range(count):
        text: list[int] = []
        while len(text) < length:
            text += phrases[int(rng.integers(6))] + rng.integers(1, VOCAB, 2).tolist()
        made.append(text[:length])
    return made


def ended(request: Scripted, batch: Batch) -> None:
    while not request.done:
        batch.step()
    batch.remove(request, finished=True)


def live_rows(batch: Batch) -> None:
    """Each row's request is known, once, with exactly the row's tokens."""
    known = {request.row: request for request in batch.proposer._tracker.live if not request.absent}
    assert sorted(known) == list(range(len(batch.rows)))
    for row, request in known.items():
        assert np.array_equal(request.tokens, batch.tokens[row, : batch.lengths[row]])
        proposer = batch.proposer._adapters.proposer(request.adapter)
        assert isinstance(proposer, SuffixProposer)
        assert np.array_equal(proposer.index.context(request.handle), request.tokens)


@pytest.mark.parametrize("identified", [True, False])
def test_requests_come_and_go(identified: bool) -> None:
    rng = np.random.default_rng(11)
    batch = Batch(SuffixSpecProposer(vllm_config()), identified=identified)
    waiting = [
        Scripted(f"r{i}", text[:20], text[20:], adapter="" if not identified else "ab"[i % 2])
        for i, text in enumerate(texts(1, 30))
    ]
    away: list[Scripted] = []
    finished: list[Scripted] = []
    while waiting or batch.rows or away:
        for request in [r for r in batch.rows if r.done]:
            batch.remove(request, finished=True)
            finished.append(request)
        if batch.rows and rng.random() < 0.15:  # preempted
            away.append(batch.rows[int(rng.integers(len(batch.rows)))])
            batch.remove(away[-1], finished=False)
        if away and rng.random() < 0.3:
            batch.add(away.pop(0))
        while waiting and len(batch.rows) < 6 and rng.random() < 0.7:
            batch.add(waiting.pop(0))
        if batch.rows:
            batch.step()
            live_rows(batch)
    assert batch.proposer.faults == 0
    assert sum(r.accepted for r in finished) > 0.3 * sum(len(r.output) for r in finished)


def test_drafts_are_those_of_a_proposer_that_is_told_everything() -> None:
    plugin = SuffixSpecProposer(vllm_config(most=12, additional=STATIC))
    batch = Batch(plugin, identified=False)
    twin = SuffixProposer(
        SpeculativeConfig(method="suffix", num_speculative_tokens=12, max_model_len=4096),
        vocab_size=VOCAB,
    )
    for i, text in enumerate(texts(2, 8)):
        request = Scripted(f"r{i}", text[:30], text[30:])
        batch.add(request)
        handle = twin.begin(f"s{i}", request.prompt)
        while not request.done:
            before = request.said
            batch.step()
            twin.advance(handle, request.output[before : request.said])
            assert request.draft == twin.propose(handle).token_ids.tolist()
        batch.remove(request, finished=True)
        for ended in plugin._tracker.live:  # its row is empty: nobody would notice before the next
            plugin._end(ended)
        twin.finish(handle)


def test_parallel_samples_of_one_prompt_stay_apart() -> None:
    (prompt,) = texts(3, 1, 40)
    batch = Batch(SuffixSpecProposer(vllm_config()), identified=False)
    samples = [Scripted(f"r{i}", prompt, text) for i, text in enumerate(texts(4, 5, 30))]
    for sample in samples:
        batch.add(sample)
    for _ in range(3):
        batch.step()
        live_rows(batch)
    batch.remove(samples[0], finished=True)
    batch.step()
    live_rows(batch)
    assert len({request.session_id for request in batch.proposer._tracker.live}) == 5


def test_next_turn_belongs_to_the_session() -> None:
    plugin = SuffixSpecProposer(vllm_config())
    batch = Batch(plugin, identified=True)
    (text,) = texts(5, 1, 200)
    for start, end in ((40, 80), (100, 140), (160, 200)):
        request = Scripted(f"turn-{start}", text[:start], text[start:end])
        batch.add(request)
        ended(request, batch)
    proposer = plugin._adapters.proposer("")
    assert isinstance(proposer, SuffixProposer)
    assert proposer.index.statistics().sessions == 1


def test_rows_that_compute_their_prompt_have_no_draft() -> None:
    batch = Batch(SuffixSpecProposer(vllm_config()), identified=False)
    one, two = (Scripted(f"r{i}", t[:20], t[20:]) for i, t in enumerate(texts(6, 2)))
    batch.add(one)
    batch.add(two)
    batch.step(computing=frozenset({"r1"}))
    assert [request.row for request in batch.proposer._tracker.live] == [0]
    batch.step()
    live_rows(batch)


def test_adapters_share_nothing() -> None:
    batch = Batch(SuffixSpecProposer(vllm_config()), identified=True)
    (text,) = texts(7, 1)
    drafted = []
    for i, adapter in enumerate(("a", "a", "b")):
        request = Scripted(f"r{i}", [5, 6, 7], text, adapter=adapter)
        batch.add(request)
        ended(request, batch)
        batch.add(Scripted(f"end{i}", [1], [2], adapter="c"))  # tells the plug-in that it ended
        batch.step()
        batch.remove(batch.rows[0], finished=True)
        drafted.append(request.accepted)
    assert drafted[1] > 2 * max(drafted[0], drafted[2], 1)


def test_no_draft_runs_past_the_longest_context() -> None:
    prompt = [1, 2, 3, 4] * 10
    batch = Batch(SuffixSpecProposer(vllm_config(max_model_len=50)), identified=False)
    request = Scripted("r", prompt, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2])
    batch.add(request)
    while not request.done:
        batch.step()
        assert batch.lengths[0] + len(request.draft) + 1 <= 50 or not request.draft


def test_a_fault_costs_drafts_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = SuffixSpecProposer(vllm_config())
    batch = Batch(plugin, identified=False)
    (text,) = texts(8, 1)
    request = Scripted("r", text[:30], text[30:])
    batch.add(request)
    batch.step()
    proposer = plugin._adapters.proposer("")

    def fail(*_: object, **__: object) -> Any:
        raise RuntimeError("broken")

    with monkeypatch.context() as broken, caplog.at_level(logging.ERROR):
        broken.setattr(proposer, "advance_batch", fail)
        batch.step()
        batch.step()
    assert plugin.faults >= 1
    assert request.draft == []
    assert "no drafts in this step" in caplog.text
    batch.step()
    live_rows(batch)


def test_ids_outside_the_vocabulary_never_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = SuffixSpecProposer(vllm_config(additional=STATIC))
    wrong = Draft.path([3, VOCAB, 4], source=Source.SESSION)
    monkeypatch.setattr(
        plugin._adapters, "propose", lambda requests, limits: DraftBatch.of([wrong] * len(requests))
    )
    batch = Batch(plugin, identified=False)
    batch.add(Scripted("r", [1, 2, 3], [4, 5, 6]))
    batch.step()
    assert batch.rows[0].draft == [3]


def test_batch_size_schedule_is_honoured() -> None:
    schedule = [[1, 1, 8], [2, 8, 0]]
    config = vllm_config(
        additional={"speculative": {"suffix_decoding_min_token_prob": 0, "dynamic": False}},
        num_speculative_tokens_per_batch_size=schedule,
    )
    batch = Batch(SuffixSpecProposer(config), identified=False)
    for i in range(2):
        batch.add(Scripted(f"r{i}", [1, 2, 3, 4] * 8, [1, 2, 3, 4] * 16))
    batch.step()
    assert [request.draft for request in batch.rows] == [[], []]
    batch.remove(batch.rows[1], finished=True)
    for _ in range(17):  # just beyond the edge, the range changes after a while only
        batch.step()
    assert len(batch.rows[0].draft) == 8


def test_depth_follows_what_steps_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every token costs as much as a step of its own, drafts are not worth it."""
    accepted = {}
    for name, ms_per_token in (("nearly free", 0.001), ("as dear as a step", 1000.0)):
        plugin = SuffixSpecProposer(vllm_config(additional={"speculative": {"dynamic": True}}))
        assert plugin._depth is not None
        now = 0.0
        monkeypatch.setattr(plugin._depth, "_clock", lambda: now)  # noqa: B023
        batch = Batch(plugin, identified=True)
        drafted = 0
        for i, text in enumerate(texts(9, 12, 120)):
            request = Scripted(f"r{i}", text[:40], text[40:])
            batch.add(request)
            while not request.done:
                now += 1e-3 * (10.0 + ms_per_token * (1 + len(request.draft)))
                batch.step()
            drafted += request.drafted if i >= 8 else 0
            batch.remove(request, finished=True)
        accepted[name] = drafted
        assert plugin.faults == 0
    assert accepted["nearly free"] > 3 * max(accepted["as dear as a step"], 1)


def test_replicas_share_through_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "_fingerprint", lambda model: "tokenizer")
    additional = {"log": "memory:vllm-replicas", "tenant": "t"}
    (text,) = texts(10, 1, 80)
    plugins = [SuffixSpecProposer(vllm_config(additional=additional)) for _ in range(2)]
    try:
        batches = [Batch(plugin, identified=True) for plugin in plugins]
        accepted = []
        for i, batch in enumerate(batches):
            request = Scripted(f"r{i}", [5, 6, 7], text)
            batch.add(request)
            ended(request, batch)
            batch.add(Scripted("next", [1], [2]))
            batch.step()
            for plugin in plugins:
                assert plugin.sharing is not None
                assert plugin.sharing.flush(60)
                assert plugin.sharing.wait_until_current(60)
            accepted.append(request.accepted)
    finally:
        for plugin in plugins:
            assert plugin.sharing is not None
            plugin.sharing.close()
    assert accepted[1] > 2 * max(accepted[0], 10)
