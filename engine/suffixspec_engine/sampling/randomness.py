"""Randomness keyed by (seed, position): the same numbers however a step is cut or batched.

Everything comes from Philox, a counter-based generator: seed and position are its key, the purpose
and the step its counter, so nothing is carried from one draw to the next. The raw 32-bit words are
turned into numbers here, because numpy keeps bit streams stable between versions, not
distributions.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_WORD = (1 << 64) - 1


class Stream(IntEnum):
    """What the randomness is for. Streams of one (seed, position) are independent."""

    TARGET = 0  # which token the target draws
    ACCEPT = 1  # whether a draft token is accepted
    DRAFT = 2  # which token a probabilistic drafter draws


def exponentials(
    seed: int, position: int, vocab_size: int, *, stream: Stream = Stream.TARGET, start: int = 0
) -> NDArray[np.float32]:
    """One Exp(1) variable per token; ``argmax(weights / exponentials)`` draws by the Gumbel trick.

    Args:
        seed: any integer; taken modulo 2**64.
        position: index of the output token.
        vocab_size: how many.
        stream: what they are for.
        start: the output position at which the step began, for draws that a later step repeats
            at the same position (drafts; block verification).

    Returns:
        ``(vocab_size,)``, all positive. Small values, which decide, have full relative precision.
    """
    words = _generator(seed, position, stream, start).random_raw((vocab_size + 1) // 2)
    uniform = words.view(np.uint32)[:vocab_size].astype(np.float32)
    uniform += np.float32(0.5)
    uniform *= np.float32(2.0**-32)
    np.minimum(uniform, np.float32(1 - 2**-24), out=uniform)  # log1p(-1) is infinite
    np.negative(uniform, out=uniform)
    np.log1p(uniform, out=uniform)
    return np.negative(uniform, out=uniform)


def uniforms(
    seed: int, position: int, count: int, *, stream: Stream = Stream.ACCEPT, start: int = 0
) -> NDArray[np.float64]:
    """``(count,)`` numbers in the open interval (0, 1). Arguments as :func:`exponentials`."""
    words = _generator(seed, position, stream, start).random_raw(count)
    numbers: NDArray[np.float64] = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return numbers


def draw(
    weights: NDArray[np.float32] | NDArray[np.float64],
    exponential: NDArray[np.float32],
) -> int:
    """The index drawn from unnormalised ``weights``; one of weight 0 never is. O(n)."""
    return int(np.argmax(weights / exponential))


def draw_draft_token(
    probs: NDArray[np.float32], seed: int, position: int, start: int, *, coupled: bool
) -> int:
    """Draw a token for a probabilistic drafter.

    Args:
        probs: ``(vocab,)``, need not be normalised.
        seed: the request's.
        position: output position of the drafted token.
        start: output position at which this step began.
        coupled: share the target's own randomness, which makes the draft agree with the target as
            often as their distributions allow. Only for method ``coupled``: rejection sampling is
            exact only where draft and acceptance are independent.
    """
    stream, start = (Stream.TARGET, 0) if coupled else (Stream.DRAFT, start)
    return draw(probs, exponentials(seed, position, len(probs), stream=stream, start=start))


def _generator(seed: int, position: int, stream: int, start: int) -> np.random.Philox:
    key = np.array([seed & _WORD, position], np.uint64)
    return np.random.Philox(key=key, counter=np.array([0, 0, stream, start], np.uint64))
