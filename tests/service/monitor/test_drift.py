"""The alarm: soon where acceptance falls, never on noise, and it ends."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import structlog

from suffixspec_service.monitor import Monitor
from suffixspec_service.monitor.drift import DriftConfig, DriftDetector, DriftEvent
from tests.service.monitor.recorded import drafting


def requests(
    rng: random.Random, level: float, count: int, *, session: int = 8
) -> Iterator[tuple[int, int]]:
    """Drafted and accepted of requests: sessions differ, requests within them differ, and tokens
    are drawn on top."""
    base = level
    for number in range(count):
        if number % session == 0:
            base = rng.betavariate(level * 12, (1 - level) * 12)
        share = rng.betavariate(max(0.05, base) * 10, max(0.05, 1 - base) * 10)
        drafted = rng.randint(20, 200)
        yield drafted, sum(rng.random() < share for _ in range(drafted))


def feed(
    detector: DriftDetector, stream: Iterator[tuple[int, int]], at: float = 0.0
) -> list[DriftEvent]:
    events = [detector.add(d, a, at + i) for i, (d, a) in enumerate(stream)]
    return [event for event in events if event is not None]


@pytest.mark.parametrize(("level", "session"), [(0.8, 1), (0.8, 8), (0.5, 4), (0.3, 8)])
def test_stationary_noise_raises_no_alarm(level: float, session: int) -> None:
    alarms = 0
    for seed in range(25):
        rng = random.Random(seed)
        alarms += len(feed(DriftDetector(), requests(rng, level, 800, session=session)))
    assert alarms == 0


@pytest.mark.parametrize("seed", range(25))
def test_a_fall_from_80_to_40_percent_is_noticed_within_ten_blocks(seed: int) -> None:
    rng, detector = random.Random(seed), DriftDetector()
    assert feed(detector, requests(rng, 0.8, 400)) == []
    events = feed(detector, requests(rng, 0.4, 80), at=1000.0)
    assert [e.kind for e in events] == ["raised"]
    assert events[0].baseline == pytest.approx(0.8, abs=0.08)
    assert events[0].recent < events[0].baseline - 0.1
    assert detector.alarmed
    assert detector.alarm_since == events[0].at
    # Hysteresis: a third of the way back is not back.
    assert feed(detector, requests(rng, 0.53, 80), at=2000.0) == []
    back = feed(detector, requests(rng, 0.8, 200), at=3000.0)
    assert [e.kind for e in back] == ["cleared"]
    assert not detector.alarmed


def test_one_strange_session_is_not_enough() -> None:
    rng, detector = random.Random(1), DriftDetector()
    feed(detector, requests(rng, 0.8, 400))
    assert feed(detector, iter([(5000, 0)])) == []
    assert feed(detector, requests(rng, 0.8, 100)) == []


def test_nothing_is_said_without_a_past() -> None:
    detector = DriftDetector()
    assert feed(detector, iter([(100, 90)] * 40 + [(100, 10)] * 30)) == []
    assert detector.baseline is None
    # Four whole blocks of eight requests, the first of them before the fall, and six requests.
    assert detector.recent == pytest.approx((800 * 0.9 + 2400 * 0.1 + 600 * 0.1) / 3800)


def test_a_rise_is_no_alarm() -> None:
    rng, detector = random.Random(2), DriftDetector()
    assert feed(detector, requests(rng, 0.3, 300)) == []
    assert feed(detector, requests(rng, 0.8, 300)) == []


def test_a_level_that_stays_becomes_the_baseline() -> None:
    config = DriftConfig(adopt_blocks=20)
    rng, detector = random.Random(3), DriftDetector(config)
    feed(detector, requests(rng, 0.8, 300))
    events = feed(detector, requests(rng, 0.4, 400))
    assert [e.kind for e in events] == ["raised", "adopted"]
    assert detector.baseline == pytest.approx(0.4, abs=0.08)
    assert feed(detector, requests(rng, 0.4, 200)) == []


def test_requests_without_drafts_tell_nothing() -> None:
    detector = DriftDetector()
    assert detector.add(0, 0, 1.0) is None
    assert detector.recent is None


def test_an_alarm_is_metric_log_and_list_entry() -> None:
    monitor = Monitor()
    rng = random.Random(5)
    with structlog.testing.capture_logs() as logs:
        for level, count in ((0.8, 300), (0.4, 100)):
            for drafted, accepted in requests(rng, level, count):
                monitor.observe(drafting(accepted / drafted, drafted=drafted))
    (entry,) = [log for log in logs if log["event"] == "acceptance_drift_raised"]
    assert entry["log_level"] == "warning"
    assert entry["namespace"] == "local/smollm2/abc"
    label = b'{namespace="local/smollm2/abc"}'
    text = monitor.exposition()
    assert b"suffixspec_acceptance_alert" + label + b" 1.0" in text
    assert b"suffixspec_acceptance_alerts_total" + label + b" 1.0" in text
    (state,) = monitor.acceptance()
    assert state.alarmed_since is not None
    assert [a.event.kind for a in monitor.alerts()] == ["raised"]
    assert monitor.alerts("somebody else") == []
    assert monitor.acceptance("somebody else") == []
