"""Sessions' own memories: each its context as text in a tree of its own, extended turn by turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.forest import Forest
from suffixspec_index.kernels import layout as L

_SLACK = 4096  # tokens of abandoned text before a session's tree is built anew


@dataclass(slots=True)
class SessionMemory:
    """The tree of one session.

    The context is the concatenation of ``pieces`` ``(text position, length)``. Normally there is
    one. Where a new prompt departs from what was said (an edited or truncated history), the text
    gets a new piece, which repeats the last ``depth - 1`` tokens before the change so that matches
    run across it; what was abandoned stays searchable until it outweighs the context.
    """

    id: str | None  # None: a private branch of a session that already has a live request
    forest: Forest
    depth: int
    row: int = -1
    pieces: list[tuple[int, int]] = field(default_factory=list)
    request: int = -1  # row of its live request
    unwanted: bool = False  # the end of the context must not be remembered unless a prompt has it

    def context(self) -> NDArray[np.int32]:
        """The tokens so far, ``(n,)`` int32; a view where there is one piece."""
        text = self._text()
        if len(self.pieces) == 1:
            at, length = self._spans()[0]
            return text[at : at + length]
        parts = [text[at : at + length] for at, length in self._spans()]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def __len__(self) -> int:
        return sum(length for _, length in self._spans())

    def set_prompt(self, prompt: NDArray[np.int32]) -> int:
        """Make ``prompt`` the context; returns how many of its tokens were known already.

        Costs O(new tokens) and one comparison of the known ones.
        """
        if self.row < 0:
            self._build(prompt)
            return 0
        known = common_prefix(self.context(), prompt)
        unwanted, self.unwanted = self.unwanted, False
        if known == len(self):
            self.append(prompt[known:])
            return known
        head = self.forest.table[self.row]
        if unwanted or int(head[L.H_N_TEXT]) + len(prompt) - known > 2 * len(prompt) + _SLACK:
            self.forest.drop(self.row)
            self._build(prompt)
            return known
        self._branch(prompt, known)
        return known

    def append(self, tokens: NDArray[np.int32]) -> None:
        """Append to the context and insert the windows that become complete."""
        forest, head = self.forest, self.forest.table[self.row]
        forest.append(self.row, tokens)
        stop = int(head[L.H_N_TEXT]) - self.depth + 1
        if stop > int(head[L.H_NEXT]):
            forest.insert(self.row, stop)

    def _build(self, prompt: NDArray[np.int32]) -> None:
        self.row = self.forest.add(self.depth, len(prompt) + len(prompt) // 8 + 256)
        self.pieces = [(0, 0)]
        self.append(prompt)

    def _branch(self, prompt: NDArray[np.int32], known: int) -> None:
        """Close the text, and go on after the first ``known`` tokens with the rest of a prompt."""
        forest = self.forest
        forest.append(self.row, np.empty(0, np.int32), end=True)
        head = forest.table[self.row]
        stop = int(head[L.H_N_TEXT]) - 1
        if stop > int(head[L.H_NEXT]):
            forest.insert(self.row, stop)
        kept: list[tuple[int, int]] = []
        left = known
        for at, length in self._closed_spans():
            if left > 0:
                kept.append((at, min(length, left)))
            left -= length
        repeat = min(self.depth - 1, known)
        at = forest.begin_block(self.row)
        self.pieces = [*kept, (at + repeat, 0)]
        self.append(prompt[known - repeat :])

    def _spans(self) -> list[tuple[int, int]]:
        """The pieces, the last one's length taken from the text."""
        if self.row < 0 or not self.pieces:
            return []
        at = self.pieces[-1][0]
        n = int(self.forest.table[self.row, L.H_N_TEXT])
        return [*self.pieces[:-1], (at, n - at)]

    def _closed_spans(self) -> list[tuple[int, int]]:
        """As :meth:`_spans`, after ``END`` was appended."""
        spans = self._spans()
        at, length = spans[-1]
        return [*spans[:-1], (at, length - 1)]

    def _text(self) -> NDArray[np.int32]:
        arrays = self.forest.arrays[self.row] if self.row >= 0 else None
        return np.empty(0, np.int32) if arrays is None else arrays.text

    def tail(self, n: int) -> NDArray[np.int32]:
        """The last ``n`` tokens of the context, fewer where it is shorter.

        They are contiguous in the text for ``n < depth`` because pieces repeat what precedes them;
        for more, the context is put together.
        """
        end = int(self.forest.table[self.row, L.H_N_TEXT])
        at = self.pieces[-1][0]
        if end - at >= n or len(self.pieces) == 1:
            return self._text()[max(at, end - n) : end]
        return self.context()[-n:]

    def drop(self) -> None:
        """Free the memory."""
        if self.row >= 0:
            self.forest.drop(self.row)
            self.row = -1
            self.pieces = []


class Sessions:
    """The memories of an index's sessions by id, the least recently used first. The index's write
    lock is held in every call but :meth:`get` and the sizes.

    Args:
        forest: where their trees are.
        depth: window length of these.
    """

    def __init__(self, forest: Forest, depth: int) -> None:
        self._forest = forest
        self._depth = depth
        self._by_id: OrderedDict[str, SessionMemory] = OrderedDict()

    def get(self, session_id: str) -> SessionMemory | None:
        """The memory of a session that is known."""
        return self._by_id.get(session_id)

    def for_request(self, session_id: str) -> SessionMemory:
        """The session's memory, made where it is new; a private one where it is in use."""
        session = self._by_id.get(session_id)
        if session is not None and session.request >= 0:
            return SessionMemory(None, self._forest, self._depth)
        if session is None:
            session = SessionMemory(session_id, self._forest, self._depth)
            self._by_id[session_id] = session
        self._by_id.move_to_end(session_id)
        return session

    def end(self, session_id: str) -> None:
        """Forget a session; while a request uses its memory, that is dropped with the request."""
        session = self._by_id.pop(session_id, None)
        if session is None:
            return
        if session.request >= 0:
            session.id = None
        else:
            session.drop()

    def oldest_idle(self) -> str | None:
        """The least recently used session without a request. O(sessions in use)."""
        return next((name for name, s in self._by_id.items() if s.request < 0), None)

    def end_idle(self) -> None:
        """Forget all that have no request."""
        for name in [name for name, s in self._by_id.items() if s.request < 0]:
            self._by_id.pop(name).drop()

    def values(self) -> Iterable[SessionMemory]:
        """All of them."""
        return self._by_id.values()

    def __len__(self) -> int:
        return len(self._by_id)


def common_prefix(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """Length of the longest common prefix. O(length), vectorised."""
    n = min(len(a), len(b))
    if np.array_equal(a[:n], b[:n]):
        return n
    return int(np.argmax(a[:n] != b[:n]))
