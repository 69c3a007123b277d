"""Depths chosen by the running engine: the text stays the model's, costs are learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

torch = pytest.importorskip("torch")

from suffixspec_engine import Engine, EngineConfig, SamplingParams  # noqa: E402
from suffixspec_index.errors import InputError, SnapshotCorruptError  # noqa: E402


@pytest.fixture(scope="module")
def model(tiny_llama: Path) -> Any:
    from suffixspec_engine.models import load_model

    return load_model(tiny_llama)


PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6, 7], [9, 9, 9, 9, 9], [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]] * 3
GREEDY = SamplingParams(temperature=0, max_tokens=60)


class Costs:
    """A seed: every token costs ``ms``, on top of 1."""

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def step_ms(
        self, tokens: ArrayLike, context_tokens: ArrayLike, requests: int = 1
    ) -> np.ndarray:
        return 1.0 + self.ms * np.asarray(tokens, np.float64)


def texts(model: Any, speculative: dict[str, Any] | None, **options: Any) -> list[list[int]]:
    with Engine(model, speculative=speculative, **options) as engine:
        outputs = engine.generate(PROMPTS, GREEDY)
    return [o.token_ids.tolist() for o in outputs]


@pytest.mark.parametrize(
    "speculative",
    [
        {"method": "suffix"},
        {"method": "suffix", "draft_shape": "tree"},
        {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 1},
        {"method": "suffix", "num_speculative_tokens_per_batch_size": [[1, 2, 8], [3, 99, 1]]},
    ],
)
def test_the_text_is_the_models_whatever_is_chosen(model: Any, speculative: dict[str, Any]) -> None:
    assert texts(model, speculative) == texts(model, None)


def test_sampled_text_does_not_depend_on_the_depth(model: Any) -> None:
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=40)
    found = []
    for speculative in (None, {"method": "suffix"}, {"method": "suffix", "dynamic": False}):
        with Engine(model, speculative=speculative) as engine:
            found.append([o.token_ids.tolist() for o in engine.generate(PROMPTS, params)])
    assert found[0] == found[1] == found[2]


def test_it_measures_its_steps_and_says_what_it_knows(model: Any) -> None:
    with Engine(model, speculative={"method": "suffix"}) as engine:
        engine.generate(PROMPTS, GREEDY)
        state = engine.depth.to_dict()
    assert state["dynamic"]
    assert state["measured_steps"] > 20
    assert state["step_ms"]
    assert all(ms > 0 for ms in state["step_ms"].values())
    assert 0 <= state["verified"] <= state["offered"]  # how much pays, the machine's load decides
    assert state["offered"] > 0
    assert state["speedup_by_batch_size"]


def test_a_few_steps_are_timed_before_the_first_request(model: Any) -> None:
    with Engine(model, speculative={"method": "suffix"}) as engine:
        assert engine.depth.cost.ready
        assert engine.depth.cost.steps == 0
        first, last = (float(engine.depth.cost.step_ms(n, 0.0)) for n in (1, 32))
        assert 0.0 < first <= last
    for options in (
        {"speculative": {"method": "suffix", "dynamic": False}},
        {"speculative": {"method": "suffix"}, "step_cost": Costs(1.0)},
    ):
        with Engine(model, **options) as engine:
            assert not engine.depth.cost.ready


def test_where_tokens_cost_all_the_time_next_to_nothing_is_verified(model: Any) -> None:
    """The same prompts with two beliefs about costs; only the choice of depths differs."""

    def drafted(ms: float) -> int:
        with Engine(
            model, speculative={"method": "suffix"}, step_cost=Costs(ms),
            config=EngineConfig(max_running=9),
        ) as engine:  # fmt: skip
            engine.depth.observe = lambda **_: None  # type: ignore[method-assign]
            for _ in range(8):  # belief alone: what this machine takes is not looked at
                engine.depth.cost.observe(9, 0.0, 9, float(Costs(ms).step_ms(9, 0)))
            outputs = engine.generate(PROMPTS, GREEDY)
        return sum(o.metrics.drafted for o in outputs)

    assert drafted(1000.0) < 0.2 * drafted(0.0001)


def test_nobody_drafts_where_it_is_forbidden(model: Any) -> None:
    with Engine(model, speculative={"method": "suffix"}) as engine:
        engine.generate(PROMPTS, GREEDY, max_draft=0)
        assert engine.metrics.counts.drafted == 0


async def test_priority_is_checked(model: Any) -> None:
    with Engine(model, speculative={"method": "suffix"}) as engine:
        with pytest.raises(InputError, match="priority"):
            engine.submit([1, 2, 3], GREEDY, priority=0.0)
        async with engine.submit([1, 2, 3], GREEDY, priority=4.0) as stream:
            output = await stream.output()
        assert len(output.token_ids) == 60


def test_what_was_learned_is_taken_up_again(model: Any) -> None:
    speculative = {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 1}
    with Engine(model, speculative=speculative) as engine:
        plain = [o.token_ids.tolist() for o in engine.generate(PROMPTS, GREEDY)]
        learned = engine.learned()
        speedups = engine.depth.to_dict()["speedup_by_batch_size"]
    assert set(learned) == {"calibration/", "costs", "rates"}
    with Engine(model, speculative=speculative) as engine:
        engine.restore(learned)
        assert engine.depth.to_dict()["speedup_by_batch_size"] == speedups
        assert engine.depth.calibration_of("").to_bytes() == learned["calibration/"]
        assert not engine.depth.calibration_of("another").coarse.any()
        assert [o.token_ids.tolist() for o in engine.generate(PROMPTS, GREEDY)] == plain
        with pytest.raises(SnapshotCorruptError):
            engine.restore(learned | {"rates": b"short"})
    with Engine(model, speculative={"method": "none"}) as engine:
        engine.restore(learned)  # nothing is chosen there, so nothing is taken up
