"""The plan of a replay: which turns are decoded, in which order.

A plan is made once and used for every method of a comparison, so that all of them see the same
sessions, turns and order, however many steps each needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import ConfigError
from suffixspec_traces.model import TokenSession, Turn

Order = Literal["recorded", "interleaved by time", "shuffled"]


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """A turn to decode. ``number`` is its place in the session (0-based); the output tokens are
    ``outputs[start:end]`` of the plan, which may be fewer than recorded under a token limit."""

    session: int
    number: int
    turn: Turn
    start: int
    end: int
    last: bool  # of its session, within this plan

    @property
    def output_tokens(self) -> int:
        """Output tokens to decode."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Sessions and turns in the order in which they are decoded.

    Attributes:
        sessions: in order of their start.
        turns: those with output, in decoding order of a sequential replay. Under
            ``concurrency > 1`` the turns of a session keep their order and sessions start in
            order, and steps interleave.
        outputs: ``(tokens,)`` int32, the outputs of ``turns`` one after the other.
        order: what decided it.
        concurrency: sessions in flight.
        seed: of the shuffle; ``None`` when nothing was shuffled.
    """

    sessions: tuple[TokenSession, ...]
    turns: tuple[PlannedTurn, ...]
    outputs: NDArray[np.int32]
    order: Order
    concurrency: int
    seed: int | None

    @staticmethod
    def build(
        sessions: Iterable[TokenSession],
        *,
        shuffle: bool = False,
        seed: int = 0,
        concurrency: int | None = None,
        limit_sessions: int | None = None,
        limit_tokens: int | None = None,
    ) -> ReplayPlan:
        """Order sessions and turns.

        Args:
            sessions: in recorded order. Sessions without output are left out.
            shuffle: put the sessions in a random order drawn from ``seed``.
            concurrency: sessions in flight; ``None`` means as recorded: where every turn has a
                time, turns follow each other by time, so that sessions overlap as they did;
                otherwise one session follows the other.
            limit_sessions: keep the first so many (after shuffling).
            limit_tokens: stop after so many output tokens; the last turn is cut there.

        Raises:
            ConfigError: a limit or the concurrency is below 1.
        """
        for name, value in (
            ("concurrency", concurrency),
            ("limit_sessions", limit_sessions),
            ("limit_tokens", limit_tokens),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"{name}: must be at least 1, got {value}")
        chosen = [s for s in sessions if s.output_tokens]
        if shuffle:
            chosen = [chosen[i] for i in np.random.default_rng(seed).permutation(len(chosen))]
        if limit_sessions is not None:
            chosen = chosen[:limit_sessions]
        order: Order = "shuffled" if shuffle else "recorded"
        slots = [(s, n) for s, session in enumerate(chosen) for n in _numbers(session)]
        if concurrency is None and not shuffle and (times := _times(chosen)) is not None:
            slots.sort(key=lambda slot: (times[slot], slot))
            order = "interleaved by time"
        turns = _plan(chosen, slots, limit_tokens)
        return _finished(chosen, turns, order, concurrency or 1, seed if shuffle else None)

    @property
    def output_tokens(self) -> int:
        """Output tokens to decode."""
        return len(self.outputs)


def _numbers(session: TokenSession) -> list[int]:
    return [n for n, turn in enumerate(session.turns) if len(turn.output)]


def _times(sessions: Sequence[TokenSession]) -> dict[tuple[int, int], float] | None:
    """The time of every turn, never running backwards in a session; ``None`` if one has none."""
    times: dict[tuple[int, int], float] = {}
    for s, session in enumerate(sessions):
        latest = -math.inf
        for n in _numbers(session):
            stamp = session.turns[n].timestamp
            if stamp is None:
                return None
            latest = max(latest, stamp)
            times[s, n] = latest
    return times


def _plan(
    sessions: Sequence[TokenSession], slots: Sequence[tuple[int, int]], limit: int | None
) -> list[PlannedTurn]:
    turns: list[PlannedTurn] = []
    at = 0
    for session, number in slots:
        turn = sessions[session].turns[number]
        end = at + len(turn.output)
        if limit is not None:
            end = min(end, limit)
        if end == at:
            break
        turns.append(PlannedTurn(session, number, turn, at, end, last=False))
        at = end
    return turns


def _finished(
    sessions: Sequence[TokenSession],
    turns: Sequence[PlannedTurn],
    order: Order,
    concurrency: int,
    seed: int | None,
) -> ReplayPlan:
    """Renumber the sessions by their first turn, leave out those cut off, mark last turns."""
    renumbered: dict[int, int] = {}
    for planned in turns:
        renumbered.setdefault(planned.session, len(renumbered))
    last = {planned.session: i for i, planned in enumerate(turns)}
    return ReplayPlan(
        sessions=tuple(sessions[s] for s in renumbered),
        turns=tuple(
            PlannedTurn(
                renumbered[p.session], p.number, p.turn, p.start, p.end, last[p.session] == i
            )
            for i, p in enumerate(turns)
        ),
        outputs=np.concatenate(
            [p.turn.output[: p.output_tokens] for p in turns] or [np.empty(0, np.int32)]
        ).astype(np.int32, copy=False),
        order=order,
        concurrency=concurrency,
        seed=seed,
    )
