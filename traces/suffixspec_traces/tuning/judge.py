"""Judgement: the settings that were chosen, and their rivals, on the held-out sessions.

Every setting decodes the tuning part first, so that its index is as warm as it would be in
production, and then the held-out part, which alone is counted. All settings see the same sessions,
so differences are resampled in pairs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_traces.report.bootstrap import ratio_interval
from suffixspec_traces.report.model import Interval, rate
from suffixspec_traces.tuning.evaluate import Bench, Score
from suffixspec_traces.tuning.model import (
    ConcurrencyReport,
    JudgedRow,
    Paste,
    Role,
    SensitivityPoint,
    SensitivityRow,
    TrialRow,
    Verdict,
)
from suffixspec_traces.tuning.pastes import (
    ours_toml,
    ours_yaml,
    plugin_shell,
    settings_of,
    vllm_json,
)
from suffixspec_traces.tuning.search import Trial, best_of, one_by_one, pareto_front
from suffixspec_traces.tuning.space import (
    NGRAM,
    SUFFIX,
    VLLM_DEFAULT,
    VLLM_SUFFIX,
    our_default,
)

BOOTSTRAP_SAMPLES = 1000
NO_SPECULATION = SpeculativeConfig.from_dict({"method": "none", "dynamic": False})


@dataclass(frozen=True, slots=True)
class Rival:
    """A setting to judge, and the trial that found it (``None``: it was given)."""

    role: Role
    config: SpeculativeConfig
    trial: Trial | None


def rivals(trials: Sequence[Trial]) -> list[Rival]:
    """What is compared, the tuned setting first. Roles without a trial are left out."""
    found: list[Rival] = []

    def add(role: Role, trial: Trial | None) -> None:
        if trial is not None:
            found.append(Rival(role, trial.config, trial))

    paths = [t for t in trials if t.family is SUFFIX and t.values["draft_shape"] == "path"]
    add("tuned", best_of(trials))
    add("tuned, paths only", best_of(paths))
    add("tuned, as vLLM has it", best_of([t for t in trials if t.family is VLLM_SUFFIX]))
    add("best n-gram", best_of([t for t in trials if t.family is NGRAM]))
    for role, config in (("vLLM's defaults", VLLM_DEFAULT), ("our defaults", our_default())):
        tried = next((t for t in trials if t.config == config), None)
        found.append(Rival(role, config, tried))  # type: ignore[arg-type]
    return found


def judge(
    bench: Bench,
    concurrency: int,
    trials: Sequence[Trial],
    reference: Trial | None,
    *,
    cost_model: str,
    seed: int,
    stop: threading.Event | None = None,
    progress: Callable[[str], None] | None = None,
) -> ConcurrencyReport | None:
    """The report of one concurrency.

    Args:
        trials: at least one.
        reference: around which thresholds were tried one by one.
        cost_model: the name or file, as a configuration names it.
        progress: told what is being judged.

    Returns:
        The report; ``None`` if it was stopped before the tuned setting was judged. Rivals that it
        did not come to are left out.
    """
    chosen = rivals(trials)
    scores: dict[Role, Score] = {}
    known: dict[SpeculativeConfig, Score] = {}
    for rival in chosen:
        if progress is not None:
            progress(f"judging {rival.role}, {concurrency} at a time")
        if rival.config not in known:
            score = bench.evaluate(rival.config, concurrency, "judgement", stop)
            if score is None:
                break
            known[rival.config] = score
        scores[rival.role] = known[rival.config]
    if "tuned" not in scores:
        return None
    tuned = scores["tuned"]
    limit = bench.cost.measured_tokens
    rows = [
        _row(r, scores[r.role], tuned, seed, limit, concurrency) for r in chosen if r.role in scores
    ]
    rows.append(_no_speculation(tuned, seed, limit, concurrency))
    faster = any(t.total_ms_per_token < t.plain_ms_per_token for t in trials)
    verdict, recommended = _verdict(rows[0], faster=faster)
    return ConcurrencyReport(
        concurrency=concurrency,
        complete=len(scores) == len(chosen),
        verdict=verdict,
        sentence=_sentence(verdict, rows[0], concurrency),
        recommended=recommended,
        plain_ms_per_token=tuned.plain_ms_per_token,
        rows=rows,
        trials=_trial_rows(trials),
        sensitivity=_sensitivity(reference, trials),
        pastes=_pastes(
            {r.role: r.config for r in chosen if r.role in scores}, recommended, cost_model
        ),
    )


def _row(
    rival: Rival, score: Score, tuned: Score, seed: int, limit: int | None, concurrency: int
) -> JudgedRow:
    return JudgedRow(
        role=rival.role,
        config=settings_of(rival.config),
        tokens_per_step=score.tokens_per_step,
        acceptance_rate=rate(score.accepted, score.drafted),
        wasted_per_token=score.wasted_per_token,
        ms_per_token=score.total_ms_per_token,
        proposer_ms_per_token=score.proposer_ms_per_token,
        speedup=_ratio(score.plain_ms, score.spent_ms, seed),
        gain_of_tuned=_ratio(score.spent_ms, tuned.spent_ms, seed),
        extrapolated=limit is not None and concurrency * (1 + score.largest_draft) > limit,
        tuning_ms_per_token=rival.trial.total_ms_per_token if rival.trial else None,
    )


def _no_speculation(tuned: Score, seed: int, limit: int | None, concurrency: int) -> JudgedRow:
    return JudgedRow(
        role="no speculation",
        config=settings_of(NO_SPECULATION),
        tokens_per_step=1.0,
        acceptance_rate=None,
        wasted_per_token=0.0,
        ms_per_token=tuned.plain_ms_per_token,
        proposer_ms_per_token=0.0,
        speedup=Interval(value=1.0, low=1.0, high=1.0),
        gain_of_tuned=_ratio(tuned.plain_ms, tuned.spent_ms, seed),
        extrapolated=limit is not None and concurrency > limit,
        tuning_ms_per_token=None,
    )


def _ratio(parts: object, wholes: object, seed: int) -> Interval:
    return ratio_interval(parts, wholes, samples=BOOTSTRAP_SAMPLES, seed=seed)  # type: ignore[arg-type]


def _verdict(tuned: JudgedRow, *, faster: bool) -> tuple[Verdict, Role]:
    """What the tuned setting's interval says, and which row to use. ``faster``: on the tuning part
    some setting was faster than none."""
    low, high = tuned.speedup.low, tuned.speedup.high
    if high is not None and high < 1:
        return "does not pay", "no speculation"
    if low is not None and low > 1:
        return "pays", "tuned"
    return "undecided", "tuned" if faster else "no speculation"


def _sentence(verdict: Verdict, tuned: JudgedRow, concurrency: int) -> str:
    requests = "1 request at a time" if concurrency == 1 else f"{concurrency} requests at a time"
    spread = tuned.speedup
    figure = f"predicted speed-up {spread.value:.3f}"
    if spread.low is not None and spread.high is not None:
        figure += f", 95 % interval {spread.low:.3f} to {spread.high:.3f}"
    if verdict == "pays":
        return f"Speculation pays at {requests}: {figure}."
    if verdict == "does not pay":
        return (
            f"Speculation does not pay at {requests}: even the best setting found is slower than "
            f"none ({figure}). Switch it off there."
        )
    return f"Whether speculation pays at {requests} cannot be told from these sessions: {figure}."


def _trial_rows(trials: Sequence[Trial]) -> list[TrialRow]:
    front = {(t.family.name, t.number) for t in pareto_front(trials)}
    return [
        TrialRow(
            family=t.family.title,
            number=t.number,
            values=t.values,
            ms_per_token=t.ms_per_token,
            proposer_ms_per_token=t.proposer_ms_per_token,
            wasted_per_token=t.wasted_per_token,
            tokens_per_step=t.tokens_per_step,
            on_front=(t.family.name, t.number) in front,
            sweep=t.sweep,
        )
        for t in trials
    ]


def _sensitivity(reference: Trial | None, trials: Sequence[Trial]) -> list[SensitivityRow]:
    """Thresholds with more than one value tried, the most sensitive first."""
    if reference is None:
        return []
    rows = [
        SensitivityRow(
            threshold=name,
            reference=reference.values[name],
            points=[
                SensitivityPoint(
                    value=t.values[name],
                    ms_per_token=t.ms_per_token,
                    wasted_per_token=t.wasted_per_token,
                )
                for t in tried
            ],
        )
        for name, tried in one_by_one(reference, trials).items()
        if len(tried) > 1
    ]
    return sorted(rows, key=lambda row: -row.spread)


def _pastes(
    configs: dict[Role, SpeculativeConfig], recommended: Role, cost_model: str
) -> list[Paste]:
    """What to paste where, the recommended setting first. Roles that were not judged are left out.

    Where speculation is not recommended, ours says so; the others are for those who know better.
    """
    configs = configs | {"no speculation": NO_SPECULATION}
    pastes = [
        ours_yaml(configs[recommended], cost_model, recommended),
        ours_toml(configs[recommended], cost_model, recommended),
    ]
    built_in: tuple[Role, ...] = ("tuned, as vLLM has it", "best n-gram")
    pastes += [vllm_json(configs[role], role) for role in built_in if role in configs]
    plugin: Role = "tuned, paths only"
    if plugin in configs:
        pastes.append(plugin_shell(configs[plugin], plugin))
    return pastes
