"""Calls counted for Prometheus, as grpc-prometheus names them."""

from __future__ import annotations

from typing import ClassVar
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Histogram

_BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class CallMetrics:
    """Calls by method and status, and how long they took in the service; :meth:`of` makes one."""

    _known: ClassVar[WeakKeyDictionary[CollectorRegistry, CallMetrics]] = WeakKeyDictionary()

    @classmethod
    def of(cls, registry: CollectorRegistry) -> CallMetrics:
        """Those of a registry, which takes each name once; several servers share them."""
        found = cls._known.get(registry)
        if found is None:
            found = cls._known[registry] = cls(registry)
        return found

    def __init__(self, registry: CollectorRegistry) -> None:
        self._handled = Counter(
            "grpc_server_handled",
            "gRPC calls by method and status.",
            ("grpc_method", "grpc_code"),
            registry=registry,
        )
        self._seconds = Histogram(
            "grpc_server_handling_seconds",
            "Seconds in the handlers of gRPC calls; for streams, of each message.",
            ("grpc_method",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self._message_seconds = self._seconds.labels("Stream")

    def count(self, method: str, code: str, seconds: float) -> None:
        """One call ended. Methods are our own, so there are only so many labels."""
        name = method.rpartition("/")[2]
        self._handled.labels(name, code).inc()
        if name not in ("Stream", "Generate"):
            self._seconds.labels(name).observe(seconds)

    def message(self, seconds: float) -> None:
        """One message of a drafting stream was answered."""
        self._message_seconds.observe(seconds)
