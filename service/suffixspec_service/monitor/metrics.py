"""The Prometheus metrics that are counted from records, in a registry of their own.

Speculation counters have vLLM's names, so that dashboards and alerts made for vLLM work here; what
vLLM has no name for begins with ``suffixspec_``. docs/metrics.md lists them all.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from suffixspec_index.draft import Source
from suffixspec_service.monitor.labels import OTHER, BoundedLabels
from suffixspec_service.monitor.records import RequestRecord

POSITIONS = 64
"""Draft positions with a counter of their own; deeper ones share the last, ``"64+"``."""

SOURCES = frozenset(source.label for source in Source)
APIS = frozenset({"chat", "completions", "responses", "grpc", "drafting"})
STATUSES = 24

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_PROPOSE = (5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.2)
_TOKENS_PER_STEP = (1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 12, 16, 32)
_LAG = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1, 5)


class RequestMetrics:
    """Counters and histograms, fed with records. The monitor's lock guards :meth:`count`.

    Args:
        registry: where they are registered.
        tenants: most tenants with figures of their own.
    """

    def __init__(self, registry: CollectorRegistry, *, tenants: int) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series per counter that nobody reads
        self.tenant_label = BoundedLabels(tenants)
        self._model_label = BoundedLabels(16)
        self._status_label = BoundedLabels(STATUSES)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        self._vllm_drafts = counter(
            "vllm:spec_decode_num_drafts", "Steps with a draft.", "model_name"
        )
        self._vllm_drafted = counter(
            "vllm:spec_decode_num_draft_tokens", "Draft tokens.", "model_name"
        )
        self._vllm_accepted = counter(
            "vllm:spec_decode_num_accepted_tokens", "Accepted draft tokens.", "model_name"
        )
        self._vllm_positions = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens by their position in the draft, from 0.",
            "model_name",
            "position",
        )
        self._requests = counter(
            "suffixspec_requests", "Finished requests.", "tenant", "api", "status"
        )
        self._prompt = counter("suffixspec_prompt_tokens", "Prompt tokens.", "tenant")
        self._cached = counter(
            "suffixspec_cached_prompt_tokens",
            "Prompt tokens whose keys and values were still in the cache.",
            "tenant",
        )
        self._output = counter("suffixspec_output_tokens", "Output tokens.", "tenant")
        self._steps = counter(
            "suffixspec_steps", "Forward passes that gave a request output tokens.", "tenant"
        )
        self._draft_steps = counter(
            "suffixspec_draft_steps", "Of them those with a draft.", "tenant"
        )
        self._drafted = counter("suffixspec_draft_tokens", "Draft tokens.", "tenant", "source")
        self._accepted = counter(
            "suffixspec_accepted_tokens", "Accepted draft tokens.", "tenant", "source"
        )
        self._tokens_per_step = histogram(
            "suffixspec_request_tokens_per_step",
            "Output tokens per step of a request, steps without a draft included.",
            _TOKENS_PER_STEP,
            "tenant",
        )
        self._ttft = histogram(
            "suffixspec_time_to_first_token_seconds",
            "From a request's arrival to its first output token.",
            _LATENCY,
            "tenant",
        )
        self._gaps = histogram(
            "suffixspec_inter_token_seconds",
            "Between two deliveries of output to a caller; one may hold several tokens.",
            _LATENCY,
            "tenant",
        )
        self._duration = histogram(
            "suffixspec_request_seconds", "From a request's arrival to its end.", _LATENCY, "tenant"
        )
        self.propose = histogram(
            "suffixspec_propose_seconds",
            "One call of a proposer for other engines: a batch of requests.",
            _PROPOSE,
        )
        self.proposals = counter(
            "suffixspec_proposals", "Requests of other engines that a proposer drafted for."
        )
        self.loop_lag = histogram(
            "suffixspec_event_loop_lag_seconds",
            "How much later than due the event loop came back to a timer.",
            _LAG,
        )

    def count(self, record: RequestRecord) -> None:
        """Count one record. O(sources + positions + gaps)."""
        self._count_vllm(record)
        tenant = self.tenant_label(record.tenant)
        self._requests.labels(
            tenant,
            record.api if record.api in APIS else OTHER,
            self._status_label(record.status),
        ).inc()
        for counter, amount in (
            (self._prompt, record.prompt_tokens),
            (self._cached, record.cached_tokens),
            (self._output, record.output_tokens),
            (self._steps, record.steps),
            (self._draft_steps, record.steps_with_draft),
        ):
            counter.labels(tenant).inc(amount)
        for source, (drafted, accepted) in record.by_source.items():
            label = source if source in SOURCES else OTHER
            self._drafted.labels(tenant, label).inc(drafted)
            self._accepted.labels(tenant, label).inc(accepted)
        if record.steps:
            self._tokens_per_step.labels(tenant).observe(record.output_tokens / record.steps)
        if record.ttft_s is not None:
            self._ttft.labels(tenant).observe(record.ttft_s)
        gaps = self._gaps.labels(tenant)
        for gap in record.gaps_s:
            gaps.observe(gap)
        self._duration.labels(tenant).observe(record.duration_s)

    def _count_vllm(self, record: RequestRecord) -> None:
        model = self._model_label(record.model)
        self._vllm_drafts.labels(model).inc(record.steps_with_draft)
        self._vllm_drafted.labels(model).inc(record.drafted)
        self._vllm_accepted.labels(model).inc(record.accepted)
        for position, accepted in enumerate(record.accepted_per_position):
            label = str(position) if position < POSITIONS else f"{POSITIONS}+"
            self._vllm_positions.labels(model, label).inc(accepted)
