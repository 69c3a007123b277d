"""From step logs to a report: every figure by counting the log's events."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.draft import Source
from suffixspec_index.errors import InputError
from suffixspec_traces.cost.model import PointsCost, RooflineCost
from suffixspec_traces.cost.predict import DecodeWork, predict
from suffixspec_traces.cost.proposing import ProposingCost
from suffixspec_traces.model import ReadReport
from suffixspec_traces.replay.decode import ReplayResult
from suffixspec_traces.replay.log import Step, StepLog
from suffixspec_traces.report.bootstrap import ratio_interval
from suffixspec_traces.report.claims import claims_of
from suffixspec_traces.report.groups import Grouped, bucket_labels, bucketed
from suffixspec_traces.report.model import (
    Calibration,
    CalibrationBefore,
    CostInfo,
    CurvePoint,
    Distribution,
    GroupRow,
    Interval,
    MethodReport,
    PositionRow,
    ReliabilityBin,
    ReplayReport,
    RunInfo,
    SessionRow,
    SkippedRow,
    SourceRow,
    SpeedupRow,
    Timing,
    rate,
)

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128)
MATCH_EDGES = (0, 1, 2, 3, 4, 5, 9, 17, 33, 65)
TURN_EDGES = (1, 2, 3, 4, 5, 6, 8, 11, 16, 21, 31, 51)
CURVE_POINTS = 40
RELIABILITY_BINS = 10

Cost = PointsCost | RooflineCost


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What the head of a report says about its making, and how intervals are drawn."""

    paths: Sequence[str] = ()
    read: ReadReport = field(default_factory=ReadReport)
    tokenizer: Mapping[str, object] = field(default_factory=dict)
    version: str = ""
    bootstrap_samples: int = 1000
    bootstrap_seed: int = 0


def build_report(
    results: Sequence[ReplayResult], cost: Cost, options: ReportOptions | None = None
) -> ReplayReport:
    """The report over replays of one plan, in the order given. O(steps + draft nodes).

    Raises:
        InputError: no results, or they are of different plans.
    """
    options = options or ReportOptions()
    if not results:
        raise InputError("report: no replay results; replay at least one method")
    plan = results[0].plan
    if any(r.plan is not plan for r in results):
        raise InputError("report: the results are of different plans; replay all over one plan")
    return ReplayReport(
        run=RunInfo(
            suffixspec_version=options.version,
            paths=list(options.paths),
            formats=dict(options.read.formats),
            skipped=[
                SkippedRow(path=s.path, line=s.line, reason=s.reason) for s in options.read.skipped
            ],
            tokenizer=dict(options.tokenizer),
            order=plan.order,
            seed=plan.seed,
            concurrency=plan.concurrency,
            sessions=len(plan.sessions),
            turns=len(plan.turns),
            prompt_tokens=sum(len(p.turn.prompt) for p in plan.turns),
            output_tokens=plan.output_tokens,
            bootstrap_samples=options.bootstrap_samples,
            bootstrap_seed=options.bootstrap_seed,
            machine=f"{platform.system()} {platform.machine()}, {_python()}",
        ),
        cost_model=CostInfo(name=cost.name, kind=cost.kind, provenance=cost.provenance),
        methods=[_Method(result, cost, options).report() for result in results],
    )


class _Method:
    """The figures of one result; step arrays are gathered once."""

    def __init__(self, result: ReplayResult, cost: Cost, options: ReportOptions) -> None:
        self.result, self.cost, self.options = result, cost, options
        self.log, self.plan = result.log, result.plan
        turns = self.plan.turns
        self.turn = self.log.column(Step.TURN)
        self.turn_session = np.array([t.session for t in turns], np.int64)
        self.turn_prompt = np.array([len(t.turn.prompt) for t in turns], np.int64)
        self.turn_number = np.array([t.number + 1 for t in turns], np.int64)
        self.session = self.turn_session[self.turn]
        self.by_session = Grouped.of(self.log, self.session, len(self.plan.sessions))
        self.proposing = ProposingCost.of(
            self.log.column(Step.BATCH), self.log.propose_ns + self.log.advance_ns
        )
        self.context = self.turn_prompt[self.turn] + self.log.column(Step.POSITION)

    def report(self) -> MethodReport:
        """All parts."""
        log = self.log
        totals = Grouped.of(log, np.zeros(len(log), np.int64), 1).counts(0)
        predicted = self._predicted()
        turns_done = np.bincount(self.turn_session[np.unique(self.turn)])
        return MethodReport(
            label=self.result.label,
            config=self.result.config,
            partial=self.result.partial,
            sessions_completed=self._completed(),
            totals=totals,
            tokens_per_step=self._interval("output_tokens", "steps"),
            acceptance_rate=self._interval("accepted", "drafted"),
            speedup=self._speedup_interval(),
            by_position=positions(log),
            by_match_length=self._buckets(log.column(Step.MATCH_LEN), MATCH_EDGES),
            by_source=sources(log),
            by_turn=self._buckets(self.turn_number[self.turn], TURN_EDGES),
            by_tool=self._named(lambda i: self.plan.turns[i].turn.tool or "(no tool call)"),
            by_workload=self._named(self._workload),
            speedup_by_workload=self._workload_speedups(),
            cold_to_warm=self._curve(),
            sessions=[
                SessionRow(
                    id=session.id,
                    source=session.source,
                    turns=int(turns_done[s]) if s < len(turns_done) else 0,
                    counts=self.by_session.counts(s),
                )
                for s, session in enumerate(self.plan.sessions)
                if self.by_session.steps[s]
            ],
            session_tokens_per_step=distribution(self.by_session),
            calibration=calibration(log.node_probs, log.node_accepted),
            calibration_before=calibration_before(self.result),
            timing=self._timing(),
            predicted=predicted,
        )

    def _completed(self) -> int:
        decoded = np.bincount(self.turn, self.log.column(Step.GAINED), len(self.plan.turns))
        complete = decoded >= [t.output_tokens for t in self.plan.turns]
        per_session = np.bincount(self.turn_session, ~complete, len(self.plan.sessions))
        return int((per_session == 0).sum())

    def _interval(self, part: str, whole: str) -> Interval:
        return ratio_interval(
            getattr(self.by_session, part),
            getattr(self.by_session, whole),
            samples=self.options.bootstrap_samples,
            seed=self.options.bootstrap_seed,
        )

    def _buckets(self, values: NDArray[np.integer], edges: Sequence[int]) -> list[GroupRow]:
        return Grouped.of(self.log, bucketed(values, edges), len(edges)).rows(bucket_labels(edges))

    def _named(self, name: Callable[[int], str]) -> list[GroupRow]:
        """Groups of turns by a name, the largest first."""
        names = [name(i) for i in range(len(self.plan.turns))]
        labels, codes = _coded(names)
        rows = Grouped.of(self.log, codes[self.turn], len(labels)).rows(labels)
        return sorted(rows, key=lambda row: (-row.counts.output_tokens, row.group))

    def _workload(self, turn: int) -> str:
        return self.plan.sessions[self.plan.turns[turn].session].source or "(unnamed)"

    def _curve(self) -> list[CurvePoint]:
        """Equal numbers of sessions a point, in order of their start."""
        tokens, steps = self.by_session.output_tokens, self.by_session.steps
        seen = int(np.flatnonzero(steps)[-1]) + 1 if steps.any() else 0
        edges = np.unique(np.linspace(0, seen, min(CURVE_POINTS, seen) + 1).astype(np.int64))
        total_tokens, total_steps = np.cumsum(tokens), np.cumsum(steps)
        return [
            CurvePoint(
                first_session=int(a) + 1,
                last_session=int(b),
                output_tokens=int(tokens[a:b].sum()),
                steps=int(steps[a:b].sum()),
                cumulative_output_tokens=int(total_tokens[b - 1]),
                cumulative_steps=int(total_steps[b - 1]),
            )
            for a, b in pairwise(edges)
        ]

    def _timing(self) -> Timing:
        result, propose = self.result, self.log.propose_ns
        p50, p99 = np.percentile(propose, (50, 99)) if len(propose) else (None, None)
        return Timing(
            propose_ns=int(propose.sum()),
            advance_ns=int(self.log.advance_ns.sum()),
            begin_ns=int(result.begin_ns.sum()),
            finish_ns=int(result.finish_ns.sum()),
            propose_ns_p50=None if p50 is None else int(p50),
            propose_ns_p99=None if p99 is None else int(p99),
            wall_s=result.wall_s,
            output_tokens_per_s=rate(float(self.log.column(Step.GAINED).sum()), result.wall_s),
        )

    # -- prediction ----------------------------------------------------------------------------

    def _work(self, n: int, chosen: NDArray[np.bool_] | slice = slice(None)) -> DecodeWork:
        """What the steps of ``chosen`` ask of the target model, ``n`` requests at a time."""
        gained = self.log.column(Step.GAINED)[chosen].astype(np.int64)
        context = self.context[chosen]
        tokens = int(gained.sum())
        # The g tokens of a step at context c would have read c, c + 1, ... c + g - 1.
        read = float((gained * context + gained * (gained - 1) // 2).sum())
        touched = np.unique(self.turn[chosen])
        overhead_ns = (
            self.proposing.request_ns[chosen].sum()
            + self.result.begin_ns[touched].sum()
            + self.result.finish_ns[touched].sum()
        )
        return DecodeWork(
            tokens=tokens,
            drafted=self.log.column(Step.DRAFTED)[chosen],
            step_context=context,
            token_context=read / tokens if tokens else 0.0,
            overhead_ms=float(overhead_ns) / 1e6,
            batch=self.log.column(Step.BATCH)[chosen] if self.result.load == n else None,
            call_ms=self.proposing.call_ns / 1e6,
        )

    def _predicted(self) -> list[SpeedupRow]:
        if not len(self.log):
            return []
        largest = 1 + int(self.log.column(Step.DRAFTED).max())
        limit = self.cost.measured_tokens
        rows = []
        for n in sorted({*CONCURRENCIES, self.plan.concurrency}):
            prediction = predict(self.cost, self._work(n), n)
            rows.append(
                SpeedupRow(
                    concurrency=n,
                    plain_ms_per_token=prediction.plain_ms_per_token,
                    ms_per_token=prediction.ms_per_token,
                    proposer_ms_per_token=prediction.proposer_ms_per_token,
                    speedup=prediction.speedup,
                    extrapolated=limit is not None and n * largest > limit,
                )
            )
        return rows

    def _workload_speedups(self) -> dict[str, float]:
        names = [self._workload(i) for i in range(len(self.plan.turns))]
        labels, codes = _coded(names)
        n = self.plan.concurrency
        step_codes = codes[self.turn]
        return {
            label: predict(self.cost, self._work(n, step_codes == code), n).speedup
            for code, label in enumerate(labels)
            if (step_codes == code).any()
        }

    def _speedup_interval(self) -> Interval:
        """The prediction at the replay's concurrency, with an interval over sessions.

        Per session: the time plain decoding would take, and the time with speculation; both are
        sums, so that the quotient is resampled like any other ratio. Exact at concurrency 1;
        above it, the mean cost of a step by its own size stands for the mixed batch's.
        """
        row = next((r for r in self._predicted() if r.concurrency == self.plan.concurrency), None)
        if row is None:
            return Interval(value=None, low=None, high=None)
        n, sessions = self.plan.concurrency, len(self.plan.sessions)
        gained = self.log.column(Step.GAINED)
        step_ms = self.cost.step_ms(n * (1 + self.log.column(Step.DRAFTED)), n * self.context, n)
        proposer = np.bincount(self.session, self.proposing.request_ns, sessions) + np.bincount(
            self.turn_session, self.result.begin_ns + self.result.finish_ns, sessions
        )
        calls = self.by_session.steps * self.proposing.call_ns
        plain = np.bincount(
            self.session, gained * self.cost.step_ms(n, n * self.context, n), sessions
        )
        with_drafts = np.bincount(self.session, step_ms, sessions) + (n * proposer + calls) / 1e6
        spread = ratio_interval(
            plain,
            with_drafts,
            samples=self.options.bootstrap_samples,
            seed=self.options.bootstrap_seed,
        )
        if spread.value is None or spread.low is None or spread.high is None:
            return Interval(value=row.speedup, low=None, high=None)
        scale = row.speedup / spread.value
        return Interval(value=row.speedup, low=spread.low * scale, high=spread.high * scale)


def positions(log: StepLog) -> list[PositionRow]:
    """Acceptance by draft position, conditional on having come so far."""
    drafted = np.bincount(log.node_depths)
    size = len(drafted)
    # Steps that reached at least depth d: those whose deepest decision lies at d or below.
    reached = np.cumsum(np.bincount(log.column(Step.REACHED), minlength=size)[::-1])[::-1]
    accepted = np.cumsum(np.bincount(log.column(Step.ACCEPTED), minlength=size)[::-1])[::-1]
    return [
        PositionRow(
            position=d, drafted=int(drafted[d]), reached=int(reached[d]), accepted=int(accepted[d])
        )
        for d in range(1, size)
    ]


def sources(log: StepLog) -> list[SourceRow]:
    """Draft tokens by source, those that drafted nothing left out."""
    codes = log.node_sources
    drafted = np.bincount(codes, minlength=len(Source))
    accepted = np.bincount(codes[log.node_accepted], minlength=len(Source))
    output = int(log.column(Step.GAINED).sum())
    return [
        SourceRow(
            source=source.label,
            drafted=int(drafted[source]),
            accepted=int(accepted[source]),
            output_share=float(accepted[source] / output) if output else 0.0,
        )
        for source in Source
        if drafted[source]
    ]


def distribution(by_session: Grouped) -> Distribution | None:
    """Tokens per step over sessions; ``None`` without any."""
    done = by_session.steps > 0
    if not done.any():
        return None
    values = by_session.output_tokens[done] / by_session.steps[done]
    low, p10, p25, p50, p75, p90, high = np.percentile(values, (0, 10, 25, 50, 75, 90, 100))
    return Distribution(
        sessions=len(values),
        mean=float(values.mean()),
        minimum=float(low),
        p10=float(p10),
        p25=float(p25),
        median=float(p50),
        p75=float(p75),
        p90=float(p90),
        maximum=float(high),
    )


def calibration(probs: NDArray[np.float32], accepted: NDArray[np.bool_]) -> Calibration:
    """Reliability curve, Brier score and calibration error of the drafts' probabilities."""
    p = probs.astype(np.float64)
    code = np.minimum((p * RELIABILITY_BINS).astype(np.int64), RELIABILITY_BINS - 1)
    n = np.bincount(code, minlength=RELIABILITY_BINS)
    hits = np.bincount(code, accepted, RELIABILITY_BINS)
    mass = np.bincount(code, p, RELIABILITY_BINS)
    total = len(p)
    return Calibration(
        brier_score=float(np.mean((p - accepted) ** 2)) if total else None,
        expected_calibration_error=float(np.abs(hits - mass).sum() / total) if total else None,
        bins=[
            ReliabilityBin(
                low=b / RELIABILITY_BINS,
                high=(b + 1) / RELIABILITY_BINS,
                drafted=int(n[b]),
                accepted=int(hits[b]),
                mean_probability=rate(float(mass[b]), float(n[b])),
            )
            for b in range(RELIABILITY_BINS)
        ],
    )


def calibration_before(result: ReplayResult) -> CalibrationBefore | None:
    """The calibration before and after learning, on the same draft tokens; ``None`` without any."""
    found = claims_of(result)
    if not len(found.nodes):
        return None
    accepted = result.log.node_accepted[found.nodes]
    return CalibrationBefore(
        basis=found.basis,
        before=calibration(found.probs, accepted),
        after=calibration(result.log.node_probs[found.nodes], accepted),
    )


def _python() -> str:
    return f"Python {platform.python_version()}"


def _coded(names: Sequence[str]) -> tuple[list[str], NDArray[np.int64]]:
    codes: dict[str, int] = {}
    return_codes = np.array([codes.setdefault(n, len(codes)) for n in names], np.int64)
    return list(codes), return_codes
