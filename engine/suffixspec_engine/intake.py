"""What callers give, checked before anything is changed, and made into requests."""

from __future__ import annotations

import itertools
import math
import secrets
import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer

from suffixspec_engine.grammar import GrammarCompiler, GrammarSpec, Matcher
from suffixspec_engine.models import TargetModel
from suffixspec_engine.request import Request, StepEvent
from suffixspec_engine.sampling import (
    GrammarMatcher,
    IncrementalDetokenizer,
    RowState,
    SamplingParams,
)
from suffixspec_engine.text import text_decoder
from suffixspec_index.errors import InputError
from suffixspec_index.proposers.base import Proposer
from suffixspec_index.tokens import as_token_array

Prompt = str | ArrayLike


class Intake:
    """Makes requests for one model. Thread-safe.

    Attributes:
        decode: token ids to text; ``None`` where the model has no tokenizer.
    """

    def __init__(self, model: TargetModel) -> None:
        self.model = model
        self.decode = text_decoder(model.tokenizer) if model.tokenizer is not None else None
        self._numbers = itertools.count(1)
        self._compiler: GrammarCompiler | None = None
        self._compiling = threading.Lock()

    def encode(self, text: str) -> NDArray[np.int32]:
        """See :meth:`.engine.Engine.encode`."""
        if self.model.tokenizer is None:
            raise InputError(
                f"prompt: the model {self.model.name!r} has no tokenizer; give token ids"
            )
        return np.asarray(self.model.tokenizer(text).input_ids, np.int32)

    def detokenizer(self, prompt_token_ids: Sequence[int]) -> IncrementalDetokenizer:
        """See :meth:`.engine.Engine.detokenizer`."""
        if self.decode is None:
            raise InputError(f"the model {self.model.name!r} has no tokenizer")
        return IncrementalDetokenizer(self.decode, prompt_token_ids)

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        emit: Callable[[StepEvent], None],
        *,
        request_id: str | None = None,
        session_id: str | None = None,
        namespace: str = "",
        prediction: ArrayLike | None = None,
        max_draft: int | None = None,
        priority: float = 1.0,
        proposer: Proposer | None = None,
        grammar: GrammarSpec | GrammarMatcher | None = None,
    ) -> Request:
        """A checked request; arguments and errors as of :meth:`.engine.Engine.submit`."""
        ids = self._prompt_ids(prompt)
        params.check_vocab(self.model.vocab_size)
        if max_draft is not None and max_draft < 0:
            raise InputError(f"max_draft: {max_draft} is negative; use 0 for no speculation")
        if not (priority > 0 and math.isfinite(priority)):
            raise InputError(f"priority: must be above 0 and finite, got {priority}")
        if params.stop and self.decode is None:
            raise InputError(
                f"stop: {list(params.stop)!r} needs a tokenizer, and the model has none; use "
                "stop_token_ids"
            )
        state = RowState(
            prompt_token_ids=ids.tolist(),
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            eos_token_ids=self.model.eos_token_ids,
            max_total_tokens=self.model.max_model_len,
            detokenizer=self.detokenizer(ids[-8:].tolist()) if self.decode is not None else None,
        )
        name = request_id or f"request-{next(self._numbers)}"
        request = Request(
            request_id=name,
            session_id=name if session_id is None else session_id,
            namespace=namespace,
            prompt=ids,
            params=params,
            state=state,
            reserve=len(ids) + state.remaining(params),
            emit=emit,
            proposer=proposer,
            prediction=self._ids(prediction, "prediction") if prediction is not None else None,
            max_draft=max_draft,
            priority=priority,
            grammar=self._compile(grammar) if isinstance(grammar, GrammarSpec) else grammar,
            owns_session=session_id is None,
        )
        request.metrics.prompt_tokens = len(ids)
        return request

    def backend_tokenizer(self, purpose: str) -> Tokenizer:
        """The tokenizer in the form that other libraries take.

        Raises:
            InputError: there is none; the message says for which ``purpose``.
        """
        backend = getattr(self.model.tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise InputError(f"{purpose}: the model {self.model.name!r} has no fast tokenizer")
        return backend

    def _compile(self, spec: GrammarSpec) -> Matcher:
        with self._compiling:
            if self._compiler is None:
                self._compiler = GrammarCompiler(
                    self.backend_tokenizer("grammar"),
                    vocab_size=self.model.vocab_size,
                    eos_token_ids=sorted(self.model.eos_token_ids),
                )
            return self._compiler.compile(spec)

    def _prompt_ids(self, prompt: Prompt) -> NDArray[np.int32]:
        if isinstance(prompt, str):
            prompt = self.encode(prompt)
        ids = self._ids(prompt, "prompt").copy()
        if not len(ids):
            raise InputError("prompt: it is empty; give at least one token")
        if len(ids) >= self.model.max_model_len:
            raise InputError(
                f"prompt: {len(ids)} tokens leave no room for output; the model's length is "
                f"{self.model.max_model_len}"
            )
        return ids

    def _ids(self, token_ids: ArrayLike, field: str) -> NDArray[np.int32]:
        return as_token_array(token_ids, self.model.vocab_size, field=field)
