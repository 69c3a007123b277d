"""How a step is run on a device: request by request, or all at once from captured graphs.

On a GPU a decoding step of a small model is bound by launching kernels, not by running them. A CUDA
graph launches a whole step at once. It needs that nothing moves and that sizes are fixed, which
:class:`~.flex.FlexStep` gives it. A step with a prompt, or one that is too large, goes the plain
way over the same keys and values.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from suffixspec_engine.attention import PackedRow, PackedStep, running
from suffixspec_engine.flex import FlexStep, Kernel, size_for
from suffixspec_engine.models import TargetModel
from suffixspec_engine.slots import SlotPool

_log = logging.getLogger(__name__)
_Ids = Sequence[int] | np.ndarray[Any, np.dtype[np.int64]]


class StepRunner(Protocol):
    """Runs the model over a packed row."""

    def run(self, rows: Sequence[PackedRow], token_ids: Sequence[int], logit_rows: _Ids) -> Tensor:
        """``(len(logit_rows), vocab)`` float32 logits of the columns asked for; keys and values
        are written behind each row's known ones."""


class PlainRunner:
    """Attends request by request; works everywhere."""

    def __init__(self, model: TargetModel) -> None:
        self._model = model

    def run(self, rows: Sequence[PackedRow], token_ids: Sequence[int], logit_rows: _Ids) -> Tensor:
        """See :class:`StepRunner`."""
        return self._model.run(PackedStep(rows), token_ids, np.asarray(logit_rows, np.int64))


class FlexRunner:
    """Attends to all requests at once where nothing but decoding is done.

    Args:
        model: its requests' keys and values lie in ``pool``.
        pool: of the cache.
        kernel: what attends; ``None``: torch's ``flex_attention``, compiled where that makes a
            kernel of it (on a CPU it is run as it is, for comparison: it is slow there).
        capture: make a CUDA graph of each size at its first step; on CUDA only.
    """

    def __init__(
        self,
        model: TargetModel,
        pool: SlotPool,
        *,
        kernel: Kernel | None = None,
        capture: bool = True,
    ) -> None:
        self._model, self._pool, self._capture = model, pool, capture
        if kernel is None:
            on_cpu = model.device.type == "cpu"
            kernel = flex_attention if on_cpu else torch.compile(flex_attention, dynamic=False)
        self._kernel = kernel
        self._plain = PlainRunner(model)
        self._steps: dict[int, _Decoding] = {}

    @torch.inference_mode()
    def run(self, rows: Sequence[PackedRow], token_ids: Sequence[int], logit_rows: _Ids) -> Tensor:
        """See :class:`StepRunner`."""
        size = size_for(rows)
        if size is None:
            return self._plain.run(rows, token_ids, logit_rows)
        step = self._steps.get(size)
        if step is None:
            step = _Decoding(self._model, FlexStep(size, self._pool, self._kernel))
            step.prepare(rows, token_ids, capture=self._capture)
            self._steps[size] = step
        wanted = torch.as_tensor(np.asarray(logit_rows, np.int64), device=self._model.device)
        return step.logits(rows, token_ids)[wanted].float()


class _Decoding:
    """Steps of one size, captured or not."""

    def __init__(self, model: TargetModel, step: FlexStep) -> None:
        self._model, self._step = model, step
        self._graph: torch.cuda.CUDAGraph | None = None
        self._captured: Tensor | None = None

    def prepare(
        self, rows: Sequence[PackedRow], token_ids: Sequence[int], *, capture: bool
    ) -> None:
        """Compile, and capture if asked to. The step at hand is run for it: what it writes is what
        running it writes, so that doing it again changes nothing."""
        if not capture or self._model.device.type != "cuda":
            return
        _log.info("capturing a CUDA graph of steps of %d tokens", self._step.size)
        self._step.load(rows, token_ids)
        stream: Any = torch.cuda.Stream(self._model.device)  # type: ignore[no-untyped-call]
        current: Any = torch.cuda.current_stream(self._model.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(2):  # compiles, and lets libraries allocate what they keep
                self._forward()
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._captured = self._forward()
        except RuntimeError as error:  # the model does what cannot be captured
            _log.warning("steps of %d tokens run without a graph: %s", self._step.size, error)
            self._captured = None
            return
        self._graph = graph

    def logits(self, rows: Sequence[PackedRow], token_ids: Sequence[int]) -> Tensor:
        """``(size, vocab)``, valid until the next call."""
        self._step.load(rows, token_ids)
        if self._graph is None or self._captured is None:
            return self._forward()
        self._graph.replay()
        return self._captured

    def _forward(self) -> Tensor:
        with running(self._step):
            logits: Tensor = self._model.module(
                input_ids=self._step.token_ids,
                position_ids=self._step.position_ids,
                use_cache=False,
            ).logits[0]
        return logits


def make_runner(model: TargetModel, pool: SlotPool | None) -> StepRunner:
    """What runs a model's steps where it is: with a pool, all requests at once."""
    return PlainRunner(model) if pool is None else FlexRunner(model, pool)
