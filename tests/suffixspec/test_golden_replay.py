"""What a replay of the recorded samples gives. A change here is a change of what users get.

``ngram`` is exact arithmetic. ``suffix`` learns in float32, so another processor may round a
threshold to the other side now and then: its counts may differ by half a percent.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from suffixspec_index.proposers import create_proposer
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.reading import read_traces
from suffixspec_traces.render import ChatRenderer
from suffixspec_traces.replay import ReplayPlan, Step, replay
from suffixspec_traces.tokenizers import TraceTokenizer, load_tokenizer

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"
GOLDEN = {
    "ngram": (11_900, 59_735, 21_808),
    "suffix": (7_605, 55_218, 26_149),
    "suffix tree": (7_121, 63_243, 26_654),
}
"""Steps, drafted and accepted tokens."""
CONFIGS: dict[str, dict[str, object]] = {
    "ngram": {
        "method": "ngram",
        "num_speculative_tokens": 8,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    },
    "suffix": {"method": "suffix"},
    "suffix tree": {"method": "suffix", "draft_shape": "tree"},
}


@pytest.fixture(scope="module")
def tokenizer() -> TraceTokenizer:
    return load_tokenizer("smollm2")


@pytest.fixture(scope="module")
def plan(tokenizer: TraceTokenizer) -> ReplayPlan:
    renderer = ChatRenderer(tokenizer)
    sessions = [renderer.render_session(s) for s in read_traces([str(SAMPLES)])]
    return ReplayPlan.build(sessions)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_samples_give_the_known_figures(
    name: str, plan: ReplayPlan, tokenizer: TraceTokenizer
) -> None:
    config = SpeculativeConfig.from_dict(CONFIGS[name])
    proposer = create_proposer(config, vocab_size=tokenizer.vocab_size)
    log = replay(plan, proposer).log
    found = (len(log), int(log.column(Step.DRAFTED).sum()), int(log.column(Step.ACCEPTED).sum()))
    tolerance = 0 if name == "ngram" else 0.005
    assert found == pytest.approx(GOLDEN[name], rel=tolerance)
    assert plan.output_tokens == 33_380
