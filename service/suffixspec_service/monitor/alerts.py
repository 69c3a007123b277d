"""Acceptance of every namespace against its own past, and the alarms that come of it."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from suffixspec_service.logs import get_logger
from suffixspec_service.monitor.drift import DriftConfig, DriftDetector, DriftEvent
from suffixspec_service.monitor.records import RequestRecord

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A namespace's acceptance at one moment.

    Attributes:
        recent, baseline: lately and before, in [0, 1]; ``None``: not enough evidence.
        alarmed_since: epoch seconds; ``None``: no alarm.
        alarms: how many there were.
        history: of the latest blocks of requests: when each ended, and its acceptance.
    """

    namespace: str
    tenant: str
    recent: float | None
    baseline: float | None
    alarmed_since: float | None
    alarms: int
    history: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Alert:
    """An alarm in the list of those that were: what happened in which namespace."""

    namespace: str
    tenant: str
    event: DriftEvent


@dataclass(slots=True)
class _Watched:
    tenant: str
    detector: DriftDetector
    alarms: int = 0


class AcceptanceWatch:
    """A detector per namespace. Not thread-safe; the monitor's lock guards it.

    Args:
        config: of the detectors.
        namespaces: most that are watched; the one that was quiet for longest goes.
        events: how many past events are kept.
    """

    def __init__(
        self, config: DriftConfig | None = None, *, namespaces: int = 200, events: int = 200
    ) -> None:
        self._config = config or DriftConfig()
        self._limit = namespaces
        self._watched: OrderedDict[str, _Watched] = OrderedDict()
        self._events: deque[Alert] = deque(maxlen=events)

    def add(self, record: RequestRecord, at: float) -> Alert | None:
        """Count a request that ended ``at`` epoch seconds; what it led to is logged. O(1)."""
        if not record.drafted:
            return None
        watched = self._watched.pop(record.namespace, None)
        if watched is None:
            watched = _Watched(record.tenant, DriftDetector(self._config))
            if len(self._watched) >= self._limit:
                self._watched.popitem(last=False)
        self._watched[record.namespace] = watched
        event = watched.detector.add(record.drafted, record.accepted, at)
        if event is None:
            return None
        watched.alarms += event.kind == "raised"
        alert = Alert(record.namespace, watched.tenant, event)
        self._events.append(alert)
        _write_log(alert)
        return alert

    def states(self, tenant: str | None = None) -> list[Acceptance]:
        """Every namespace, or those of one tenant; those with an alarm first."""
        states = [
            Acceptance(
                namespace=name,
                tenant=watched.tenant,
                recent=watched.detector.recent,
                baseline=watched.detector.baseline,
                alarmed_since=watched.detector.alarm_since,
                alarms=watched.alarms,
                history=tuple(watched.detector.history),
            )
            for name, watched in self._watched.items()
            if tenant is None or watched.tenant == tenant
        ]
        return sorted(states, key=lambda s: (s.alarmed_since is None, s.namespace))

    def events(self, tenant: str | None = None) -> list[Alert]:
        """What happened, latest first."""
        return [a for a in reversed(self._events) if tenant is None or a.tenant == tenant]


def _write_log(alert: Alert) -> None:
    event = alert.event
    say = _log.warning if event.kind == "raised" else _log.info
    say(
        f"acceptance_drift_{event.kind}",
        namespace=alert.namespace,
        tenant=alert.tenant,
        baseline=round(event.baseline, 4),
        recent=round(event.recent, 4),
    )
