"""Calling proposers so that nothing they do wrong can harm a request.

A draft is only a proposal: a proposer that raises, or drafts tokens that do not exist, costs its
request the drafts, never the text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from suffixspec_engine.grammar import Matcher, constrain
from suffixspec_engine.request import Request
from suffixspec_engine.sampling import Method
from suffixspec_index.depth import StepPlan, propose_for
from suffixspec_index.draft import Draft
from suffixspec_index.errors import IntegrityError, SuffixSpecError
from suffixspec_index.proposers.base import Proposer
from suffixspec_index.proposers.drawing import DraftSampling, DrawingProposer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Proposed:
    """A draft, and where it was drawn from probabilities, those: ``(n, vocab)`` float32."""

    draft: Draft
    probs: Tensor | None = None


NOTHING = Proposed(Draft.empty())


def proposer_session(namespace: str, session_id: str) -> str:
    """What a session is called towards proposers: equal names in two namespaces stay apart."""
    return f"{len(namespace)}:{namespace}:{session_id}" if namespace else session_id


class Proposing:
    """The proposers' side of an engine's steps.

    Args:
        vocab_size: of the target model.
        method: how drafts will be verified.
        draws: proposers that can draw their drafts do so, where a request is not greedy.

    Attributes:
        failures: calls that raised, and drafts that were not sound.
    """

    def __init__(self, vocab_size: int, method: Method = "coupled", *, draws: bool = False) -> None:
        self._vocab_size, self._method, self._draws = vocab_size, method, draws
        self.failures = 0
        self._bounds: dict[int, int] = {}  # of the step under way, by request
        self._min_prob: float | None = None

    def begin(self, request: Request) -> None:
        """Tell the request's proposer that it starts."""
        proposer = request.proposer
        if proposer is None:
            return

        def call() -> None:
            request.handle = proposer.begin(
                proposer_session(request.namespace, request.session_id),
                request.prompt,
                max_tokens=request.state.remaining(request.params),
                prediction=request.prediction,
            )

        self._guarded(request, call)

    @property
    def draws_freely(self) -> bool:
        """Whether what a draft was drawn from has a say in what is accepted."""
        return self._method != "coupled"

    def propose(
        self,
        requests: Sequence[Request],
        limits: Sequence[int] | None = None,
        min_prob: float | None = None,
    ) -> list[Proposed]:
        """A draft per request, empty where there is nobody to ask or nothing to gain. A request's
        grammar cuts its draft and puts in what it forces.

        Args:
            requests: those whose context ends in this step.
            limits: most draft tokens of each in this step; ``None``: no such bounds.
            min_prob: least probability of draft tokens, for proposers that know such a bound.
        """
        self._bounds = {}
        if limits is not None:
            self._bounds = {id(r): bound for r, bound in zip(requests, limits, strict=True)}
        self._min_prob = min_prob
        drafts = [NOTHING] * len(requests)
        for proposer, rows, limits in self._asked(requests):
            asked = [requests[row] for row in rows]
            for row, given, limit in zip(
                rows, self._ask(proposer, asked, limits), limits, strict=True
            ):
                drafts[row] = self._sound(requests[row], given, limit)
        for row, request in enumerate(requests):
            if isinstance(request.grammar, Matcher) and self._limit(request) > 0:
                drafts[row] = self._constrained(request, request.grammar, drafts[row])
        return drafts

    def _constrained(self, request: Request, grammar: Matcher, given: Proposed) -> Proposed:
        drawn = given.probs is not None and self._method != "coupled"
        try:
            fitting = constrain(given.draft, grammar, limit=self._limit(request), drawn=drawn)
        except SuffixSpecError as error:  # the grammar gave up; verification will say so
            _log.warning("request %s: %s", request.request_id, error)
            return NOTHING
        probs = None if given.probs is None else fitting.probs(given.probs)
        return Proposed(fitting.draft, probs)

    def _asked(self, requests: Sequence[Request]) -> list[tuple[Proposer, list[int], list[int]]]:
        """Proposers with the rows they are asked for and the most tokens that each may draft."""
        groups: dict[int, tuple[Proposer, list[int], list[int]]] = {}
        for row, request in enumerate(requests):
            limit = self._limit(request)
            if request.proposer is not None and request.handle is not None and limit > 0:
                group = groups.setdefault(id(request.proposer), (request.proposer, [], []))
                group[1].append(row)
                group[2].append(limit)
        return list(groups.values())

    def _ask(
        self, proposer: Proposer, requests: Sequence[Request], limits: Sequence[int]
    ) -> list[Proposed]:
        if self._draws and isinstance(proposer, DrawingProposer):
            return self._draw(proposer, requests, limits)
        handles = [self._handle(request) for request in requests]
        try:
            plan = StepPlan(np.array(limits, np.int64), self._min_prob)
            batch = list(propose_for(proposer, handles, plan))
        except Exception:  # the culprit is found by asking one by one
            return [self._propose_one(proposer, request) for request in requests]
        return [Proposed(draft) for draft in batch]

    def _propose_one(self, proposer: Proposer, request: Request) -> Proposed:
        drafts = [Draft.empty()]
        handle, limit = self._handle(request), self._limit(request)
        self._guarded(request, lambda: drafts.append(proposer.propose(handle, limit)))
        return Proposed(drafts[-1])

    def _draw(
        self, proposer: DrawingProposer, requests: Sequence[Request], limits: Sequence[int]
    ) -> list[Proposed]:
        """As :meth:`_ask`, from a proposer that can draw."""
        handles = [self._handle(request) for request in requests]
        samplings = [self._draft_sampling(request) for request in requests]
        try:
            drawn = proposer.propose_drawn(handles, limits, samplings)
            return [Proposed(draft, probs) for draft, probs in drawn]
        except Exception as error:
            if len(requests) == 1:
                self._fail(requests[0], error)
                return [NOTHING]
        pairs = zip(requests, limits, strict=True)  # the culprit is found by asking one by one
        return [self._draw(proposer, [request], [limit])[0] for request, limit in pairs]

    def _draft_sampling(self, request: Request) -> DraftSampling | None:
        if request.params.greedy:
            return None
        return DraftSampling(
            temperature=request.params.temperature,
            seed=request.state.seed,
            position=request.state.position,
            coupled=self._method == "coupled",
        )

    def limit(self, request: Request) -> int:
        """Most draft tokens that a request can use, by its own bounds; 0 without a proposer."""
        if request.proposer is None and request.grammar is None:
            return 0
        bounds = (request.state.draft_limit(request.params), request.max_draft, 2**31 - 1)
        return min(bound for bound in bounds if bound is not None)

    def _limit(self, request: Request) -> int:
        limit = request.state.draft_limit(request.params)
        bounds = (limit, request.max_draft, self._bounds.get(id(request)), 2**31 - 1)
        return min(bound for bound in bounds if bound is not None)

    def _sound(self, request: Request, given: Proposed, limit: int) -> Proposed:
        """At most ``limit`` nodes of what was proposed; nothing if it is not sound."""
        draft, probs = given.draft, given.probs
        if not len(draft):
            return NOTHING
        try:
            draft.check_integrity()
            if int(draft.token_ids.min()) < 0 or int(draft.token_ids.max()) >= self._vocab_size:
                raise IntegrityError("draft: a token is outside the model's vocabulary")
            if probs is not None and probs.shape != (len(draft), self._vocab_size):
                raise IntegrityError(
                    f"draft: probabilities of shape {tuple(probs.shape)}, not "
                    f"{(len(draft), self._vocab_size)}"
                )
        except IntegrityError as error:
            self._fail(request, error)
            return NOTHING
        if len(draft) <= limit:
            return given
        keep = slice(0, limit)  # parents come first, so the first nodes are a whole tree
        shorter = Draft(
            draft.token_ids[keep],
            draft.parents[keep],
            draft.probs[keep],
            draft.sources[keep],
            draft.match_len,
        )
        return Proposed(shorter, None if probs is None else probs[keep])

    def advance(self, gained: Sequence[tuple[Request, Sequence[int]]]) -> None:
        """Tell proposers what their requests gained, one call per proposer."""
        groups: dict[int, list[tuple[Request, Sequence[int]]]] = {}
        for request, tokens in gained:
            if request.proposer is not None and request.handle is not None and len(tokens):
                groups.setdefault(id(request.proposer), []).append((request, tokens))
        for group in groups.values():
            self._advance_group(group)

    def _advance_group(self, group: list[tuple[Request, Sequence[int]]]) -> None:
        proposer = group[0][0].proposer
        assert proposer is not None
        offsets = np.zeros(len(group) + 1, np.int64)
        np.cumsum([len(tokens) for _, tokens in group], out=offsets[1:])
        tokens = np.concatenate([np.asarray(row, np.int32) for _, row in group])
        handles = [self._handle(request) for request, _ in group]
        try:
            proposer.advance_batch(handles, tokens, offsets)
        except Exception as error:  # nobody knows how far it came: they all go on without drafts
            for request, _ in group:
                self._fail(request, error)

    def finish(self, request: Request, *, keep: bool) -> None:
        """Tell the request's proposer that it is over."""
        proposer, handle = request.proposer, request.handle
        if proposer is None or handle is None:
            return
        request.handle = None
        self._guarded(request, lambda: proposer.finish(handle, keep=keep))
        if request.owns_session:
            session = proposer_session(request.namespace, request.session_id)
            self._guarded(request, lambda: proposer.end_session(session))

    @staticmethod
    def _handle(request: Request) -> int:
        assert request.handle is not None
        return request.handle

    def _guarded(self, request: Request, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # whatever a proposer does, the request goes on without it
            self._fail(request, error)

    def _fail(self, request: Request, error: Exception) -> None:
        self.failures += 1
        name = getattr(request.proposer, "name", "?")
        _log.warning("request %s goes on without drafts: proposer %s: %s", request.request_id,
                     name, error)  # fmt: skip
        proposer, handle = request.proposer, request.handle
        request.proposer = request.handle = None
        if proposer is not None and handle is not None:
            try:
                proposer.finish(handle, keep=False)
            except Exception as second:  # it is broken; that it is so was logged above
                _log.debug("proposer %s: %s", name, second)
