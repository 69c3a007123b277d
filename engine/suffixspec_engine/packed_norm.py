"""Root mean square norms in one pass, on a CPU.

transformers computes such a norm in seven calls of torch, each of which goes over all numbers once
more and costs microseconds for starting; a model calls it twice in every layer. The kernel here
reads a row once from memory and rounds where the original rounds (SmolLM2, 1 and 64 tokens: 4 and
9 µs instead of 18 and 32 in float32, 4 and 21 instead of 22 and 53 in bfloat16).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from suffixspec_index.kernels.jit import kernel
from suffixspec_index.pointers import int32_at

_MOST = 1 << 15  # numbers; more are worth sharing among torch's threads, where it has several
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


@kernel(fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def _sum_of_squares(numbers: NDArray[np.float32]) -> np.float32:
    """Several at a time, in any order; only here, where that changes no more than the last bit."""
    total = np.float32(0.0)
    for i in range(len(numbers)):
        total += numbers[i] * numbers[i]
    return total


@kernel
def _norm_float32(
    inputs: int, weight: int, outputs: int, rows: int, width: int, eps: float
) -> None:
    """``outputs[r] = weight * (inputs[r] * rsqrt(mean(inputs[r] ** 2) + eps))``; addresses of
    float32 numbers."""
    x = int32_at(inputs, rows * width).view(np.float32)
    y = int32_at(outputs, rows * width).view(np.float32)
    w = int32_at(weight, width).view(np.float32)
    for r in range(rows):
        first = r * width
        total = _sum_of_squares(x[first : first + width])
        factor = np.float32(1.0) / np.sqrt(total / np.float32(width) + np.float32(eps))
        for i in range(width):
            y[first + i] = w[i] * (x[first + i] * factor)


@kernel(inline="always")  # type: ignore[untyped-decorator]
def _rounded(bits: Any) -> Any:
    """The upper half of a float32's bits as bfloat16 has them: to the nearest, ties to even."""
    up = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.uint32(0x7FC0) if nan else up


@kernel
def _norm_bfloat16(
    inputs: int, weight: int, outputs: int, rows: int, width: int, eps: float
) -> None:
    """As :func:`_norm_float32`, of bfloat16 numbers; ``width`` is even. Computed in float32, and
    rounded before the weight and after it."""
    x = int32_at(inputs, rows * width // 2).view(np.uint16)
    y = int32_at(outputs, rows * width // 2).view(np.uint16)
    w = int32_at(weight, width // 2).view(np.uint16)
    bits, weight_bits = np.empty(width, np.uint32), np.empty(width, np.uint32)
    numbers, weights = bits.view(np.float32), weight_bits.view(np.float32)
    for i in range(width):
        weight_bits[i] = np.uint32(w[i]) << np.uint32(16)
    for r in range(rows):
        first = r * width
        for i in range(width):
            bits[i] = np.uint32(x[first + i]) << np.uint32(16)
        total = _sum_of_squares(numbers)
        factor = np.float32(1.0) / np.sqrt(total / np.float32(width) + np.float32(eps))
        for i in range(width):
            numbers[i] *= factor
        for i in range(width):
            bits[i] = _rounded(bits[i]) << np.uint32(16)
        for i in range(width):
            numbers[i] *= weights[i]
        for i in range(width):
            y[first + i] = np.uint16(_rounded(bits[i]))


_KERNELS = {torch.float32: _norm_float32, torch.bfloat16: _norm_bfloat16}


class PackedNorm(nn.Module):
    """A norm of transformers for inference on a CPU.

    Args:
        norm: has ``weight``, a vector, and ``variance_epsilon``; see :func:`pack_norms` for what
            else it must be.
    """

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = norm.weight, norm.variance_epsilon
        self._kernel = _KERNELS[norm.weight.dtype]
        self._given = [norm]  # in a list: its weight is not counted twice
        self._address = norm.weight.data_ptr()
        self._width, self._dtype = len(norm.weight), norm.weight.dtype

    def forward(self, hidden_states: Tensor) -> Tensor:
        """``(..., width)`` to the same."""
        count = hidden_states.numel()
        shared = count > _MOST and torch.get_num_threads() > 1
        fits = hidden_states.dtype is self._dtype and hidden_states.is_contiguous()
        if shared or not fits or hidden_states.shape[-1] != self._width:
            given: Tensor = self._given[0](hidden_states)
            return given
        outputs = torch.empty_like(hidden_states)
        self._kernel(
            hidden_states.data_ptr(),
            self._address,
            outputs.data_ptr(),
            count // self._width,
            self._width,
            self.variance_epsilon,
        )
        return outputs


@torch.inference_mode()
def pack_norms(module: nn.Module) -> int:
    """Replace the norms of a model on a CPU that are what their name says.

    A norm is replaced if its class is called ``…RMSNorm``, has nothing but a weight and
    ``variance_epsilon``, and gives for random numbers what the kernel gives.

    Args:
        module: changed in place.

    Returns:
        How many norms were replaced.
    """
    found = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if _is_plain(child)
    ]
    for parent, name, child in found:
        setattr(parent, name, PackedNorm(child))
    return len(found)


def _is_plain(norm: Any) -> bool:
    if not type(norm).__name__.endswith("RMSNorm") or not hasattr(norm, "variance_epsilon"):
        return False
    if [name for name, _ in norm.named_parameters()] != ["weight"] or list(norm.buffers()):
        return False
    weight = norm.weight
    if weight.device.type != "cpu" or weight.dtype not in _KERNELS or weight.ndim != 1:
        return False
    if len(weight) % 2 or not weight.is_contiguous():
        return False
    generator = torch.Generator().manual_seed(0)
    inputs = (4.0 * torch.randn(3, len(weight), generator=generator)).to(weight.dtype)
    tolerance = _TOLERANCE[weight.dtype]
    return torch.allclose(norm(inputs), PackedNorm(norm)(inputs), rtol=tolerance, atol=1e-6)
