"""Tokens per step against drafted tokens per step: counting, comparing, drawing.

A setting is a point: how many tokens it drafts per step, how many tokens a step yields. Rivals are
compared at equal drafting, since a longer draft buys tokens with verification work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class Count:
    """What one setting did over a replay. ``by_size[n]`` counts the steps that drafted ``n``."""

    label: str
    tree: bool = False
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    by_size: dict[int, int] = field(default_factory=dict)

    @property
    def tokens_per_step(self) -> float:
        """Output tokens over all steps, steps without a draft included."""
        return self.tokens / self.steps

    @property
    def drafted_per_step(self) -> float:
        """Draft tokens over all steps."""
        return self.drafted / self.steps

    def step(self, token_ids: list[int], parents: list[int], truth: list[int], at: int) -> int:
        """Count one step whose draft continues ``truth[:at]``; returns the tokens gained."""
        accepted = accepted_length(token_ids, parents, truth, at)
        gained = min(accepted + 1, len(truth) - at)  # one more than accepted, unless it ends
        size = len(token_ids)
        self.steps += 1
        self.drafted += size
        self.accepted += accepted
        self.tokens += gained
        self.by_size[size] = self.by_size.get(size, 0) + 1
        return gained

    def milliseconds_per_token(self, step_ms: Callable[[int], float]) -> float:
        """Predicted time per token; ``step_ms(n)`` is a step over ``n`` tokens, draft and one."""
        total = sum(n * step_ms(1 + size) for size, n in self.by_size.items())
        return total / self.tokens


def accepted_length(token_ids: list[int], parents: list[int], truth: list[int], at: int) -> int:
    """How many tokens of a draft (a path or a tree) spell ``truth[at:]``.

    Siblings never propose the same token, and parents come before their children.
    """
    node, length = -1, 0
    end = len(truth)
    for i, parent in enumerate(parents):
        if parent == node and at + length < end and token_ids[i] == truth[at + length]:
            node = i
            length += 1
    return length


def front(counts: Sequence[Count]) -> list[Count]:
    """The settings that no other beats at equal or less drafting, by drafted per step."""
    kept: list[Count] = []
    for count in sorted(counts, key=lambda c: (c.drafted_per_step, -c.tokens_per_step)):
        if not kept or count.tokens_per_step > kept[-1].tokens_per_step:
            kept.append(count)
    return kept


def at_drafted(counts: Sequence[Count], drafted: float) -> float:
    """Tokens per step of a frontier at ``drafted`` tokens per step.

    Linear between neighbouring settings (what using one or the other at random gives), from
    (0, 1), which is not drafting, to the last setting, beyond which nothing more is gained.
    """
    best = front(counts)
    x = [0.0, *(c.drafted_per_step for c in best)]
    y = [1.0, *(c.tokens_per_step for c in best)]
    return float(np.interp(drafted, x, y))


def advantages(ours: Sequence[Count], peer: Sequence[Count]) -> list[float]:
    """Our tokens per step over the peer's, at each setting on the peer's frontier."""
    return [at_drafted(ours, c.drafted_per_step) / c.tokens_per_step for c in front(peer)]


def draw(panels: dict[str, dict[str, Sequence[Count]]]) -> object:
    """A plotly figure: one panel per source, one line per rival (its frontier)."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = make_subplots(rows=rows, cols=columns, subplot_titles=list(panels))
    rivals = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    colors = ("#1a9850", "#66bd63", "#b2182b", "#ef8a62", "#2166ac", "#888888")
    for number, lines in enumerate(panels.values()):
        row, column = number // columns + 1, number % columns + 1
        for name, counts in lines.items():
            points = front(counts)
            index = rivals.index(name)
            figure.add_trace(
                go.Scatter(
                    x=[c.drafted_per_step for c in points],
                    y=[c.tokens_per_step for c in points],
                    text=[c.label for c in points],
                    name=name,
                    legendgroup=name,
                    showlegend=number == 0,
                    mode="lines+markers",
                    marker={"size": 4},
                    line={
                        "color": colors[index % len(colors)],
                        "dash": "solid" if index % 2 == 0 else "dot",
                    },
                ),
                row=row,
                col=column,
            )
    figure.update_xaxes(title_text="drafted tokens per step", rangemode="tozero")
    figure.update_yaxes(title_text="tokens per step")
    figure.update_layout(
        template="plotly_white",
        width=420 * columns,
        height=340 * rows,
        legend={"orientation": "h", "y": 1.1, "x": 0.5, "xanchor": "center"},
        margin={"t": 100},
    )
    return figure
