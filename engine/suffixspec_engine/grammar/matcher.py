"""Where one request stands in its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import InputError, IntegrityError

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Matcher:
    """A :class:`~suffixspec_engine.sampling.GrammarMatcher`; made by ``GrammarCompiler.compile``.

    The output has three parts: free text up to the marker ``start_after``, what the grammar says,
    and, once that is complete, the end of sequence (or free text again). Tokens are accepted and
    taken back across these boundaries alike.

    Args:
        inner: a fresh matcher of llguidance.
        eos_token_ids: tokens that end a sequence.
        vocab_size: that ``inner`` knows; a token beyond it would spoil it for good.
        start_after: see :class:`~.spec.GrammarSpec`.
        then_free: see :class:`~.spec.GrammarSpec`.
    """

    def __init__(
        self,
        inner: LLMatcher,
        eos_token_ids: Sequence[int],
        vocab_size: int,
        *,
        start_after: Sequence[int] = (),
        then_free: bool = False,
    ) -> None:
        self._inner = inner
        self._eos = frozenset(eos_token_ids)
        self._vocab_size = vocab_size
        self._marker = list(start_after)
        self._then_free = then_free
        self._before: list[int] = []  # tokens up to the marker
        self._inside = 0  # tokens the grammar took
        self._after = 0  # tokens once it was complete

    @property
    def started(self) -> bool:
        """Whether the grammar applies now (or did, and is complete)."""
        size = len(self._marker)
        return not size or self._before[-size:] == self._marker

    @property
    def complete(self) -> bool:
        """Whether nothing more can be said by the grammar."""
        return self.started and self._inner.is_stopped() and not self._inner.is_error()

    @property
    def accepting(self) -> bool:
        """Whether the output may end here as far as the grammar goes."""
        return not self.started or self.complete or bool(self._inner.is_accepting())

    def allowed(self, vocab_size: int) -> NDArray[np.bool_] | None:
        """``(vocab_size,)``: which tokens may come next; ``None``: any. About 20 µs.

        Raises:
            InputError: llguidance gave up: the grammar is too complex.
        """
        if not self.started or (self._then_free and self.complete):
            return None
        mask = np.zeros(vocab_size, np.bool_)
        if self.complete:
            mask[[t for t in self._eos if t < vocab_size]] = True
            return mask
        self._check()
        bits = np.frombuffer(self._inner.compute_bitmask(), np.uint8)
        self._check()  # computing it is what may exceed llguidance's limits
        known = np.unpackbits(bits, bitorder="little")[:vocab_size]
        mask[: len(known)] = known
        return mask

    def accept(self, token_id: int) -> bool:
        """Move on by one token; false, with nothing changed, if the grammar forbids it."""
        if not self.started:
            self._before.append(token_id)
            return True
        if self.complete:
            if not self._then_free and token_id not in self._eos:
                return False
            self._after += 1
            return True
        if not 0 <= token_id < self._vocab_size:
            return False
        if self._inner.is_error() or self._inner.try_consume_tokens([token_id]) != 1:
            return False
        self._inside += 1
        return True

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` accepted tokens.

        Raises:
            IntegrityError: fewer were accepted.
        """
        if not 0 <= num_tokens <= self.num_accepted:
            raise IntegrityError(
                f"grammar: cannot take back {num_tokens} of {self.num_accepted} tokens"
            )
        back = min(num_tokens, self._after)
        self._after -= back
        inside = min(num_tokens - back, self._inside)
        if inside:
            self._inner.rollback(inside)
            self._inside -= inside
        before = num_tokens - back - inside
        if before:
            del self._before[-before:]

    @property
    def num_accepted(self) -> int:
        """Tokens accepted so far."""
        return len(self._before) + self._inside + self._after

    def forced(self) -> list[int]:
        """The tokens that spell the only text the grammar leaves next; empty where it has a choice.

        They are the canonical spelling. The grammar may allow others, so they are a draft, a very
        good one, and no more.
        """
        if not self.started or self._inner.is_stopped():  # stopped: complete, or given up
            return []
        return list(self._inner.compute_ff_tokens())

    def _check(self) -> None:
        if self._inner.is_error():
            raise InputError(
                f"grammar: {self._inner.get_error().strip()}; simplify the schema or the grammar"
            )
