"""The engine's side of choosing depths: what a step takes is measured, and the rule is told.

Between steps nothing is kept of requests but their number with the rule. Where nobody is to draft,
nothing here runs: speculation that is off costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffixspec_engine.proposing import Proposed, Proposing
from suffixspec_engine.request import Request
from suffixspec_index.depth import (
    DepthController,
    DepthRule,
    DraftCalibration,
    MeasuredCost,
    StepCost,
)
from suffixspec_index.depth import create_depth_rule as create_rule
from suffixspec_index.draft import Draft, DraftBatch
from suffixspec_index.speculative_config import SpeculativeConfig


class EngineDepth:
    """Chooses how much every request of a step drafts and how much of that is verified.

    Args:
        speculative: its configuration; ``None``: a proposer made elsewhere, and all is verified.
        seed: a cost model to start from; ``None``: what :meth:`.MeasuredCost.expect` is given, else
            costs are learned from the first steps on, which draft as configured.

    Attributes:
        cost: what steps take, as measured.
    """

    def __init__(self, speculative: SpeculativeConfig | None, seed: StepCost | None = None) -> None:
        self.cost = MeasuredCost(seed)
        self._seeded = seed is not None
        self._rule: DepthRule | None = None
        if speculative is not None:
            self._rule = create_rule(speculative, self.cost)
        self._planned: Sequence[Request] = ()
        self._calibrations: dict[str, DraftCalibration] = {}

    def draft(
        self,
        proposing: Proposing,
        ending: Sequence[Request],
        *,
        tokens: int,
        context_tokens: int,
    ) -> list[Proposed]:
        """A draft for each request whose context ends in this step, as long as it is worth.

        Args:
            tokens: in the step without drafts, prompt chunks included.
            context_tokens: tokens of cache that all requests of the step have.
        """
        rule = self._active(ending)
        self._planned = ending if rule is not None else ()
        if rule is None:
            return proposing.propose(ending)
        plan = rule.plan(
            [id(request) for request in ending],
            context_tokens=float(context_tokens),
            tokens=tokens,
            limits=[min(proposing.limit(request), _MOST) for request in ending],
            weights=_weights(ending),
        )
        given = proposing.propose(ending, plan.limits.tolist(), plan.min_prob)
        # A draft that was drawn is verified whole: to end it by what was drawn would change what
        # rejection sampling gives out. Its length is bounded before it is drawn.
        whole = [one.probs is not None and proposing.draws_freely for one in given]
        offered = [
            Draft.empty() if fixed else one.draft for fixed, one in zip(whole, given, strict=True)
        ]
        experience = [self.calibration_of(request.namespace) for request in ending]
        chosen = rule.choose(DraftBatch.of(offered), experience)
        return [
            one if fixed or len(kept) == len(one.draft) else _cut(one, kept)
            for fixed, one, kept in zip(whole, given, chosen, strict=True)
        ]

    def learn(
        self, gained: Sequence[tuple[Request, Sequence[int]]], *, propose_seconds: float
    ) -> None:
        """What the requests of the step gained, those of :meth:`draft` in its order."""
        if self._rule is None or not self._planned:
            return
        assert [request for request, _ in gained] == list(self._planned)
        offsets = np.zeros(len(gained) + 1, np.int64)
        np.cumsum([len(tokens) for _, tokens in gained], out=offsets[1:])
        rows = [np.asarray(tokens, np.int32) for _, tokens in gained]
        tokens: NDArray[np.int32] = np.concatenate(rows)
        self._rule.learn(tokens, offsets, propose_ms=propose_seconds * 1000.0)
        self._planned = ()

    def abandon(self) -> None:
        """A step failed after its drafts were chosen: nothing is learned from it."""
        self._planned = ()

    def observe(self, *, tokens: int, context_tokens: int, requests: int, seconds: float) -> None:
        """What a step took, the proposers' time left out."""
        if self._rule is not None:
            self.cost.observe(tokens, float(context_tokens), requests, seconds * 1000.0)

    def forget(self, request: Request) -> None:
        """A request has ended."""
        if self._rule is not None:
            self._rule.forget(id(request))

    @property
    def wants_times(self) -> bool:
        """Whether times of steps, measured beforehand, would be of use: depths are chosen by what
        steps cost, and nothing is known of that."""
        return isinstance(self._rule, DepthController) and not self._seeded

    # --- what outlives the engine ----------------------------------------------------------------

    def calibration_of(self, namespace: str) -> DraftCalibration:
        """What the probabilities of a namespace's drafts are worth; never shared with another."""
        return self._calibrations.setdefault(namespace, DraftCalibration())

    def drop_namespace(self, namespace: str) -> None:
        """Forget a namespace's calibration. Unknown ones are ignored."""
        self._calibrations.pop(namespace, None)

    def learned(self) -> dict[str, bytes]:
        """What was learned: ``costs`` and ``rates`` of this engine, and ``calibration/NAMESPACE``
        of each namespace. Nothing, where depths are not chosen."""
        if not isinstance(self._rule, DepthController):
            return {}
        found = {f"calibration/{n}": c.to_bytes() for n, c in self._calibrations.items()}
        if self.cost.ready:
            found |= {"costs": self.cost.to_bytes(), "rates": self._rule.rates.to_bytes()}
        return found

    def restore(self, learned: Mapping[str, bytes]) -> None:
        """Go on from what :meth:`learned` gave another engine of the same model and machine. The
        costs are a seed: their scale is fitted to the first steps. Other names are ignored.

        Raises:
            SnapshotCorruptError: a piece makes no sense. Nothing is changed then.
        """
        if not isinstance(self._rule, DepthController):
            return
        prefix = "calibration/"
        calibrations = {
            name.removeprefix(prefix): DraftCalibration.from_bytes(piece)
            for name, piece in learned.items()
            if name.startswith(prefix)
        }
        costs = MeasuredCost.from_bytes(learned["costs"]) if "costs" in learned else None
        if "rates" in learned:
            self._rule.rates.take(learned["rates"])
        if costs is not None and costs.ready:
            self.cost.start_from(costs)
        self._calibrations |= calibrations

    def to_dict(self) -> dict[str, Any]:
        """What was learned, as JSON values: speed-ups by batch size, milliseconds by tokens."""
        state: dict[str, Any] = {
            "dynamic": isinstance(self._rule, DepthController),
            "step_ms": {str(n): ms for n, ms in self.cost.points().items()},
            "ms_per_1000_context_tokens": self.cost.ms_per_1000_context_tokens,
            "ms_per_request": self.cost.ms_per_request,
            "measured_steps": self.cost.steps,
        }
        if isinstance(self._rule, DepthController):
            state["speedup_by_batch_size"] = self._rule.rates.to_dict()
            state["offered"], state["verified"] = self._rule.offered, self._rule.chosen
        return state

    def _active(self, ending: Sequence[Request]) -> DepthRule | None:
        """The rule, where it has something to decide and knows enough to do so."""
        if self._rule is None or all(request.proposer is None for request in ending):
            return None
        if isinstance(self._rule, DepthController) and not self.cost.ready:
            return None
        return self._rule


_MOST = 64


def _weights(requests: Sequence[Request]) -> list[float] | None:
    """Priorities, where they differ."""
    weights = [request.priority for request in requests]
    return weights if min(weights) < max(weights) else None


def _cut(given: Proposed, kept: Draft) -> Proposed:
    """What is left of a draft, with the rows of its probabilities that belong to it."""
    if given.probs is None or not len(kept):
        return Proposed(kept)
    whole = given.draft
    nodes = {
        (int(parent), int(token)): i
        for i, (parent, token) in enumerate(zip(whole.parents, whole.token_ids, strict=True))
    }
    places: list[int] = []
    for parent, token in zip(kept.parents.tolist(), kept.token_ids.tolist(), strict=True):
        places.append(nodes[(places[parent] if parent >= 0 else -1, token)])
    return Proposed(kept, given.probs[places])
