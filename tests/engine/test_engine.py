"""The engine says exactly what transformers' ``generate`` says, whoever drafts and whoever else is
in the batch; and every request ends where it should."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")

from suffixspec_engine.engine import Engine
from suffixspec_engine.engine_config import EngineConfig
from suffixspec_engine.sampling import SamplingParams
from suffixspec_index.draft import Source
from suffixspec_index.errors import (
    CapacityError,
    ConfigError,
    InputError,
    TokenError,
)
from tests.engine.conftest import EOS, VOCABULARY
from tests.engine.oracles import Broken, TreeOracle
from tests.engine.said import Ids, random_prompt, said

if TYPE_CHECKING:
    from suffixspec_engine.models import TargetModel

LENGTHS = [3, 50, 17, 1, 90, 8]
METHODS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "none": {"method": "none"},
    "suffix path": {"method": "suffix", "suffix_decoding_min_token_prob": 0.0},
    "suffix tree": {
        "method": "suffix",
        "draft_shape": "tree",
        "suffix_decoding_max_spec_factor": 4.0,
        "suffix_decoding_min_token_prob": 0.0,
    },
    "ngram": {
        "method": "ngram",
        "num_speculative_tokens": 6,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 3,
    },
    "prediction": {"method": "prediction"},
}


def greedy(max_tokens: int = 24, **changes: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **changes)


@pytest.fixture(scope="module")
def prompts() -> list[Ids]:
    return [random_prompt(seed, length) for seed, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def truth(reference: Any, prompts: list[Ids]) -> list[list[int]]:
    return [said(reference, prompt, 24) for prompt in prompts]


@pytest.mark.parametrize("method", METHODS)
def test_greedy_equals_generate_alone_and_in_a_mixed_batch(
    target: TargetModel, prompts: list[Ids], truth: list[list[int]], method: str
) -> None:
    config = EngineConfig(max_running=4, max_prefill_tokens=40, prefill_chunk=7)
    with Engine(target, speculative=METHODS[method], config=config) as engine:
        alone = engine.generate([prompts[1]], greedy())
        assert alone[0].token_ids.tolist() == truth[1]
        for _ in range(2):  # the second time, the index knows the outputs
            together = engine.generate(prompts, greedy())
            assert [o.token_ids.tolist() for o in together] == truth
        engine.check_integrity()
        counts = engine.metrics.counts
        assert counts.output_tokens == len(truth[1]) + 2 * sum(map(len, truth))
        assert counts.output_tokens == counts.steps + counts.accepted
        if method.startswith("suffix"):
            assert counts.accepted > 20


@pytest.mark.parametrize("seed", range(3))
def test_random_trees_never_change_the_text(
    target: TargetModel, prompts: list[Ids], truth: list[list[int]], seed: int
) -> None:
    known = {tuple(p.tolist()): said_there for p, said_there in zip(prompts, truth, strict=True)}
    oracle = TreeOracle(known, VOCABULARY, seed=seed)
    config = EngineConfig(max_running=3, max_prefill_tokens=64, prefill_chunk=16)
    with Engine(target, proposer=oracle, config=config) as engine:
        outputs = engine.generate(prompts * 2, greedy())
        assert [o.token_ids.tolist() for o in outputs] == truth * 2
        engine.check_integrity()
        counts = engine.metrics.counts
        assert counts.accepted > 50
        assert counts.output_tokens == sum(o.metrics.output_tokens for o in outputs)
        assert counts.by_source["global"].accepted == counts.accepted
        for output in outputs:
            accepted = int((output.sources == Source.GLOBAL).sum())
            assert accepted == output.metrics.accepted == sum(
                n * times for n, times in enumerate(output.metrics.acceptance_histogram)
            )  # fmt: skip
            assert len(output.sources) == len(output.token_ids)


def test_every_end_inside_an_accepted_block(
    target: TargetModel, prompts: list[Ids], truth: list[list[int]]
) -> None:
    prompt, tokens = prompts[0], truth[0]
    known = {tuple(prompt.tolist()): tokens}
    ends = range(1, len(tokens) + 1)
    with Engine(target, proposer=TreeOracle(known, VOCABULARY, honesty=1.0)) as engine:
        for end in ends:
            output = engine.generate([prompt], greedy(end))[0]
            assert output.token_ids.tolist() == tokens[:end]
            assert output.finish_reason == "length"
        for stop in sorted(set(tokens)):
            end = tokens.index(stop) + 1
            output = engine.generate([prompt], greedy(stop_token_ids=(stop,)))[0]
            assert output.token_ids.tolist() == tokens[:end]
            assert (output.finish_reason, output.stop_reason) == ("stop", stop)
        engine.check_integrity()


def test_stop_strings_end_the_text_and_are_never_streamed(
    target: TargetModel, prompts: list[Ids], truth: list[list[int]]
) -> None:
    prompt = prompts[0]
    known = {tuple(prompt.tolist()): truth[0]}
    text = target.tokenizer.decode(truth[0], skip_special_tokens=True)
    with Engine(target, proposer=TreeOracle(known, VOCABULARY, honesty=1.0)) as engine:
        whole = engine.generate([prompt], greedy())[0].text
        assert text.startswith(whole.rstrip("\ufffd"))
        for at in range(1, len(whole) - 2, 3):
            stop = whole[at : at + 2]
            params = greedy(stop=(stop, "never said"))
            pieces = [event.text for event in engine.stream(prompt, params)]
            assert "".join(pieces) == whole[: whole.index(stop)]
            output = engine.generate([prompt], params)[0]
            assert output.text == whole[: whole.index(stop)]
            assert (output.finish_reason, output.stop_reason) == ("stop", stop)


def test_end_of_sequence_inside_a_block(target: TargetModel, reference: Any) -> None:
    """The first prompt whose greedy text ends by itself, in the middle of a draft."""
    prompt, tokens = next(
        (prompt, tokens)
        for prompt in (random_prompt(seed, 9) for seed in range(200))
        if 5 < len(tokens := said(reference, prompt, 40)) < 40
    )
    known = {tuple(prompt.tolist()): [*tokens, 1, 2, 3, 4, 5]}
    with Engine(target, proposer=TreeOracle(known, VOCABULARY, honesty=1.0)) as engine:
        output = engine.generate([prompt], greedy(60))[0]
        assert output.token_ids.tolist() == tokens
        assert tokens[-1] == EOS
        assert (output.finish_reason, output.stop_reason) == ("stop", None)
        assert output.metrics.accepted > 3


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_seeded_text_is_the_same_with_and_without_speculation(
    target: TargetModel, prompts: list[Ids], temperature: float
) -> None:
    params = [
        SamplingParams(temperature=temperature, top_p=0.95, max_tokens=20, seed=seed)
        for seed in range(len(prompts))
    ]
    with Engine(target) as plain:
        expected = [o.token_ids.tolist() for o in plain.generate(prompts, params)]
    known = {tuple(p.tolist()): e for p, e in zip(prompts, expected, strict=True)}
    config = EngineConfig(max_running=3, max_prefill_tokens=16, prefill_chunk=5)
    suffix = METHODS["suffix tree"]
    for options in ({"proposer": TreeOracle(known, VOCABULARY)}, {"speculative": suffix}):
        with Engine(target, config=config, **options) as engine:
            for _ in range(2):
                outputs = engine.generate(prompts, params)
                assert [o.token_ids.tolist() for o in outputs] == expected
            assert engine.metrics.counts.accepted


def test_a_sessions_next_turn_is_not_computed_again(target: TargetModel, reference: Any) -> None:
    with Engine(target, speculative=METHODS["suffix tree"]) as engine:
        prompt = random_prompt(11, 60)
        for turn in range(4):
            output = engine.generate([prompt], greedy(9), session_ids=["agent"])[0]
            assert output.token_ids.tolist() == said(reference, prompt, 9)
            # All of the last turn but its last token, whose keys were never needed.
            assert output.metrics.cached_tokens == (0 if turn == 0 else len(prompt) - 6)
            prompt = np.concatenate([prompt, output.token_ids, random_prompt(turn, 5)])
        engine.check_integrity()
        engine.end_session("agent")
        again = engine.generate([prompt], greedy(3), session_ids=["agent"])[0]
        assert again.metrics.cached_tokens == 0


def test_requests_that_begin_alike_are_computed_once(target: TargetModel, reference: Any) -> None:
    shared = random_prompt(12, 100)
    prompts = [np.append(shared, np.int32(i)) for i in range(5)]
    with Engine(target) as engine:
        outputs = engine.generate(prompts, greedy(8))
        assert [o.token_ids.tolist() for o in outputs] == [said(reference, p, 8) for p in prompts]
        assert [o.metrics.cached_tokens for o in outputs] == [0, 100, 100, 100, 100]
        assert engine.metrics.cached_tokens == 400
        engine.check_integrity()


def test_a_long_prompt_does_not_stall_the_others(target: TargetModel) -> None:
    config = EngineConfig(max_prefill_tokens=64, prefill_chunk=8)
    order: list[str] = []
    with Engine(target, config=config) as engine:
        short = engine._request(random_prompt(1, 4), greedy(30), lambda e: order.append("short"))
        long = engine._request(random_prompt(2, 300), greedy(2), lambda e: order.append("long"))
        for request in (short, long):
            engine._core.scheduler.add(request)
        while len(engine._core.scheduler):
            engine._core.admit()
            engine._core.step()
    # 300 prompt tokens by eights beside the short request's steps.
    assert order.index("long") > 25
    assert order.count("short") == 30


@pytest.mark.parametrize(
    "where",
    ["begin", "propose", "advance", "finish", "end_session", "vocabulary", "negative", "long"],
)
def test_a_broken_proposer_costs_drafts_only(
    target: TargetModel, prompts: list[Ids], truth: list[list[int]], where: str
) -> None:
    with Engine(target, proposer=Broken(where)) as engine:
        for _ in range(2):
            output = engine.generate([prompts[0]], greedy())[0]
            assert output.token_ids.tolist() == truth[0]
        engine.check_integrity()


def test_requests_wait_for_cache_and_queue(
    target: TargetModel, prompts: list[Ids], truth: list[list[int]]
) -> None:
    per_token = 2 * 3 * 2 * 8 * 4
    config = EngineConfig(max_running=8, max_waiting=1, cache_bytes=130 * per_token)
    with Engine(target, speculative=METHODS["suffix path"], config=config) as engine:
        outputs = engine.generate(prompts * 2, greedy())
        assert [o.token_ids.tolist() for o in outputs] == truth * 2
        assert engine._core.cache.evictions
        engine.check_integrity()
        with pytest.raises(CapacityError, match="the cache holds 130"):
            engine.generate([prompts[4]], greedy(100))
        assert engine.generate([prompts[0]], greedy())[0].token_ids.tolist() == truth[0]


def test_the_models_length_ends_a_request(target: TargetModel, prompts: list[Ids]) -> None:
    short = dataclasses.replace(target, max_model_len=60)
    with Engine(short, speculative=METHODS["suffix tree"]) as engine:
        output = engine.generate([prompts[1]], greedy(1000))[0]
        assert len(output.token_ids) == 10
        assert output.finish_reason == "length"
        with pytest.raises(InputError, match="no room for output"):
            engine.generate([random_prompt(1, 60)], greedy())


def test_a_step_that_raises_ends_its_requests_only(
    target: TargetModel, prompts: list[Ids], truth: list[list[int]]
) -> None:
    with Engine(target) as engine:
        runner, engine._core._runner = engine._core._runner, _Failing()
        output = engine.generate([prompts[0]], greedy())[0]
        assert output.finish_reason == "error"
        assert "no memory" in str(output.stop_reason)
        engine._core._runner = runner
        assert engine.generate([prompts[0]], greedy())[0].token_ids.tolist() == truth[0]
        engine.check_integrity()


class _Failing:
    def run(self, *_: Any) -> Any:
        raise RuntimeError("no memory")


def test_wrong_input_is_refused_before_anything_happens(target: TargetModel) -> None:
    with Engine(target) as engine:
        with pytest.raises(InputError, match="empty"):
            engine.generate([[]], greedy())
        with pytest.raises(TokenError, match="prompt"):
            engine.generate([[1, VOCABULARY]], greedy())
        with pytest.raises(InputError, match="put it in a list"):
            engine.generate("text", greedy())
        with pytest.raises(ConfigError, match="stop_token_ids"):
            engine.generate([[1]], greedy(stop_token_ids=(VOCABULARY,)))
        with pytest.raises(InputError, match="2 parameters for 1 prompts"):
            engine.generate([[1]], [greedy(), greedy()])
        with pytest.raises(InputError, match="session_ids"):
            engine.generate([[1]], greedy(), session_ids=[])
        with pytest.raises(InputError, match="max_draft"):
            engine.generate([[1]], greedy(), max_draft=-1)
        assert engine.num_running == engine.num_waiting == 0
    with pytest.raises(CapacityError, match="closed"):
        engine.generate([[1]], greedy())
    with pytest.raises(ConfigError, match="not both"):
        Engine(target, speculative={"method": "suffix"}, proposer=Broken("begin"))
    bare = dataclasses.replace(target, tokenizer=None)
    with Engine(bare) as engine:
        with pytest.raises(InputError, match="has no tokenizer"):
            engine.generate(["text"], greedy())
        with pytest.raises(InputError, match="needs a tokenizer"):
            engine.generate([[1]], greedy(stop=("x",)))
        assert engine.generate([[1]], greedy(4))[0].text == ""


def test_no_draft_where_none_is_wanted(target: TargetModel, prompts: list[Ids]) -> None:
    with Engine(target, speculative=METHODS["suffix tree"]) as engine:
        engine.generate(prompts, greedy(), max_draft=0)
        assert engine.metrics.counts.drafted == 0
        engine.generate(prompts, greedy(), max_draft=2)
        assert len(engine.metrics.counts.acceptance_histogram) <= 3


@pytest.mark.parametrize("sampled", ["greedy", "probabilistic"])
def test_a_draft_model_changes_nothing(
    target: TargetModel,
    tiny_llama: Path,
    prompts: list[Ids],
    truth: list[list[int]],
    sampled: str,
) -> None:
    speculative = {
        "method": "draft_model",
        "model": str(tiny_llama),
        "num_speculative_tokens": 4,
        "draft_sample_method": sampled,
    }
    params = [
        SamplingParams(temperature=0.9, max_tokens=15, seed=seed) for seed in range(len(prompts))
    ]
    with Engine(target) as plain:
        expected = [o.token_ids.tolist() for o in plain.generate(prompts, params)]
    with Engine(target, speculative=speculative) as engine:
        assert [o.token_ids.tolist() for o in engine.generate(prompts, greedy())] == truth
        counts = engine.metrics.counts
        assert counts.accepted > 0.9 * counts.drafted  # it drafts for itself
        assert [o.token_ids.tolist() for o in engine.generate(prompts, params)] == expected
    for method in ("standard", "block"):
        verified = speculative | {"rejection_sample_method": method}
        with Engine(target, speculative=verified) as engine:
            outputs = engine.generate(prompts, params)
            assert {o.finish_reason for o in outputs} <= {"length", "stop"}
            counts = engine.metrics.counts
            if sampled == "probabilistic":
                assert counts.accepted > 0.9 * counts.drafted


def test_drafts_are_shorter_in_larger_batches(target: TargetModel, prompts: list[Ids]) -> None:
    speculative = {
        "method": "suffix",
        "suffix_decoding_min_token_prob": 0.0,
        "num_speculative_tokens_per_batch_size": [[1, 1, 6], [2, 3, 1], [4, 100, 0]],
    }
    for size, longest in ((1, 6), (3, 1), (6, 0)):
        with Engine(target, speculative=speculative) as engine:
            with engine._steps._changed:  # no step before all are there, and so all end together
                streams = [engine.stream(prompt, greedy()) for prompt in prompts[:size]]
            for stream in streams:
                stream.output()
            histogram = engine.metrics.counts.acceptance_histogram
            assert len(histogram) <= 1 + longest
            assert bool(engine.metrics.counts.drafted) == (longest > 0)


def test_sessions_of_two_namespaces_do_not_meet(target: TargetModel) -> None:
    prompt = random_prompt(3, 80)
    with Engine(target, speculative=METHODS["suffix path"]) as engine:
        for namespace, known in (("a", 0), ("b", 0), ("a", 79)):
            stream = engine.stream(prompt, greedy(5), session_id="s", namespace=namespace)
            assert stream.output().metrics.cached_tokens == known
        engine.end_session("s", namespace="a")
        stream = engine.stream(prompt, greedy(5), session_id="s", namespace="a")
        assert stream.output().metrics.cached_tokens == 0


def test_metrics_add_up(target: TargetModel, prompts: list[Ids]) -> None:
    with Engine(target, speculative=METHODS["suffix tree"]) as engine:
        outputs = engine.generate(prompts, greedy())
        metrics = engine.metrics.to_dict()
    assert metrics["requests"] == {"length": len(prompts)}
    assert metrics["prompt_tokens"] == sum(LENGTHS)
    counts = metrics["counts"]
    assert counts["drafted"] == sum(o.metrics.drafted for o in outputs)
    assert sum(counts["acceptance_histogram"]) == counts["draft_steps"]
    assert sum(counts["accepted_per_position"]) == counts["accepted"]
    assert 0 <= metrics["seconds"]["outside_model"] <= 1
    for output in outputs:
        m = output.metrics
        assert m.queued_at <= m.started_at <= m.first_token_at <= m.finished_at
        assert m.time_to_first_token > 0


def test_structured_output_with_drafts_cut_and_forced(
    target: TargetModel, prompts: list[Ids]
) -> None:
    """Half of the batch obeys a grammar; the rest must not notice."""
    pytest.importorskip("llguidance")
    from suffixspec_engine.grammar import GrammarSpec

    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["left", "right"]}, "count": {"enum": [1, 2]}},
        "required": ["name", "count"],
        "additionalProperties": False,
    }
    spec = GrammarSpec.json(schema, any_whitespace=False)
    with Engine(target) as plain:
        expected = plain.generate(prompts, greedy(60), grammar=spec, max_draft=0)
        free = plain.generate(prompts, greedy())
    for output in expected:
        assert json.loads(output.text)["name"] in ("left", "right")
        assert output.finish_reason == "stop"
    for method in ("suffix tree", "none"):
        with Engine(target, speculative=METHODS[method]) as engine:
            for _ in range(2):
                outputs = engine.generate(prompts, greedy(60), grammar=spec)
                for output, wanted in zip(outputs, expected, strict=True):
                    assert output.token_ids.tolist() == wanted.token_ids.tolist()
                assert engine.metrics.counts.by_source["forced"].accepted
            others = engine.generate(prompts, greedy())
            assert [o.text for o in others] == [o.text for o in free]
