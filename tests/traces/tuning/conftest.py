from __future__ import annotations

import pytest

from suffixspec_traces.tuning import (
    Parts,
    SearchOptions,
    TuningHead,
    TuningReport,
    TuningTask,
    tune,
)
from tests.traces.tuning.talk import FLAT, VOCABULARY, talks


@pytest.fixture(scope="session")
def report() -> TuningReport:
    """Of a small search, made once."""
    task = TuningTask(Parts.split(talks(12)), FLAT, "flat", VOCABULARY)
    options = SearchOptions((1, 4), trials=12)
    made = tune(task, options, TuningHead(paths=["<b>traces</b>"], version="9.9"))
    assert made is not None
    return made
