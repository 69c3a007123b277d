from __future__ import annotations

import numpy as np
import pytest

from suffixspec.bench.results import (
    RequestResult,
    Round,
    compare,
    parse_goodput,
    summarize,
)
from suffixspec.bench.speculation import SpeculationFigures
from suffixspec.bench.workload import BenchRequest
from suffixspec_index.errors import ConfigError


def result(
    number: int,
    *gaps: float,
    tokens: int,
    sent: float = 0.0,
    error: str | None = None,
    text: str = "",
) -> RequestResult:
    arrivals = (sent + np.cumsum(gaps)).tolist()
    return RequestResult(
        BenchRequest(number, "s", "x", 9),
        sent,
        arrivals,
        ended=arrivals[-1] if arrivals else sent,
        output_tokens=tokens,
        prompt_tokens=10,
        cached_tokens=4,
        error=error,
        text=text,
    )


def test_times_of_one_request() -> None:
    one = result(0, 0.5, 0.1, 0.3, tokens=9, sent=2.0)
    assert one.ttft == pytest.approx(0.5)
    assert one.itls == pytest.approx([0.1, 0.3])
    assert one.latency == pytest.approx(0.9)
    assert one.tpot == pytest.approx(0.4 / 8)
    assert result(0, 0.5, tokens=1).tpot == 0.0


def test_the_figures_are_those_of_the_values() -> None:
    random = np.random.default_rng(1)
    results = [
        result(i, *random.uniform(0.01, 0.2, random.integers(1, 6)), tokens=5 + i)
        for i in range(20)
    ]
    failed = result(99, 0.1, tokens=7, error="HTTP 500")
    halves = [Round(results[:10], 4.0, None, True), Round([*results[10:], failed], 2.0, None, True)]
    summary = summarize("suffix", halves)
    assert (summary.completed, summary.failed, summary.rounds) == (20, 1, 2)
    assert summary.errors == ("HTTP 500",)
    tokens = [sum(r.output_tokens for r in results[a:b]) for a, b in ((0, 10), (10, 20))]
    assert summary.output_tokens == sum(tokens)
    assert summary.output_throughput == pytest.approx((tokens[0] / 4 + tokens[1] / 2) / 2)
    assert summary.request_throughput == pytest.approx((10 / 4 + 10 / 2) / 2)
    assert summary.cached_tokens == 80
    latencies = sorted(1e3 * r.latency for r in results)
    assert summary.percentile("e2el", 50) == pytest.approx((latencies[9] + latencies[10]) / 2)
    assert summary.percentile("e2el", 99) == pytest.approx(np.percentile(latencies, 99))
    gaps = [1e3 * gap for r in results for gap in r.itls]
    found = summary.as_json(["itl"], [90, 99.9])
    assert found["mean_itl_ms"] == pytest.approx(np.mean(gaps))
    assert found["p99.9_itl_ms"] == pytest.approx(np.percentile(gaps, 99.9))
    assert "median_ttft_ms" not in found


def test_nothing_was_answered() -> None:
    summary = summarize("x", [Round([result(0, tokens=0, error="refused")], 0.0)])
    assert summary.percentile("ttft", 50) is None
    assert summary.as_json(["ttft"], [99])["p99_ttft_ms"] is None
    assert not summary.complete


def test_goodput_counts_requests_within_all_objectives() -> None:
    results = [result(i, 0.1 * (i + 1), 0.1, tokens=3) for i in range(10)]
    limits = parse_goodput(["ttft:450 e2el:1000", "tpot:60"])
    assert limits == {"ttft": 450.0, "e2el": 1000.0, "tpot": 60.0}
    assert summarize("x", [Round(results, 2.0, None, True)], limits).goodput == 4 / 2
    assert summarize("x", [Round(results, 2.0, None, True)]).goodput is None
    for wrong in ("itl:5", "ttft", "ttft:x", "ttft:-1"):
        with pytest.raises(ConfigError, match="--goodput"):
            parse_goodput([wrong])


def test_speculation_is_summed_over_rounds() -> None:
    one = SpeculationFigures(10, 40, 20, (9, 6), 15, 35)
    summary = summarize("x", [Round([], 1.0, one), Round([], 1.0, one)])
    assert summary.speculation == SpeculationFigures(20, 80, 40, (18, 12), 30, 70)


class TestComparing:
    def test_ids_are_compared_where_both_are_known(self) -> None:
        a, b = result(0, 1.0, tokens=3, text="abc"), result(0, 1.0, tokens=3, text="abc")
        a.token_ids, b.token_ids = (1, 2, 3), (1, 2, 4)
        found = compare("none", [Round([a])], [Round([b])])
        assert (found.compared, found.different, found.first) == (1, 1, (0, 2))
        b.token_ids = None  # a server's: only texts are left
        assert compare("none", [Round([a])], [Round([b])]).first is None

    def test_every_round_is_compared_with_the_first_answer(self) -> None:
        truth = [Round([result(i, 1.0, tokens=2, text=f"text {i}") for i in range(3)])]
        shorter = result(2, 1.0, tokens=1, text="text")
        other = [
            Round([result(0, 1.0, tokens=2, text="text 0"), result(1, tokens=0, error="no")]),
            Round([shorter, result(1, 1.0, tokens=2, text="test 1"), result(7, 1.0, tokens=2)]),
        ]
        found = compare("none", truth, other)
        assert (found.compared, found.different, found.first) == (3, 2, (1, 2))
        assert compare("none", truth, [Round([shorter])]).first == (2, 4)
