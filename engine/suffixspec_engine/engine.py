"""The engine: prompts in, exactly what the model says out, several tokens per step.

    >>> engine = Engine("smollm2", speculative={"method": "suffix"})    # doctest: +SKIP
    >>> engine.generate(["Once upon a time"])[0].text                   # doctest: +SKIP

One thread of the engine's own runs the model; callers wait for it, blocking
(:meth:`Engine.generate`, :meth:`Engine.stream`) or asynchronously (:meth:`Engine.submit`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from suffixspec_engine.core import EngineCore
from suffixspec_engine.depth import EngineDepth
from suffixspec_engine.drafters.factory import (
    EngineProposers,
    NamespaceProposers,
    ProposerSource,
    only_unnamed,
)
from suffixspec_engine.engine_config import EngineConfig, verification_method
from suffixspec_engine.grammar import GrammarSpec
from suffixspec_engine.intake import Intake, Prompt
from suffixspec_engine.metrics import EngineMetrics
from suffixspec_engine.models import TargetModel, load_model
from suffixspec_engine.proposing import proposer_session
from suffixspec_engine.request import Request, RequestOutput, StepEvent
from suffixspec_engine.sampling import (
    GrammarMatcher,
    IncrementalDetokenizer,
    SamplingParams,
)
from suffixspec_engine.step_thread import StepThread
from suffixspec_engine.streams import BlockingStream, RequestStream
from suffixspec_engine.warming import Progress, warm_up_drafting
from suffixspec_index.depth import StepCost
from suffixspec_index.errors import ConfigError, InputError
from suffixspec_index.proposers.base import Proposer
from suffixspec_index.speculative_config import SpeculativeConfig


class Engine:
    """A model and all that is needed to run requests on it. Thread-safe.

    Args:
        model: a loaded model, or what :func:`~.models.load_model` takes.
        speculative: what to propose: a configuration, or a mapping as vLLM's
            ``speculative_config``; ``None``: nothing, unless ``proposer`` is given. Every namespace
            gets a proposer of its own, so that drafts are never shared between namespaces.
        proposer: a proposer made elsewhere, instead of ``speculative``, for requests without a
            namespace; or a function that makes one for each namespace.
        config: how the engine runs.
        step_cost: what steps are expected to take, such as a cost model made by ``suffixspec
            profile``; ``None``: that is learned while running. On a CPU ten steps are timed now
            to begin with.
        progress: called with what is being done while kernels are compiled, which takes a minute
            the first time on a machine; ``None``: the log says it.

    Raises:
        ConfigError: both ``speculative`` and ``proposer`` are given, or as for
            :func:`~.models.load_model` and :func:`~suffixspec_index.proposers.create_proposer`.
    """

    def __init__(
        self,
        model: TargetModel | str | Path,
        *,
        speculative: SpeculativeConfig | Mapping[str, Any] | None = None,
        proposer: Proposer | ProposerSource | None = None,
        config: EngineConfig | None = None,
        step_cost: StepCost | None = None,
        progress: Progress | None = None,
    ) -> None:
        if speculative is not None and proposer is not None:
            raise ConfigError("proposer: give either a proposer or speculative, not both")
        self.config = config or EngineConfig()
        if speculative is not None and not isinstance(speculative, SpeculativeConfig):
            speculative = SpeculativeConfig.from_dict(speculative)
        verification_method(speculative)  # what cannot be done is said before a model is loaded
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        self.model = model if isinstance(model, TargetModel) else load_model(model)
        self._intake = Intake(self.model)
        self._proposers = self._make_proposers(speculative, proposer)
        if speculative is not None:
            warm_up_drafting(speculative, progress)
        self._core = EngineCore(self.model, self.config, speculative, step_cost)
        self._core.time_small_steps()
        self._steps = StepThread(self._core)

    def _make_proposers(
        self, speculative: SpeculativeConfig | None, given: Proposer | ProposerSource | None
    ) -> NamespaceProposers | None:
        """Who drafts; what cannot be made for requests without a namespace raises here."""
        if speculative is not None:
            given = EngineProposers(
                speculative,
                self.model,
                lambda: self._intake.backend_tokenizer(f"method {speculative.method}"),
                cache_bytes=self.config.draft_cache_bytes,
            )
        if given is None:
            return None
        source = only_unnamed(given) if isinstance(given, Proposer) else given
        proposers = NamespaceProposers(source)
        proposers.get("")
        return proposers

    @property
    def proposer(self) -> Proposer | None:
        """Who drafts for requests without a namespace; ``None``: nobody."""
        return self.proposer_of("")

    def proposer_of(self, namespace: str) -> Proposer | None:
        """Who drafts in a namespace, made if it is not known yet; ``None``: nobody.

        Raises:
            InputError: the engine was given one proposer, and ``namespace`` is not empty.
        """
        return None if self._proposers is None else self._proposers.get(namespace)

    def drop_namespace(self, namespace: str) -> None:
        """Forget all that is kept for a namespace, drafts and finished sessions. Running requests
        go on. Unknown namespaces are ignored."""

        def forget() -> None:
            self._core.cache.drop_namespace(namespace)
            self._core.depth.drop_namespace(namespace)
            if self._proposers is not None:
                self._proposers.drop(namespace)

        self._steps.between(forget)

    # -- asking --------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        session_ids: Sequence[str] | None = None,
        max_draft: int | None = None,
        grammar: GrammarSpec | None = None,
    ) -> list[RequestOutput]:
        """Continue every prompt and wait for all of them.

        Args:
            prompts: texts or token ids.
            sampling: for all, or one per prompt; ``None``: the defaults.
            session_ids: one per prompt; a session's next prompt costs only what is new in it.
            max_draft: most draft tokens per step; 0: no speculation.
            grammar: what every output must obey.

        Returns:
            The outputs, in the order of the prompts.

        Raises:
            InputError, CapacityError: as for :meth:`submit`; a full queue is waited for instead.
        """
        if isinstance(prompts, str):
            raise InputError("prompts: must be a list of prompts, got one text; put it in a list")
        params = _per_prompt(sampling, len(prompts))
        if session_ids is not None and len(session_ids) != len(prompts):
            raise InputError(f"session_ids: {len(session_ids)} for {len(prompts)} prompts")
        streams = [BlockingStream(self._steps.cancel) for _ in prompts]
        requests = [
            self._request(
                prompt,
                one,
                stream.put,
                session_id=session_ids[i] if session_ids is not None else None,
                max_draft=max_draft,
                grammar=grammar,
            )
            for i, (prompt, one, stream) in enumerate(zip(prompts, params, streams, strict=True))
        ]
        for stream, request in zip(streams, requests, strict=True):
            stream.attach(request)
        try:
            for request in requests:
                self._steps.add(request, wait=True)
            return [stream.output() for stream in streams]
        except BaseException:
            for stream in streams:
                stream.cancel()
            raise

    def stream(
        self, prompt: Prompt, sampling: SamplingParams | None = None, **options: Any
    ) -> BlockingStream:
        """Continue one prompt and give out what each step gains; ``options`` as for
        :meth:`submit`. Raises what :meth:`submit` raises."""
        stream = BlockingStream(self._steps.cancel)
        request = self._request(prompt, sampling or SamplingParams(), stream.put, **options)
        stream.attach(request)
        self._steps.add(request, wait=False)
        return stream

    def submit(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        session_id: str | None = None,
        namespace: str = "",
        prediction: ArrayLike | None = None,
        max_draft: int | None = None,
        priority: float = 1.0,
        proposer: Proposer | None = None,
        grammar: GrammarSpec | GrammarMatcher | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> RequestStream:
        """Continue a prompt; its stream is to be read within an event loop.

        Args:
            prompt: a text or ``(n,)`` token ids.
            sampling: how tokens are chosen and when it ends; ``None``: the defaults.
            request_id: a name for it; ``None``: a new one.
            session_id: the conversation it belongs to; ``None``: one of its own.
            namespace: who may share; neither drafts nor keys and values cross it. It must come from
                whoever has been authenticated, never from a request's body.
            prediction: ``(m,)`` token ids expected as output, for proposers that use them.
            max_draft: most draft tokens per step; 0: no speculation.
            priority: what a token gained here counts against one of other requests, where a step
                has room for few draft tokens (dynamic depth).
            proposer: who drafts for it, instead of the engine's proposer.
            grammar: what the output must obey: JSON that fits a schema, a regular expression, a
                choice or a context-free grammar.
            loop: where the stream is read, if this is called in another thread (the engine may be
                taking in a long prompt, and the call waits for that); ``None``: the running one.

        Raises:
            InputError: the prompt is empty, too long or holds ids that do not exist, a text is
                given where the model has no tokenizer, or nobody may draft for the namespace.
            ConfigError: the sampling parameters name tokens that do not exist.
            CapacityError: the queue is full, or the request could never fit in the cache.
        """
        stream = RequestStream(self._steps.cancel, loop)
        request = self._request(
            prompt,
            sampling or SamplingParams(),
            stream.put,
            request_id=request_id,
            session_id=session_id,
            namespace=namespace,
            prediction=prediction,
            max_draft=max_draft,
            priority=priority,
            proposer=proposer,
            grammar=grammar,
        )
        stream.attach(request)
        self._steps.add(request, wait=False)
        return stream

    def end_session(
        self, session_id: str, *, namespace: str = "", proposer: Proposer | None = None
    ) -> None:
        """Forget what is kept for a session. Unknown ids are ignored; running requests go on.

        Args:
            session_id, namespace, proposer: as given to :meth:`submit`.
        """
        drafter = proposer
        if drafter is None and self._proposers is not None:
            drafter = self._proposers.known(namespace)

        def forget() -> None:
            self._core.cache.end_session(namespace, session_id)
            if drafter is not None:
                drafter.end_session(proposer_session(namespace, session_id))

        self._steps.between(forget)

    # -- looking -------------------------------------------------------------------------------

    @property
    def metrics(self) -> EngineMetrics:
        """Totals since the engine began; live, so read it when nothing runs, or copy."""
        return self._core.metrics

    @property
    def depth(self) -> EngineDepth:
        """How depths are chosen, and what steps take as measured; to be looked at only."""
        return self._core.depth

    def learned(self) -> dict[str, bytes]:
        """What depths were chosen by, taken between two steps, for :meth:`restore` of the next
        engine of this model on this machine; see :meth:`.depth.EngineDepth.learned`."""
        found: dict[str, bytes] = {}
        self._steps.between(lambda: found.update(self._core.depth.learned()))
        return found

    def restore(self, learned: Mapping[str, bytes]) -> None:
        """Go on from what :meth:`learned` gave; best before the first request.

        Raises:
            SnapshotCorruptError: a piece makes no sense. Nothing is changed then.
        """
        self._steps.between(lambda: self._core.depth.restore(learned))

    @property
    def num_running(self) -> int:
        """Requests that advance now."""
        return len(self._core.scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their turn."""
        return len(self._core.scheduler.waiting)

    @property
    def cache_used_bytes(self) -> int:
        """Of the budget ``cache_bytes``: reserved by requests or kept for sessions."""
        return self._core.cache.used_bytes

    def encode(self, text: str) -> NDArray[np.int32]:
        """Token ids of a text, with what the tokenizer puts before it.

        Raises:
            InputError: the model has no tokenizer.
        """
        return self._intake.encode(text)

    def detokenizer(self, prompt_token_ids: Sequence[int] = ()) -> IncrementalDetokenizer:
        """What turns a request's tokens into text one by one, as the engine itself does.

        Raises:
            InputError: the model has no tokenizer.
        """
        return self._intake.detokenizer(prompt_token_ids)

    def check_integrity(self) -> None:
        """Raise :class:`~suffixspec_index.errors.IntegrityError` unless the cache is sound."""
        self._steps.between(self._core.cache.check_integrity)

    def _request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        emit: Callable[[StepEvent], None],
        *,
        proposer: Proposer | None = None,
        **options: Any,
    ) -> Request:
        """A checked request that could fit; nothing is changed yet."""
        drafter = proposer or self.proposer_of(options.get("namespace", ""))
        request = self._intake.request(prompt, params, emit, proposer=drafter, **options)
        self._core.cache.check_fits(request.reserve)
        return request

    # -- ending --------------------------------------------------------------------------------

    def close(self) -> None:
        """End all requests with an error and stop the engine's thread. May be called twice."""
        self._steps.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _per_prompt(
    sampling: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams]:
    if sampling is None or isinstance(sampling, SamplingParams):
        return [sampling or SamplingParams()] * count
    if len(sampling) != count:
        raise InputError(f"sampling: {len(sampling)} parameters for {count} prompts")
    return sampling
