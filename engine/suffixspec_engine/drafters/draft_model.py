"""Method ``draft_model``: a small language model proposes, greedily or by sampling."""

from __future__ import annotations

import inspect
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from suffixspec_engine.drafters.vocabulary import VocabularyMap
from suffixspec_engine.sampling import draw_draft_token
from suffixspec_index import proposers
from suffixspec_index.draft import Draft, Source
from suffixspec_index.errors import ConfigError
from suffixspec_index.proposers.base import Proposer, RequestHandle
from suffixspec_index.proposers.requests import (
    RequestTable,
    as_limit,
    as_max_tokens,
    as_session_id,
)
from suffixspec_index.speculative_config import SpeculativeConfig
from suffixspec_index.tokens import as_token_array

_IDLE_SESSIONS = 8  # caches kept between the turns of a session; the oldest is dropped first
_CHUNK = 512  # tokens read at once


@dataclass(frozen=True, slots=True)
class DraftSampling:
    """How draft tokens are drawn.

    Attributes:
        temperature: of the draft model's distribution; above 0.
        seed: the request's.
        position: output position of the first drafted token.
        coupled: for method ``coupled``; see :func:`~suffixspec_engine.sampling.draw_draft_token`.
    """

    temperature: float
    seed: int
    position: int
    coupled: bool


@dataclass(slots=True, eq=False)
class _Memory:
    """Keys and values, and the draft model's tokens that they are of."""

    cache: Any
    token_ids: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Request:
    session_id: str
    context: list[int]  # in the draft model's tokens
    remaining: int
    memory: _Memory


class DraftModelProposer(Proposer):
    """Proposes what a smaller model of transformers says.

    The model's cache is cut back, not built anew, where a draft was rejected, and is kept for the
    session's next turn. ``probs`` of a draft are products of the draft model's own probabilities.
    Requests are served one after the other; a draft of ``k`` tokens costs ``k`` forward passes.

    Args:
        config: ``num_speculative_tokens`` and ``use_heterogeneous_vocab`` count here.
        model: a causal language model of transformers, in evaluation mode.
        tokenizer: the draft model's.
        target_tokenizer: the target's.
        vocab_size: the target's number of logits; ``None``: its tokenizer's.
        forbidden: target ids that are never drafted.

    Raises:
        ConfigError: the tokenizers do not fit, or the model's cache cannot be cut back (sliding
            windows, recurrent state).
    """

    name: ClassVar[str] = "draft_model"

    def __init__(
        self,
        config: SpeculativeConfig,
        model: Any,
        tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        vocab_size: int | None = None,
        forbidden: ArrayLike = (),
    ) -> None:
        self._target_size = vocab_size or target_tokenizer.get_vocab_size()
        self._map = VocabularyMap(
            target_tokenizer,
            tokenizer,
            target_size=self._target_size,
            draft_size=int(model.config.get_text_config().vocab_size),
            heterogeneous=config.use_heterogeneous_vocab,
        )
        self._forbidden = set(np.asarray(forbidden, np.int64).tolist())
        self._num_tokens = config.num_speculative_tokens
        self._model = model
        self._max_length = int(
            getattr(model.config.get_text_config(), "max_position_embeddings", None) or 2**31
        )
        parameters = inspect.signature(model.forward).parameters
        self._cache_key = "cache" if "cache" in parameters else "past_key_values"
        self._shared = torch.from_numpy(self._map.shared).to(model.device)
        self._targets: NDArray[np.int64] = self._map.to_target[self._map.shared]
        excluded = np.isin(self._targets, np.asarray(forbidden, np.int64))
        if excluded.all():
            raise ConfigError("forbidden: holds every token that draft model and target share")
        self._excluded = torch.from_numpy(np.flatnonzero(excluded)).to(model.device)
        self._requests: RequestTable[_Request] = RequestTable()
        self._idle: OrderedDict[str, _Memory] = OrderedDict()
        self._lock = threading.Lock()
        _check_cache(self._new_memory().cache)

    @staticmethod
    def load(
        config: SpeculativeConfig,
        target_tokenizer: Tokenizer,
        *,
        vocab_size: int | None = None,
        forbidden: ArrayLike = (),
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> DraftModelProposer:
        """Load the model that ``config.model`` names (a directory or hub id).

        Raises:
            ConfigError: it cannot be loaded or has no fast tokenizer; and as for the constructor.
        """
        if config.model is None:
            raise ConfigError("model: missing; name the draft model's directory or hub id")
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(config.model, dtype=dtype)
            tokenizer = AutoTokenizer.from_pretrained(config.model)
        except (OSError, ValueError) as error:
            raise ConfigError(f"model: {config.model!r} cannot be loaded ({error})") from error
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(f"model: {config.model!r} has no tokenizer.json; use another model")
        return DraftModelProposer(
            config,
            model.to(device).eval(),
            backend,
            target_tokenizer,
            vocab_size=vocab_size,
            forbidden=forbidden,
        )

    def begin(
        self,
        session_id: str,
        prompt: ArrayLike,
        *,
        max_tokens: int | None = None,
        prediction: ArrayLike | None = None,
    ) -> RequestHandle:
        """See :meth:`Proposer.begin`. O(prompt); the model reads it at the first draft."""
        as_session_id(session_id)
        ids = as_token_array(prompt, self._target_size, field="prompt").tolist()
        remaining = as_max_tokens(max_tokens)
        with self._lock:
            memory = self._idle.pop(session_id, None) or self._new_memory()
            context = self._map.to_draft(ids)
            return self._requests.add(_Request(session_id, context, remaining, memory))

    def advance(self, request: RequestHandle, token_ids: ArrayLike) -> None:
        """See :meth:`Proposer.advance`. O(tokens)."""
        with self._lock:
            row = self._requests.get(request)
            ids = as_token_array(token_ids, self._target_size, field="token_ids").tolist()
            row.context.extend(self._map.to_draft(ids))
            row.remaining = max(0, row.remaining - len(ids))

    def propose(self, request: RequestHandle, limit: int | None = None) -> Draft:
        """See :meth:`Proposer.propose`: the draft model's most probable tokens."""
        return self.propose_with_probs(request, limit, None)[0]

    def propose_with_probs(
        self, request: RequestHandle, limit: int | None, sampling: DraftSampling | None
    ) -> tuple[Draft, Tensor | None]:
        """A draft, and the distributions its tokens were drawn from.

        Args:
            request: of :meth:`begin`.
            limit: tokens at most; ``None``: the configured number.
            sampling: how to draw; ``None``: greedily.

        Returns:
            The draft and ``(n, target vocab)`` float32; ``None`` for a greedy or empty draft.

        Raises:
            UnknownRequestError: no such request.
        """
        with self._lock:
            row = self._requests.get(request)
            most = min(as_limit(limit), self._num_tokens, row.remaining)
            most = min(most, self._max_length - len(row.context))
            return self._draft(row, most, sampling) if row.context else (Draft.empty(), None)

    def _draft(
        self, row: _Request, most: int, sampling: DraftSampling | None
    ) -> tuple[Draft, Tensor | None]:
        tokens: list[int] = []
        probs: list[float] = []
        drawn_from: list[NDArray[np.float32]] = []
        ids = list(row.context)
        chance = 1.0
        for i in range(most):
            q = self._distribution(row.memory, ids, sampling)
            if sampling is None:
                token = int(q.argmax())
                if token in self._forbidden:
                    break
            else:
                start = sampling.position
                token = draw_draft_token(
                    q, sampling.seed, start + i, start, coupled=sampling.coupled
                )
            chance *= float(q[token])
            tokens.append(token)
            probs.append(chance)
            drawn_from.append(q)
            ids.extend(self._map.to_draft([token]))
        draft = Draft.path(tokens, source=Source.DRAFT_MODEL, probs=np.array(probs, np.float32))
        rows = torch.from_numpy(np.stack(drawn_from)) if sampling and tokens else None
        return draft, rows

    def _distribution(
        self, memory: _Memory, ids: list[int], sampling: DraftSampling | None
    ) -> NDArray[np.float32]:
        """``(target vocab,)``: the draft model's next token, over the tokens both have.

        Where tokens are drawn, the forbidden ones are left out before: to end a draft at a token
        because of what was drawn would favour the others (see ``grammar.constrain``).
        """
        logits = self._read(memory, ids)[self._shared].float()
        if sampling is not None:
            logits = logits / sampling.temperature
            logits[self._excluded] = -torch.inf
        q = np.zeros(self._target_size, np.float32)
        q[self._targets] = logits.softmax(-1).cpu().numpy()
        return q

    def _read(self, memory: _Memory, ids: list[int]) -> Tensor:
        """``(draft vocab,)`` logits after ``ids``; only what is not in the cache is read."""
        try:
            return self._read_on(memory, ids)
        except BaseException:  # some layers may hold the chunk and others not
            memory.cache, memory.token_ids = self._new_memory().cache, []
            raise

    @torch.inference_mode()
    def _read_on(self, memory: _Memory, ids: list[int]) -> Tensor:
        known = _common_prefix(memory.token_ids, ids[:-1])
        excess = len(memory.token_ids) - known
        if excess:
            memory.cache.crop(-excess)
            del memory.token_ids[known:]
        logits: Tensor | None = None
        for start in range(known, len(ids), _CHUNK):
            chunk = ids[start : start + _CHUNK]
            output = self._model(
                input_ids=torch.tensor([chunk], device=self._model.device),
                use_cache=True,
                logits_to_keep=1,
                **{self._cache_key: memory.cache},
            )
            memory.token_ids.extend(chunk)
            logits = output.logits[0, -1]
        assert logits is not None  # at least the last token is read
        return logits

    def finish(self, request: RequestHandle, *, keep: bool = True) -> None:
        """See :meth:`Proposer.finish`. The cache waits for the session's next turn."""
        with self._lock:
            row = self._requests.remove(request)
            if keep:
                self._idle[row.session_id] = row.memory
                self._idle.move_to_end(row.session_id)
                if len(self._idle) > _IDLE_SESSIONS:
                    self._idle.popitem(last=False)

    def end_session(self, session_id: str) -> None:
        """See :meth:`Proposer.end_session`."""
        with self._lock:
            self._idle.pop(session_id, None)

    def _new_memory(self) -> _Memory:
        return _Memory(DynamicCache(config=self._model.config))


def register_draft_model(target_tokenizer: Tokenizer) -> None:
    """Make method ``draft_model`` available to ``create_proposer`` for this target.

    A later call changes the target for proposers created after it.
    """
    _factory.target_tokenizer = target_tokenizer
    proposers.register("draft_model", _factory)


class _Factory:
    target_tokenizer: Tokenizer | None = None

    def __call__(
        self,
        config: SpeculativeConfig,
        *,
        vocab_size: int | None = None,
        forbidden: ArrayLike = (),
    ) -> Proposer:
        assert self.target_tokenizer is not None  # it is registered together with one
        return DraftModelProposer.load(
            config, self.target_tokenizer, vocab_size=vocab_size, forbidden=forbidden
        )


_factory = _Factory()


def _check_cache(cache: Any) -> None:
    for layer in cache.layers:
        if getattr(layer, "is_sliding", False) or not getattr(layer, "is_croppable", True):
            raise ConfigError(
                f"model: the draft model's {type(layer).__name__} cannot take back rejected "
                "tokens; use a draft model with full attention in every layer"
            )


def _common_prefix(one: list[int], other: list[int]) -> int:
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size
    return next(i for i in range(size) if one[i] != other[i])
