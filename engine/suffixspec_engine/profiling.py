"""Measuring what a step costs: the engine's own step, over sizes, contexts and numbers of requests.

Random tokens stand behind a cache of random tokens: what is computed does not depend on what they
say. The sizes are measured in turn, round after round, so that a noisy spell hits all alike.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from suffixspec_engine.attention import PackedRow
from suffixspec_engine.cache import KeyValueCache
from suffixspec_engine.graphs import make_runner
from suffixspec_engine.models import TargetModel
from suffixspec_engine.sequences import SequenceCache
from suffixspec_index.errors import ConfigError

_SMALL = (1, 4, 8, 16, 32)
_SMALL_CONTEXT = 32
_known: weakref.WeakKeyDictionary[Any, dict[int, dict[int, float]]] = weakref.WeakKeyDictionary()

Progress = Callable[[int, int, str], None]
"""Called with (steps done, steps planned, what is being measured)."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """A step: ``tokens`` in all, shared out evenly among ``requests`` with ``context`` tokens of
    cache each."""

    tokens: int
    requests: int
    context: int

    def __str__(self) -> str:
        return f"{self.tokens} tokens, {self.requests} × {self.context} of context"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds of every round of a shape."""

    shape: StepShape
    ms: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle round."""
        return float(np.median(self.ms))


def measure_steps(
    model: TargetModel,
    shapes: Sequence[StepShape],
    *,
    rounds: int = 9,
    seed: int = 0,
    stop: threading.Event | None = None,
    progress: Progress | None = None,
) -> list[StepTimes] | None:
    """Time steps of these shapes, logits of every token included, as a verifier needs them.

    Returns:
        One entry per shape; ``None`` if it was stopped.

    Raises:
        ConfigError: a shape is impossible, or longer than the model's context.
    """
    _check(model, shapes, rounds)
    bench = _Bench(model, shapes, seed)
    times: dict[StepShape, list[float]] = {shape: [] for shape in shapes}
    planned, done = (rounds + 1) * len(shapes), 0
    for round_ in range(rounds + 1):  # the first warms up
        for shape in shapes:
            if stop is not None and stop.is_set():
                return None
            ms = bench.step_ms(shape)
            if round_:
                times[shape].append(ms)
            done += 1
            if progress is not None:
                progress(done, planned, str(shape))
    return [StepTimes(shape, tuple(ms)) for shape, ms in times.items()]


def time_small_steps(model: TargetModel, *, rounds: int = 2) -> dict[int, float]:
    """What steps of one request and up to 32 tokens take, quickly: ten steps. The fastest round of
    each size counts, as what other programs do can only add to it.

    Measured once per model and number of threads; asked again, it answers at once.

    Returns:
        Tokens -> milliseconds; empty where the model's context is too short for any.
    """
    known = _known.setdefault(model.module, {})
    threads = torch.get_num_threads()
    if threads not in known:
        room = model.max_model_len - _SMALL_CONTEXT
        shapes = [StepShape(n, 1, _SMALL_CONTEXT) for n in _SMALL if n <= room]
        best = {shape.tokens: float("inf") for shape in shapes}
        bench = _Bench(model, shapes, 0) if shapes else None
        for _ in range(rounds):
            for shape in reversed(shapes):  # what the first one allocates is enough for the others
                assert bench is not None
                best[shape.tokens] = min(best[shape.tokens], bench.step_ms(shape))
        known[threads] = best
    return dict(known[threads])


class _Bench:
    """Sequences with their contexts in place, and the steps behind them."""

    def __init__(self, model: TargetModel, shapes: Sequence[StepShape], seed: int) -> None:
        self._model = model
        self._random = np.random.default_rng(seed)
        self._tokens = max(-(-s.tokens // s.requests) for s in shapes)
        self._cache = KeyValueCache(
            model.shapes, dtype=model.dtype, device=model.device, max_bytes=1 << 40
        )
        self._runner = make_runner(model, self._cache.pool)
        self._sequences: dict[int, list[SequenceCache]] = {}
        for context in sorted({s.context for s in shapes}):
            count = max(s.requests for s in shapes if s.context == context)
            self._sequences[context] = [self._sequence(context) for _ in range(count)]

    def step_ms(self, shape: StepShape) -> float:
        """Run a step once."""
        rows, column = [], 0
        for r, sequence in enumerate(self._sequences[shape.context][: shape.requests]):
            share = shape.tokens // shape.requests + (r < shape.tokens % shape.requests)
            rows.append(PackedRow(sequence, column, share, shape.context))
            column += share
        ids = self._ids(shape.tokens).tolist()
        began = time.perf_counter()
        self._runner.run(rows, ids, np.arange(shape.tokens))
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)
        return (time.perf_counter() - began) * 1000.0

    def _sequence(self, context: int) -> SequenceCache:
        """A sequence of random tokens, computed in pieces."""
        room = context + self._tokens
        ids = self._ids(context)
        sequence = self._cache.open("", f"profile-{context}-{id(ids)}", ids[:0], room)
        assert sequence is not None
        sequence.reserve(room)
        for start in range(0, context, 256):
            piece = ids[start : start + 256].tolist()
            row = PackedRow(sequence, 0, len(piece), start)
            self._runner.run([row], piece, np.array([len(piece) - 1]))
            sequence.commit(piece, range(len(piece)))
        return sequence

    def _ids(self, count: int) -> NDArray[np.int32]:
        return self._random.integers(0, self._model.vocab_size, count, np.int32)


def _check(model: TargetModel, shapes: Sequence[StepShape], rounds: int) -> None:
    if rounds < 1:
        raise ConfigError(f"rounds: must be at least 1, got {rounds}")
    if not shapes:
        raise ConfigError("sizes: give at least one")
    for shape in shapes:
        if shape.requests < 1 or shape.context < 0 or shape.tokens < shape.requests:
            raise ConfigError(
                f"a step of {shape}: there must be at least one token per request and no negative "
                "context"
            )
        longest = shape.context + -(-shape.tokens // shape.requests)
        if longest > model.max_model_len:
            raise ConfigError(
                f"a step of {shape}: the model's context is {model.max_model_len} tokens; give "
                "smaller sizes or contexts"
            )
