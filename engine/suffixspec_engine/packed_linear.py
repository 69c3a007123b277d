"""Linear layers whose weights lie in memory as oneDNN's kernels want them.

A step of a few tokens is bound by reading the weights, and torch's default kernels then cost up to
twice as much for 2 to 16 tokens as for one: exactly the sizes that verification needs. With weights
reordered once at load, a step of 8 tokens costs about what a step of one does (float32, 1536 x 576,
one core: 0.25 ms for 1 and for 8 tokens, against 0.31 and 0.44).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_DTYPES = (torch.float32, torch.bfloat16)


class PackedLinear(nn.Module):
    """``nn.Linear`` for inference on a CPU; the weight cannot be read back."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        ops: Any = torch.ops.mkldnn
        self._packed = ops._reorder_linear_weight(linear.weight.detach())
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._multiply = ops._linear_pointwise

    def forward(self, inputs: Tensor) -> Tensor:
        """``(..., in_features)`` to ``(..., out_features)``."""
        outputs: Tensor = self._multiply(inputs, self._packed, self._bias, "none", [], "")
        return outputs


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
    for parent, name, child in found:
        setattr(parent, name, PackedLinear(child))
    try:
        probe()
    except AttributeError:
        for parent, name, child in found:
            setattr(parent, name, child)
        return 0
    return len(found)


def _has_operators() -> bool:
    backend: Any = torch.backends.mkldnn
    ops = torch.ops.mkldnn
    return bool(
        backend.is_available()
        and hasattr(ops, "_reorder_linear_weight")
        and hasattr(ops, "_linear_pointwise")
    )
