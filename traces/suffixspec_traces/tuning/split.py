"""Splitting sessions in time: what warms the index, what is tuned on, what judges the result.

Thresholds that were chosen on some sessions look better on these than they are, and what a session
says leaks into every later one through the index. So the parts follow each other in time: the last
sessions are held out, and nothing of them is seen before the thresholds stand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from suffixspec_index.errors import ConfigError, InputError
from suffixspec_traces.model import TokenSession

_LEAST = 4  # sessions of a workload that are split on their own; smaller ones are pooled
_WARM_SHARE = 1 / 3  # of the tuning part

Sessions = tuple[TokenSession, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """Three groups of sessions, in time order within every workload.

    Attributes:
        warm: the first sessions of the tuning part: a trial decodes them to warm its index.
        tuning: the rest of the tuning part: what a trial's figures are taken from.
        held_out: what the final figures are taken from, behind an index that decoded ``history``.
        history: the whole tuning part; longer than ``warm + tuning`` under a limit of tokens.
    """

    warm: Sessions
    tuning: Sessions
    held_out: Sessions
    history: Sessions

    @staticmethod
    def split(
        sessions: Iterable[TokenSession],
        *,
        held_out: float = 0.3,
        trial_tokens: int | None = None,
    ) -> Parts:
        """Split every workload (``source``) by itself, so that each is in every part.

        Within a workload sessions go by their start where all have one, else in recorded order;
        workloads are interleaved evenly.

        Args:
            sessions: those without output are left out.
            held_out: share of each workload's sessions, the latest, that are held out.
            trial_tokens: a trial decodes the latest sessions of the tuning part, up to so many
                output tokens; ``None``: all.

        Raises:
            ConfigError: the share is not between 0 and 1, or the limit is below 1.
            InputError: fewer than four sessions with output: nothing could be held out.
        """
        if not 0 < held_out < 1:
            raise ConfigError(f"held_out: must be between 0 and 1, got {held_out}")
        if trial_tokens is not None and trial_tokens < 1:
            raise ConfigError(f"trial_tokens: must be at least 1, got {trial_tokens}")
        chosen = [s for s in sessions if s.output_tokens]
        if len(chosen) < _LEAST:
            raise InputError(
                f"traces: {len(chosen)} sessions with output cannot be split; give at least "
                f"{_LEAST}, so that thresholds can be judged on sessions they were not chosen on"
            )
        before: list[list[TokenSession]] = []
        after: list[list[TokenSession]] = []
        for group in _workloads(chosen):
            cut = len(group) - min(max(round(held_out * len(group)), 1), len(group) - 1)
            before.append(group[:cut])
            after.append(group[cut:])
        history = _interleaved(before)
        recent = _latest(history, trial_tokens)
        warm = math.floor(_WARM_SHARE * len(recent))
        return Parts(
            warm=tuple(recent[:warm]),
            tuning=tuple(recent[warm:]),
            held_out=tuple(_interleaved(after)),
            history=tuple(history),
        )


def output_tokens(sessions: Sequence[TokenSession]) -> int:
    """Output tokens of all sessions."""
    return sum(s.output_tokens for s in sessions)


def _workloads(sessions: Sequence[TokenSession]) -> list[list[TokenSession]]:
    """Sessions by workload, in time order; workloads too small to be split form one together."""
    groups: dict[str, list[TokenSession]] = {}
    for session in sessions:
        groups.setdefault(session.source, []).append(session)
    large = [g for g in groups.values() if len(g) >= _LEAST]
    small = [s for s in sessions if len(groups[s.source]) < _LEAST]
    if len(small) >= 2 or not large:
        large.append(small)
    elif small:
        large[0] = large[0] + small
    return [_in_time(g) for g in large]


def _in_time(sessions: list[TokenSession]) -> list[TokenSession]:
    starts = [s.start for s in sessions]
    if any(start is None for start in starts):
        return sessions
    return sorted(sessions, key=lambda s: s.start or 0.0)


def _interleaved(groups: Sequence[Sequence[TokenSession]]) -> list[TokenSession]:
    """All groups spread evenly over the whole, each in its order."""
    placed = [
        ((i + 0.5) / len(group), g, session)
        for g, group in enumerate(groups)
        for i, session in enumerate(group)
    ]
    return [session for _, _, session in sorted(placed, key=lambda p: p[:2])]


def _latest(sessions: list[TokenSession], tokens: int | None) -> list[TokenSession]:
    """The latest sessions within the limit, at least two of them."""
    if tokens is None:
        return sessions
    kept, first = 0, len(sessions)
    while first and (kept + sessions[first - 1].output_tokens <= tokens):
        first -= 1
        kept += sessions[first].output_tokens
    return sessions[min(first, max(len(sessions) - 2, 0)) :]
