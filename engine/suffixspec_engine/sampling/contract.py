"""The contract of sampling: what a request wants, where it stands, and what a step decided.

One step of one request is one call::

    verdict = verify(logits, draft, state, params)   # pure: changes nothing
    state.commit(verdict)                            # the request gained verdict.token_ids

``logits`` holds one row for the context's last token and one per draft node, so row ``1 + i`` is
what the target model says *after* draft node ``i``. :func:`~.verify.verify_batch` does the same for
all requests of a step, whose rows are packed.

What happens to a row of logits, in vLLM's order: grammar mask, ``min_tokens``, ``logit_bias``,
penalties over prompt and output (each accepted token counted), ``temperature``, ``min_p``,
``top_k``, ``top_p``. The result is called the *processed distribution*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from suffixspec_engine.sampling.params import SamplingParams
from suffixspec_index.draft import Draft

Method = Literal["coupled", "standard", "block"]
"""How drafts are verified where temperature is not 0.

``coupled``: the target token is drawn with randomness keyed by (seed, position), and the draft
child equal to it is accepted. The text depends on the seed alone, not on the drafts.
``standard``: rejection sampling; the *distribution* of the text does not depend on the drafts.
``block``: block verification (Sun et al., 2024): as ``standard``, but path drafts are accepted
jointly, which accepts at least as much. Tree drafts are verified as by ``standard``.
"""

FinishReason = Literal["stop", "length", "error"]


class GrammarMatcher(Protocol):
    """Where a request stands in its grammar. ``verify`` leaves it where it found it."""

    def allowed(self, vocab_size: int) -> NDArray[np.bool_] | None:
        """``(vocab_size,)``, true for each token that may come next; ``None``: every token."""

    def accept(self, token_id: int) -> bool:
        """Move on by one token; false, with nothing changed, if the grammar forbids it."""

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` accepted tokens."""


class Detokenizer(Protocol):
    """Turns tokens into text one by one."""

    def feed(self, token_id: int) -> str:
        """The text that ``token_id`` completes; empty inside an unfinished character."""

    def fork(self) -> Detokenizer:
        """A copy that can be fed without changing this one."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one position, of the *raw* distribution (vLLM's ``raw_logprobs``).

    Raw: what the model says, before temperature, penalties, bias, masks and truncation.

    Attributes:
        token_id: the emitted token.
        logprob: its natural-log probability.
        rank: its rank, 1 for the most probable token.
        top: the ``k`` most probable tokens as ``(token_id, logprob)``, most probable first.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one step decided for one request.

    Attributes:
        accepted: indices of the accepted draft nodes from the root on; their keys and values stay
            in the cache. Never past a finish.
        token_ids: the tokens the request gained, nothing after the earliest finish: the accepted
            ones, then the one the target model added. A request that finishes on an accepted draft
            token gets no added one, so ``len(token_ids) - len(accepted)`` is 1 or 0.
        finish_reason: why the request ends with the last of ``token_ids``; ``None`` if it goes on.
            ``"error"``: it cannot be verified (logits that are no numbers, say); ``stop_reason``
            says why, no token is gained.
        stop_reason: the stop token id or the stop string that ended it; ``None`` for the model's
            own end-of-sequence token, as in vLLM.
        num_visible: how many of ``token_ids`` belong to the text: all, or all but a stop token.
        text_end: where a stop string ended the request, the length in characters of the *whole*
            output text that survives; else ``None``.
        logprobs: one entry per token of ``token_ids``; ``None`` if not asked for.
    """

    accepted: tuple[int, ...]
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_visible: int = 0
    text_end: int | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None

    @property
    def finished(self) -> bool:
        """Whether the request ends here."""
        return self.finish_reason is not None


@dataclass(slots=True, eq=False)
class RowState:
    """Where one request stands.

    Attributes:
        prompt_token_ids: the prompt.
        seed: the request's seed, any integer; the engine draws one where the caller gave none.
        eos_token_ids: the model's end-of-sequence ids; may be empty.
        max_total_tokens: prompt + output never exceed it (the model's length); ``None``: no limit.
        detokenizer: needed where stop strings are set; its text is the output's.
        output_token_ids: tokens gained so far.
        text: the output's text so far, kept only where there is a detokenizer.
    """

    prompt_token_ids: Sequence[int] | NDArray[np.int32]
    seed: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    max_total_tokens: int | None = None
    detokenizer: Detokenizer | None = None
    output_token_ids: list[int] = field(default_factory=list)
    text: str = ""
    _prompt_seen: NDArray[np.bool_] | None = field(default=None, repr=False)
    _output_counts: NDArray[np.int32] | None = field(default=None, repr=False)

    @property
    def position(self) -> int:
        """Index of the next output token; with the seed it keys that token's randomness."""
        return len(self.output_token_ids)

    def remaining(self, params: SamplingParams) -> int:
        """Output tokens the request may still gain, at least 0."""
        limits = [] if params.max_tokens is None else [params.max_tokens]
        if self.max_total_tokens is not None:
            limits.append(self.max_total_tokens - len(self.prompt_token_ids))
        return max(0, min(limits) - self.position) if limits else 1 << 30

    def draft_limit(self, params: SamplingParams) -> int:
        """The longest draft that can be of use: one less than :meth:`remaining`, since each step
        adds a token of its own."""
        return max(0, self.remaining(params) - 1)

    def stop_ids(self, params: SamplingParams) -> frozenset[int]:
        """Every token that ends this request."""
        if params.ignore_eos or not self.eos_token_ids:
            return params.stop_token_id_set
        return params.stop_token_id_set | self.eos_token_ids

    def commit(self, verdict: Verdict, grammar: GrammarMatcher | None = None) -> str:
        """Take over what a step decided, in O(gained tokens).

        Args:
            verdict: of :func:`verify` on this very state.
            grammar: moved on by the gained tokens, if given.

        Returns:
            The text gained (a stop string and what follows it cut off); empty where there is no
            detokenizer. The caller holds back what may be the beginning of a stop string.
        """
        before = len(self.text)
        for index, token_id in enumerate(verdict.token_ids):
            self.output_token_ids.append(token_id)
            if self._output_counts is not None:
                self._output_counts[token_id] += 1
            if self.detokenizer is not None and index < verdict.num_visible:
                self.text += self.detokenizer.feed(token_id)
            if grammar is not None:
                grammar.accept(token_id)
        if verdict.text_end is not None:
            self.text = self.text[: verdict.text_end]
        return self.text[before:]

    def output_counts(self, vocab_size: int) -> NDArray[np.int32]:
        """``(vocab_size,)``: how often each token was put out. Built once, then kept current."""
        if self._output_counts is None:
            ids = np.asarray(self.output_token_ids, np.int64)
            self._output_counts = np.bincount(ids, minlength=vocab_size).astype(np.int32)
        return self._output_counts

    def prompt_seen(self, vocab_size: int) -> NDArray[np.bool_]:
        """``(vocab_size,)``: which tokens the prompt holds. Built once."""
        if self._prompt_seen is None:
            self._prompt_seen = np.zeros(vocab_size, np.bool_)
            self._prompt_seen[np.asarray(self.prompt_token_ids, np.int64)] = True
        return self._prompt_seen


class Verify(Protocol):
    """The signature of :func:`suffixspec_engine.sampling.verify`."""

    def __call__(
        self,
        logits: Tensor,
        draft: Draft,
        state: RowState,
        params: SamplingParams,
        method: Method = "coupled",
        draft_probs: Tensor | None = None,
        grammar: GrammarMatcher | None = None,
    ) -> Verdict:
        """Decide one request's step.

        Args:
            logits: ``(1 + n, vocab)`` float32; row 0 after the context, row ``1 + i`` after node
                ``i``. Not changed.
            draft: ``n`` nodes.
            state: of the request before the step. Not changed (it may fill its caches).
            params: what the request asked for.
            method: see :data:`Method`.
            draft_probs: ``(n, vocab)`` float32, row ``i`` the distribution that node ``i`` was
                drawn from; siblings are drawn one after the other without replacement, and all
                carry the undiminished distribution. ``None``: the draft is deterministic (suffix,
                n-gram, prediction, greedy drafters). Used by ``standard`` and ``block``.
            grammar: the request's matcher; left as it was found.

        Raises:
            InputError: shapes do not fit each other, or the logits are not numbers.
        """


class VerifyBatch(Protocol):
    """The signature of :func:`suffixspec_engine.sampling.verify_batch`."""

    def __call__(
        self,
        logits: Tensor,
        drafts: Sequence[Draft],
        states: Sequence[RowState],
        params: Sequence[SamplingParams],
        method: Method = "coupled",
        draft_probs: Mapping[int, Tensor] | None = None,
        grammars: Mapping[int, GrammarMatcher] | None = None,
    ) -> list[Verdict]:
        """Decide a step of many requests.

        Args:
            logits: ``(sum of 1 + n_r, vocab)`` float32, the requests' rows one after the other.
            drafts: per request.
            states: per request.
            params: per request.
            method: for all.
            draft_probs: by request index, where the draft is probabilistic.
            grammars: by request index, where there is one.

        Returns:
            A verdict per request. What :func:`verify` would raise for a request becomes its finish
            reason ``"error"``; the others are not touched by it.

        Raises:
            InputError: the logits have another number of rows than the drafts need.
        """
