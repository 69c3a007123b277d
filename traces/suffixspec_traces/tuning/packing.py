"""Sessions in a form that is cheap to send to another process, and a fingerprint of them.

A turn's prompt repeats all turns before it, as a view of one buffer; pickling the views would
write every buffer once per turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from suffixspec_traces.model import TokenSession, Turn

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PackedSession:
    """Turn ``t`` is ``buffers[b][:prompt_end]`` and ``[prompt_end:end]``, by ``spans[t]``."""

    id: str
    source: str
    start: float | None
    buffers: tuple[Ids, ...]
    spans: tuple[tuple[int, int, int], ...]  # buffer, prompt_end, end

    @staticmethod
    def of(session: TokenSession) -> PackedSession:
        """Pack; a turn that goes on from the one before shares its buffer. O(tokens)."""
        buffers: list[Ids] = []
        spans: list[tuple[int, int, int]] = []
        for turn in session.turns:
            whole = np.concatenate([turn.prompt, turn.output]).astype(np.int32, copy=False)
            if buffers and _starts_with(whole, buffers[-1]):
                buffers[-1] = whole
            else:
                buffers.append(whole)
            spans.append((len(buffers) - 1, len(turn.prompt), len(whole)))
        return PackedSession(
            session.id, session.source, session.start, tuple(buffers), tuple(spans)
        )

    def unpacked(self) -> TokenSession:
        """The session again, turns being views. What the replay does not need is left out."""
        turns = tuple(
            Turn(prompt=self.buffers[b][:prompt_end], output=self.buffers[b][prompt_end:end])
            for b, prompt_end, end in self.spans
        )
        return TokenSession(self.id, turns, source=self.source, start=self.start)


def fingerprint(groups: Sequence[Sequence[TokenSession]], *more: str) -> str:
    """Sixteen hexadecimal digits over the tokens of all sessions, their grouping, and ``more``."""
    digest = hashlib.sha256()
    for group in groups:
        digest.update(f"group {len(group)}\n".encode())
        for session in group:
            packed = PackedSession.of(session)
            digest.update(f"session {packed.spans}\n".encode())
            for buffer in packed.buffers:
                digest.update(np.ascontiguousarray(buffer, "<i4").tobytes())
    for text in more:
        digest.update(f"{len(text)}:{text}".encode())
    return digest.hexdigest()[:16]


def _starts_with(whole: Ids, start: Ids) -> bool:
    return len(whole) >= len(start) and bool((whole[: len(start)] == start).all())
