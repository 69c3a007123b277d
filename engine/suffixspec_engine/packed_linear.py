"""Linear layers whose weights lie in memory as oneDNN's kernels want them.

A step of a few tokens is bound by reading the weights, and torch's default kernels then cost up to
twice as much for 2 to 16 tokens as for one: exactly the sizes that verification needs. With weights
reordered once at load, a step of 8 tokens costs about what a step of one does (float32, 1536 x 576,
one core: 0.25 ms for 1 and for 8 tokens, against 0.31 and 0.44).

Layers of one module that read the same input, query, key and value, become one: the narrow ones
take as long for starting as for computing (SmolLM2: 0.13 ms instead of 0.21 in float32, 0.07
instead of 0.12 in bfloat16). Two wide ones gain nothing by it, so pairs are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_DTYPES = (torch.float32, torch.bfloat16)


_FEWEST = 3  # layers that read the same input and are worth making one


class PackedLinear(nn.Module):
    """``nn.Linear`` for inference on a CPU; the weight cannot be read back.

    Args:
        linears: one, or several whose outputs stand side by side: equally wide inputs, all with a
            bias or all without.
    """

    def __init__(self, *linears: nn.Linear) -> None:
        super().__init__()
        first = linears[0]
        self.in_features = first.in_features
        self.out_features = sum(linear.out_features for linear in linears)
        ops: Any = torch.ops.mkldnn
        self._packed = ops._reorder_linear_weight(torch.cat([one.weight for one in linears]))
        self._bias = None
        if first.bias is not None:
            self._bias = torch.cat([one.bias for one in linears])
        self._multiply = ops._linear_pointwise

    def forward(self, inputs: Tensor) -> Tensor:
        """``(..., in_features)`` to ``(..., out_features)``."""
        outputs: Tensor = self._multiply(inputs, self._packed, self._bias, "none", [], "")
        return outputs


class _Together:
    """Layers computed as one: whoever asks first computes for all that ask with the same input."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self._whole = PackedLinear(*linears)
        self._sizes = [linear.out_features for linear in linears]
        # One attribute, replaced as a whole: engines that share a model run it in their threads.
        self._latest: tuple[Tensor, tuple[Tensor, ...]] | None = None

    def outputs(self, inputs: Tensor, number: int) -> Tensor:
        """Of layer ``number``. The input must not change before the last layer has asked."""
        latest = self._latest
        if latest is None or latest[0] is not inputs:
            latest = (inputs, self._whole(inputs).split(self._sizes, dim=-1))
        self._latest = latest if number + 1 < len(self._sizes) else None
        return latest[1][number]


class PackedPart(nn.Module):
    """One of several linear layers that are computed together."""

    def __init__(self, together: _Together, number: int, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._together, self._number = together, number

    def forward(self, inputs: Tensor) -> Tensor:
        """``(..., in_features)`` to ``(..., out_features)``, a view of what all of them gave."""
        return self._together.outputs(inputs, self._number)


def pack_linears(module: nn.Module, probe: Callable[[], object]) -> int:
    """Replace a model's linear layers by packed ones where that is possible.

    Args:
        module: changed in place; only on a CPU, in float32 or bfloat16.
        probe: runs the model; if its code wants to see a packed weight, everything is put back.

    Returns:
        How many layers were packed.
    """
    if not _has_operators():
        return 0
    found = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
        and child.weight.device.type == "cpu"
        and child.weight.dtype in _DTYPES
    ]
    groups = _read_together({child: parent for parent, _, child in found}, probe)
    packed = {id(child): PackedLinear(child) for _, _, child in found if id(child) not in groups}
    for parent, name, child in found:
        setattr(parent, name, groups.get(id(child)) or packed[id(child)])
    try:
        probe()
    except (AttributeError, RuntimeError):
        for parent, name, child in found:
            setattr(parent, name, child)
        return 0
    return len(found)


def _read_together(
    parents: Mapping[nn.Linear, nn.Module], probe: Callable[[], object]
) -> dict[int, PackedPart]:
    """By id, layers of one parent that are called one after the other with the same input."""
    with _calls(list(parents)) as calls:
        probe()
    called = [id(linear) for linear, _ in calls]
    parts: dict[int, PackedPart] = {}
    start = 0
    for end in range(1, len(calls) + 1):
        if end < len(calls) and calls[end][1] is calls[start][1]:
            continue
        group = [linear for linear, _ in calls[start:end]]
        start = end
        alike = len({(parents[linear], linear.bias is None) for linear in group}) == 1
        once = all(called.count(id(linear)) == 1 for linear in group)
        if len(group) >= _FEWEST and alike and once:
            together = _Together(group)
            parts |= {id(one): PackedPart(together, n, one) for n, one in enumerate(group)}
    return parts


@contextmanager
def _calls(linears: Sequence[nn.Linear]) -> Iterator[list[tuple[nn.Linear, Tensor]]]:
    """What the layers are called with within it, in turn."""
    calls: list[tuple[nn.Linear, Tensor]] = []

    def note(linear: nn.Module, inputs: tuple[Any, ...]) -> None:
        assert isinstance(linear, nn.Linear)
        calls.append((linear, inputs[0]))

    hooks = [linear.register_forward_pre_hook(note) for linear in linears]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _has_operators() -> bool:
    backend: Any = torch.backends.mkldnn
    ops = torch.ops.mkldnn
    return bool(
        backend.is_available()
        and hasattr(ops, "_reorder_linear_weight")
        and hasattr(ops, "_linear_pointwise")
    )
