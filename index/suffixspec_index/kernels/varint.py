"""Variable-length integers (LEB128, as in DWARF and Protocol Buffers): seven bits a byte, lowest
first, the top bit set in all bytes but the last."""

from __future__ import annotations

import numpy as np

from suffixspec_index.kernels.jit import kernel

MOST = 9  # bytes that an integer below 2**63 takes


@kernel
def encode_varints(values, out):
    """Write non-negative ``values`` (int64) to ``out`` (uint8, room for ``MOST`` bytes each);
    returns how many bytes that took."""
    at = 0
    for value in values:
        while value >= 128:
            out[at] = value & 127 | 128
            at += 1
            value >>= 7
        out[at] = value
        at += 1
    return at


@kernel
def decode_varints(data, out):
    """Read integers from ``data`` (uint8) into ``out`` (int64); returns how many there are.

    -1 where one takes more than ``MOST`` bytes or the data ends within one. ``out`` must have room
    for as many as there are bytes below 128.
    """
    n = 0
    value = np.int64(0)
    shift = 0
    for byte in data:
        if shift > 56:
            return np.int64(-1)
        value |= np.int64(byte & 127) << shift
        if byte < 128:
            out[n] = value
            n += 1
            value = np.int64(0)
            shift = 0
        else:
            shift += 7
    return np.int64(n) if shift == 0 else np.int64(-1)
