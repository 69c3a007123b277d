"""Method ``hybrid``: several proposers; in each step of each request the one that gains most.

Every proposer's estimates are corrected by what came true of them (:mod:`.calibration`), so that
one that promises too much loses to one that does not. Those that cost next to nothing (suffix
trees, a prediction, prompt lookup) are asked at every step. One that costs time (a draft model) is
asked only where what it lately gained, less its cost, is more than the cheap drafts are expected to
gain, and for as many tokens as pay off; in between it is told nothing but the tokens, so that it
can read them in one pass when it is asked again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from suffixspec_index.draft import Draft, DraftBatch
from suffixspec_index.errors import ConfigError
from suffixspec_index.proposers.base import Proposer, RequestHandle
from suffixspec_index.proposers.calibration import Calibration
from suffixspec_index.proposers.drawing import DraftSampling, DrawingProposer, Drawn
from suffixspec_index.proposers.expectation import Acceptance, best_length
from suffixspec_index.proposers.members import Choice, Member, MemberStatistics, advance
from suffixspec_index.proposers.requests import (
    RequestTable,
    as_limits,
    as_max_tokens,
    as_ragged,
    as_session_id,
)
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_index.tokens import as_token_array, as_vocab_size

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _Request:
    """``handles`` are the members' (``None``: takes no part), ``drafts`` those of this step."""

    handles: list[RequestHandle | None]
    acceptance: dict[int, Acceptance]
    drafts: dict[int, Draft] = field(default_factory=dict)


class HybridProposer(Proposer):
    """See the module's text.

    ``probs`` of its drafts are the corrected ones; the sources of the tokens say whose they are.

    Args:
        members: in the order of preference where they promise the same.
        vocab_size: ids must be below it; ``None``: unknown.

    Raises:
        ConfigError: no members, or a negative cost.
    """

    name: ClassVar[str] = "hybrid"
    takes_min_prob: ClassVar[bool] = True

    def __init__(self, members: Sequence[Member], *, vocab_size: int | None = None) -> None:
        if not members:
            raise ConfigError("members: empty; a hybrid needs at least one proposer")
        for member in members:
            if min(member.token_cost, member.fixed_cost) < 0:
                raise ConfigError(f"members: {member.proposer.name!r} has a negative cost; use 0")
        self.members = tuple(members)
        self._vocab_size = as_vocab_size(vocab_size)
        self._lock = threading.RLock()
        self._requests: RequestTable[_Request] = RequestTable()
        self._calibrations = [Calibration() for _ in members]
        self._acceptance = [Acceptance.overall() for _ in members]
        self._statistics = [MemberStatistics(member.proposer.name) for member in members]

    def statistics(self) -> list[MemberStatistics]:
        """Per member, in their order; copies."""
        with self._lock:
            return [replace(one) for one in self._statistics]

    def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> RequestHandle:
        """See :meth:`Proposer.begin`. A member that cannot begin takes no part in the request."""
        as_session_id(session_id)
        as_max_tokens(max_tokens)
        ids = as_token_array(prompt, self._vocab_size, field="prompt")
        if prediction is not None:
            prediction = as_token_array(prediction, self._vocab_size, field="prediction")
        with self._lock:
            row = _Request([None] * len(self.members), {})
            for m, member in enumerate(self.members):
                if member.needs_prediction and prediction is None:
                    continue
                begin = partial(member.proposer.begin, session_id, ids)
                row.handles[m] = self._guarded(
                    m, row, partial(begin, max_tokens=max_tokens, prediction=prediction)
                )
                if member.costly:
                    row.acceptance[m] = Acceptance.of_request()
            return self._requests.add(row)

    # -- proposing -----------------------------------------------------------------------------

    def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
        """See :meth:`Proposer.propose`."""
        return self.propose_batch([request], None if limit is None else [limit])[0]

    def propose_batch(
        self,
        requests: Sequence[RequestHandle],
        limits: Sequence[int] | NDArray[np.int32] | None = None,
        *,
        min_prob: float | None = None,
    ) -> DraftBatch:
        """See :meth:`Proposer.propose_batch`; each member is called once for all its requests.
        ``min_prob`` is handed on to members that take it."""
        drawn = self._propose(requests, limits, [None] * len(requests), min_prob)
        return DraftBatch.of([draft for draft, _ in drawn])

    def propose_drawn(
        self,
        requests: Sequence[RequestHandle],
        limits: Sequence[int],
        samplings: Sequence[DraftSampling | None],
    ) -> list[Drawn]:
        """See :meth:`~.drawing.DrawingProposer.propose_drawn`.

        Where a drawn draft is verified by rejection sampling, it is taken once it was asked for:
        to prefer another one because of what was drawn would change the distribution of the text.
        """
        return self._propose(requests, limits, samplings, None)

    def _propose(
        self,
        requests: Sequence[RequestHandle],
        limits: Sequence[int] | NDArray[np.int32] | None,
        samplings: Sequence[DraftSampling | None],
        min_prob: float | None,
    ) -> list[Drawn]:
        bounds = as_limits(limits, len(requests)).tolist()
        with self._lock:
            rows = [self._requests.get(request) for request in requests]
            for row in rows:
                row.drafts.clear()
            best: list[Choice] = [Choice() for _ in rows]
            for m, member in enumerate(self.members):
                if not member.costly:
                    self._ask_all(m, rows, bounds, best, min_prob)
            for m, member in enumerate(self.members):
                if member.costly:
                    self._ask_where_it_pays(m, rows, bounds, samplings, best)
            for choice in best:
                if choice.member is not None:
                    self._statistics[choice.member].chosen += 1
            return [(choice.draft, choice.drawn_from) for choice in best]

    def _ask_all(
        self,
        m: int,
        rows: Sequence[_Request],
        bounds: Sequence[int],
        best: Sequence[Choice],
        min_prob: float | None,
    ) -> None:
        asked = [i for i, row in enumerate(rows) if row.handles[m] is not None and bounds[i] > 0]
        proposer: Any = self.members[m].proposer
        options = {}
        if min_prob is not None and proposer.takes_min_prob:
            options["min_prob"] = min_prob

        def batch(handles: list[RequestHandle], at: list[int]) -> list[Drawn]:
            limits = np.minimum([bounds[i] for i in at], 2**31 - 1)
            drafts = proposer.propose_batch(handles, limits.astype(np.int32), **options)
            return [(draft, None) for draft in drafts]

        for i, (draft, _) in self._each(m, rows, asked, batch):
            self._note(m, rows[i], draft)
            best[i].offer(m, self._corrected(m, draft), None)

    def _ask_where_it_pays(
        self,
        m: int,
        rows: Sequence[_Request],
        bounds: Sequence[int],
        samplings: Sequence[DraftSampling | None],
        best: Sequence[Choice],
    ) -> None:
        member = self.members[m]
        lengths: dict[int, int] = {}
        for i, row in enumerate(rows):
            if row.handles[m] is None or bounds[i] <= 0:
                continue
            rate = row.acceptance[m].rate(self._acceptance[m].rate())
            length, value = best_length(rate, bounds[i], member.token_cost, member.fixed_cost)
            if length and value > 1.0 + best[i].gain:
                lengths[i] = length
        proposer = member.proposer
        drawing = proposer if isinstance(proposer, DrawingProposer) else None

        def batch(handles: list[RequestHandle], at: list[int]) -> list[Drawn]:
            limits = [lengths[i] for i in at]
            if drawing is not None and any(samplings[i] is not None for i in at):
                return drawing.propose_drawn(handles, limits, [samplings[i] for i in at])
            drafts = proposer.propose_batch(handles, np.array(limits, np.int32))
            return [(draft, None) for draft in drafts]

        for i, (draft, drawn_from) in self._each(m, rows, list(lengths), batch):
            self._note(m, rows[i], draft)
            sampling = samplings[i]
            bound = drawn_from is not None and sampling is not None and not sampling.coupled
            best[i].offer(m, self._corrected(m, draft), drawn_from, always=bound)

    def _note(self, m: int, row: _Request, draft: Draft) -> None:
        row.drafts[m] = draft
        self._statistics[m].asked += 1
        self._statistics[m].expected += draft.score

    def _corrected(self, m: int, draft: Draft) -> Draft:
        return replace(draft, probs=self._calibrations[m].correct(draft)) if len(draft) else draft

    # -- staying in step -----------------------------------------------------------------------

    def advance(self, request: RequestHandle, token_ids: ArrayLike) -> None:
        """See :meth:`Proposer.advance`."""
        ids = as_token_array(token_ids, self._vocab_size, field="token_ids")
        self.advance_batch([request], ids, np.array([0, len(ids)], np.int64))

    def advance_batch(
        self, requests: Sequence[RequestHandle], token_ids: ArrayLike, offsets: ArrayLike
    ) -> None:
        """See :meth:`Proposer.advance_batch`: every member learns from every draft it made."""
        ids, bounds = as_ragged(token_ids, offsets, len(requests), self._vocab_size)
        with self._lock:
            rows = [self._requests.get(request) for request in requests]
            spans = [ids[bounds[i] : bounds[i + 1]] for i in range(len(rows))]
            for row, gained in zip(rows, spans, strict=True):
                self._learn(row, gained)
            for m, member in enumerate(self.members):
                taking = [i for i, row in enumerate(rows) if row.handles[m] is not None]
                batch = partial(advance, member.proposer, spans)
                self._each(m, rows, taking, batch, again=False)

    def _learn(self, row: _Request, gained: NDArray[np.int32]) -> None:
        for m, draft in row.drafts.items():
            foreseen = self._calibrations[m].observe(draft, gained)
            self._statistics[m].foreseen += foreseen
        for m, acceptance in row.acceptance.items():
            asked = row.drafts.get(m)
            tested = foreseen = 0
            if asked is not None and len(asked):
                foreseen = len(asked.accepted_by(gained))
                tested = min(foreseen + 1, len(gained), int(asked.depths.max()))
            acceptance.observe(tested, foreseen)
            self._acceptance[m].observe(tested, foreseen)
        row.drafts.clear()

    def finish(self, request: RequestHandle, *, keep: bool = True) -> None:
        """See :meth:`Proposer.finish`."""
        with self._lock:
            row = self._requests.remove(request)
            for m, handle in enumerate(row.handles):
                if handle is not None:
                    finish = partial(self.members[m].proposer.finish, handle, keep=keep)
                    self._guarded(m, row, finish, over=True)

    def end_session(self, session_id: str) -> None:
        """See :meth:`Proposer.end_session`."""
        with self._lock:
            for member in self.members:
                member.proposer.end_session(session_id)

    def set_step_costs(self, costs: ArrayLike | None) -> None:
        """Let the size of suffix drafts follow from the cost of verifying them; see
        :meth:`suffixspec_index.index.SuffixIndex.set_step_costs`."""
        for member in self.members:
            taking: Any = member.proposer
            if hasattr(taking, "set_step_costs"):
                taking.set_step_costs(costs)

    # -- members that fail ---------------------------------------------------------------------

    def _each(
        self,
        m: int,
        rows: Sequence[_Request],
        asked: list[int],
        batch: Callable[[list[RequestHandle], list[int]], list[_T]],
        *,
        again: bool = True,
    ) -> list[tuple[int, _T]]:
        """One call of a member for the requests at ``asked``. If it raises, they are tried one by
        one (unless that could repeat what was done already), and those that still raise go on
        without this member."""
        if not asked:
            return []
        try:
            return list(zip(asked, batch(self._handles(m, rows, asked), asked), strict=True))
        except Exception as error:
            if not again or len(asked) == 1:
                for i in asked:
                    self._drop(m, rows[i], error)
                return []
        found = []
        for i in asked:
            found += self._each(m, rows, [i], batch)
        return found

    @staticmethod
    def _handles(m: int, rows: Sequence[_Request], asked: Sequence[int]) -> list[RequestHandle]:
        handles = [rows[i].handles[m] for i in asked]
        return [handle for handle in handles if handle is not None]

    def _guarded(
        self, m: int, row: _Request, call: Callable[[], _T], *, over: bool = False
    ) -> _T | None:
        try:
            return call()
        except Exception as error:  # a broken member costs its drafts, not those of the others
            self._drop(m, row, error, finish=not over)
            return None

    def _drop(self, m: int, row: _Request, error: Exception, *, finish: bool = True) -> None:
        member, handle = self.members[m], row.handles[m]
        row.handles[m] = None
        row.drafts.pop(m, None)
        row.acceptance.pop(m, None)
        self._statistics[m].failures += 1
        _log.warning("hybrid: a request goes on without %s: %s", member.proposer.name, error)
        if finish and handle is not None:
            try:
                member.proposer.finish(handle, keep=False)
            except Exception as second:  # it is broken; that it is so was logged above
                _log.debug("hybrid: %s: %s", member.proposer.name, second)


def create_hybrid(
    config: SpeculativeConfig,
    *,
    vocab_size: int | None = None,
    forbidden: ArrayLike = (),
    drafter: Member | None = None,
) -> HybridProposer:
    """The hybrid that a configuration asks for: suffix trees, the request's prediction where it has
    one, and a draft model where ``model`` names one.

    Args:
        config: of method ``hybrid``.
        vocab_size, forbidden: as for :func:`~suffixspec_index.proposers.create_proposer`.
        drafter: the draft model, made by whoever can run it.

    Raises:
        ConfigError: a model is named and nobody here can run it.
    """
    from suffixspec_index.proposers.prediction import PredictionProposer
    from suffixspec_index.proposers.suffix import SuffixProposer

    if config.model is not None and drafter is None:
        raise ConfigError(
            f"model: {config.model!r} cannot be run here; method 'hybrid' with a model needs the "
            "verification engine (suffixspec_engine). Leave the model out for suffix trees and "
            "predictions alone"
        )
    plain = replace(config, model=None, use_heterogeneous_vocab=False, method="suffix")
    suffix = SuffixProposer(plain, vocab_size=vocab_size, forbidden=forbidden)
    prediction = PredictionProposer(
        replace(plain, method="prediction", dynamic=False),
        vocab_size=vocab_size,
        forbidden=forbidden,
    )
    members = [Member(suffix), Member(prediction, needs_prediction=True)]
    return HybridProposer(
        [*members, drafter] if drafter is not None else members, vocab_size=vocab_size
    )
