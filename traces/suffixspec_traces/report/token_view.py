"""The token view's data: some sessions' text, token by token, with what was drafted.

A replay may hold millions of tokens, so the page shows a bounded sample: the first session, the
best, the median and the worst by tokens per step, and a few evenly spaced ones. The page says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from suffixspec_traces.replay.decode import ReplayResult
from suffixspec_traces.replay.log import Step
from suffixspec_traces.replay.plan import PlannedTurn
from suffixspec_traces.report.groups import Grouped
from suffixspec_traces.report.visible import visible_text


class TokenTexts(Protocol):
    """What the view needs of a tokenizer."""

    def token_texts(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> list[str]:
        """One string per id; joined they are the text."""


@dataclass(frozen=True, slots=True)
class ViewLimits:
    """How much the page may hold."""

    sessions: int = 8
    tokens_per_session: int = 3000
    context_chars: int = 600
    branches: int = 4
    branch_tokens: int = 24
    least_tokens: int = 20
    """Sessions with fewer output tokens are neither best nor worst of anything."""


def token_view(
    results: Sequence[ReplayResult], texts: TokenTexts, limits: ViewLimits | None = None
) -> dict[str, Any]:
    """JSON-able data of the view. O(tokens shown + steps)."""
    limits = limits or ViewLimits()
    plan = results[0].plan
    chosen = _sample(results[0], limits)
    columns = [_Columns(result, texts, limits) for result in results]
    sessions = []
    for number, reasons in chosen.items():
        session = plan.sessions[number]
        turns, shown = [], 0
        indices = [i for i, p in enumerate(plan.turns) if p.session == number]
        for index in indices:
            room = limits.tokens_per_session - shown
            if room <= 0:
                break
            turns.append(_turn(plan.turns[index], index, columns, texts, limits, room))
            shown += len(turns[-1]["texts"])
        sessions.append(
            {
                "id": visible_text(session.id),
                "source": visible_text(session.source),
                "reasons": reasons,
                "turns": turns,
                "turns_total": len(indices),
                "tokens_total": sum(plan.turns[i].output_tokens for i in indices),
                "tokens_shown": shown,
            }
        )
    return {
        "methods": [visible_text(result.label) for result in results],
        "sessions": sessions,
        "sessions_total": len(plan.sessions),
        "tokens_per_session": limits.tokens_per_session,
    }


def _sample(result: ReplayResult, limits: ViewLimits) -> dict[int, list[str]]:
    """Session numbers in order, each with the reasons why it is shown."""
    plan = result.plan
    turn_session = np.array([p.session for p in plan.turns], np.int64)
    codes = turn_session[result.log.column(Step.TURN)]
    by_session = Grouped.of(result.log, codes, len(plan.sessions))
    done = np.flatnonzero(by_session.steps)
    if not len(done):
        return {}
    chosen: dict[int, list[str]] = {int(done[0]): ["first"]}
    known = done[by_session.output_tokens[done] >= limits.least_tokens]
    if len(known):
        score = by_session.output_tokens[known] / by_session.steps[known]
        ranked = known[np.argsort(score, kind="stable")]
        picks = ((-1, "best"), (len(ranked) // 2, "median"), (0, "worst"))
        for place, reason in picks:
            chosen.setdefault(int(ranked[place]), []).append(reason)
    for number in done[np.linspace(0, len(done) - 1, limits.sessions).astype(np.int64)].tolist():
        if len(chosen) < limits.sessions:
            chosen.setdefault(number, ["evenly spaced"])
    return dict(sorted(chosen.items())[: limits.sessions])


class _Columns:
    """One result's step arrays, as lists by turn."""

    def __init__(self, result: ReplayResult, texts: TokenTexts, limits: ViewLimits) -> None:
        self.log, self.texts, self.limits = result.log, texts, limits
        self.offsets = result.log.node_offsets
        turns = result.log.column(Step.TURN)
        # Steps of concurrent turns interleave; a stable sort puts each turn's together.
        self.order = np.argsort(turns, kind="stable")
        self.starts = np.searchsorted(turns[self.order], np.arange(len(result.plan.turns) + 1))

    def turn(self, index: int, tokens: int) -> dict[str, Any]:
        """Per token its source (0: the model's own), and the steps' figures."""
        log = self.log
        sources: list[int] = []
        steps: list[list[Any]] = []
        for step in self.order[self.starts[index] : self.starts[index + 1]].tolist():
            if len(sources) >= tokens:
                break
            span = slice(int(self.offsets[step]), int(self.offsets[step + 1]))
            accepted = log.node_accepted[span]
            gained = int(log.column(Step.GAINED)[step])
            mine = log.node_sources[span][accepted].tolist()
            sources.extend(mine)
            sources.extend([0] * (gained - len(mine)))
            steps.append(
                [
                    gained,
                    int(log.column(Step.DRAFTED)[step]),
                    len(mine),
                    int(log.column(Step.MATCH_LEN)[step]),
                    self._rejected(span, accepted),
                ]
            )
        return {"sources": sources[:tokens], "steps": steps}

    def _rejected(self, span: slice, accepted: NDArray[np.bool_]) -> list[str]:
        """The rejected branches, each from where it leaves what was accepted to its leaf."""
        parents = self.log.node_parents[span].tolist()
        tokens = self.log.node_tokens[span].tolist()
        inner = set(parents)
        branches: list[str] = []
        for leaf in range(len(parents)):
            if accepted[leaf] or leaf in inner:
                continue
            branch, node = [], leaf
            while node >= 0 and not accepted[node]:
                branch.append(tokens[node])
                node = parents[node]
            branch.reverse()
            text = "".join(self.texts.token_texts(branch[: self.limits.branch_tokens]))
            more = "…" if len(branch) > self.limits.branch_tokens else ""
            branches.append(visible_text(text) + more)
            if len(branches) == self.limits.branches:
                break
        return branches


def _turn(
    planned: PlannedTurn,
    index: int,
    columns: Sequence[_Columns],
    texts: TokenTexts,
    limits: ViewLimits,
    room: int,
) -> dict[str, Any]:
    turn = planned.turn
    size = min(planned.output_tokens, room)
    # The end of the prompt is what the model answers; four characters a token is plenty.
    tail = "".join(texts.token_texts(turn.prompt[-limits.context_chars :]))[-limits.context_chars :]
    return {
        "number": planned.number + 1,
        "tool": None if turn.tool is None else visible_text(turn.tool),
        "after_tool": None if turn.after_tool is None else visible_text(turn.after_tool),
        "prompt_tokens": len(turn.prompt),
        "output_tokens": planned.output_tokens,
        "context": visible_text(tail),
        "texts": [visible_text(t) for t in texts.token_texts(turn.output[:size])],
        "methods": [c.turn(index, size) for c in columns],
    }
