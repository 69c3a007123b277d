from __future__ import annotations

import json

from rich.console import Console

from suffixspec_traces.tuning import TuningReport
from suffixspec_traces.tuning.terminal import print_tuning, setting, shown


def printed(report: TuningReport, width: int = 120) -> str:
    console = Console(width=width, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        print_tuning(report, console)
    return capture.get()


def test_the_tables_hold_the_figures(report: TuningReport) -> None:
    text = printed(report)
    for words in ("1 request at a time", "4 requests at a time", "vLLM's defaults", "best n-gram"):
        assert words in text
    assert "Speculation pays at 1 request at a time" in text
    assert "num_speculative_tokens" in text
    assert "◂" in text


def test_what_is_pasted_is_never_broken(report: TuningReport) -> None:
    lines = printed(report, width=60).splitlines()
    objects = [json.loads(line) for line in lines if line.startswith('{"method"')]
    assert len(objects) == 4


def test_a_search_that_was_cut_short_says_so(report: TuningReport) -> None:
    for ended, words in (("interrupted", "Partial"), ("timeout", "The time was over")):
        run = report.run.model_copy(update={"ended": ended, "found_before": 3})
        text = printed(report.model_copy(update={"run": run}))
        assert words in text
        assert "3 trials were in the storage already" in text


def test_no_verdict_is_hidden(report: TuningReport) -> None:
    for verdict in ("does not pay", "undecided"):
        one = report.concurrencies[0].model_copy(
            update={"verdict": verdict, "sentence": f"It {verdict} here."}
        )
        assert f"It {verdict} here." in printed(report.model_copy(update={"concurrencies": [one]}))


def test_values_are_words() -> None:
    assert [shown(v) for v in (None, True, False, 0.5, 8)] == ["no bound", "yes", "no", "0.5", "8"]
    assert setting({"method": "ngram", "prompt_lookup_min": 2}) == "ngram lookup_min=2"
