"""Sessions' own memories: each its context as text in a tree of its own, extended turn by turn.

A long new prompt is not inserted under the index's write lock: the memory is lent
(:meth:`Sessions.lend`), the prompt enters what was lent, and that is taken back. See
:mod:`suffixspec_index.beginning`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.forest import Forest, TreeArrays
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
    awaited: NDArray[np.int32] | None = None  # lent: the prompt that is being inserted

    @property
    def in_use(self) -> bool:
        """Whether it belongs to a request that lives or begins."""
        return self.request >= 0 or self.awaited is not None

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

        Raises:
            CapacityError: too much text. What was said before may be lost then.
        """
        known = common_prefix(self.context(), prompt)
        anew = self._is_built_anew(prompt, known)
        self.unwanted = False
        if anew:
            self.drop()
            self._build(prompt)
        elif known == len(self):
            self.append(prompt[known:])
        else:
            self._branch(prompt, known)
        return known

    def new_tokens(self, prompt: NDArray[np.int32]) -> int:
        """How many tokens :meth:`set_prompt` would have to insert."""
        known = common_prefix(self.context(), prompt)
        return len(prompt) if self._is_built_anew(prompt, known) else len(prompt) - known

    def take(self, other: SessionMemory) -> TreeArrays | None:
        """Become what was lent. O(1), if what is returned (the arrays that nobody needs any more,
        which take milliseconds to free) is given up later."""
        if self.row < 0:
            self.row, given_up = self.forest.adopt(other.forest, other.row), None
        else:
            given_up = self.forest.arrays[self.row]
            self.forest.take(self.row, other.forest, other.row)
        self.pieces, self.unwanted = other.pieces, other.unwanted
        return given_up

    def append(self, tokens: NDArray[np.int32]) -> None:
        """Append to the context and insert the windows that become complete."""
        forest, head = self.forest, self.forest.table[self.row]
        forest.append(self.row, tokens)
        stop = int(head[L.H_N_TEXT]) - self.depth + 1
        if stop > int(head[L.H_NEXT]):
            forest.insert(self.row, stop)

    def _is_built_anew(self, prompt: NDArray[np.int32], known: int) -> bool:
        if self.row < 0:
            return True
        if known == len(self):
            return False
        text = int(self.forest.table[self.row, L.H_N_TEXT]) + len(prompt) - known
        return self.unwanted or text > 2 * len(prompt) + _SLACK

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
        self._lent: dict[int, SessionMemory] = {}  # by id()

    def get(self, session_id: str) -> SessionMemory | None:
        """The memory of a session that is known."""
        return self._by_id.get(session_id)

    def for_request(self, session_id: str) -> SessionMemory:
        """The session's memory, made where it is new; a private one where it is in use."""
        session = self._by_id.get(session_id)
        if session is not None and session.in_use:
            return SessionMemory(None, self._forest, self._depth)
        if session is None:
            session = SessionMemory(session_id, self._forest, self._depth)
            self._by_id[session_id] = session
        self._by_id.move_to_end(session_id)
        return session

    def lend(self, session: SessionMemory, prompt: NDArray[np.int32]) -> SessionMemory:
        """The memory once more, in a forest of its own, so that a prompt may enter it without the
        lock. Until :meth:`take_back` or :meth:`abandon` the session is in use and remembers what
        it did. O(1)."""
        session.awaited = prompt
        self._lent[id(session)] = session
        lent = SessionMemory(
            session.id,
            Forest(),
            session.depth,
            pieces=list(session.pieces),
            unwanted=session.unwanted,
        )
        if session.row >= 0:
            lent.row = lent.forest.adopt(session.forest, session.row)
        return lent

    def take_back(self, session: SessionMemory, lent: SessionMemory) -> TreeArrays | None:
        """The prompt is in; as :meth:`SessionMemory.take`."""
        given_up = session.take(lent)
        session.awaited = None
        del self._lent[id(session)]
        return given_up

    def abandon(self, session: SessionMemory) -> None:
        """A request could not begin: forget what cannot be used any more."""
        whole = session.awaited is None and session.row >= 0
        if session.request >= 0 or (whole and session.id is not None):
            return
        session.awaited = None
        self._lent.pop(id(session), None)
        if session.id is not None and self._by_id.get(session.id) is session:
            del self._by_id[session.id]
        session.drop()

    def end(self, session_id: str) -> None:
        """Forget a session; while a request uses its memory, that is dropped with the request."""
        session = self._by_id.pop(session_id, None)
        if session is None:
            return
        if session.in_use:
            session.id = None
        else:
            session.drop()

    def oldest_idle(self) -> str | None:
        """The least recently used session without a request. O(sessions in use)."""
        return next((name for name, s in self._by_id.items() if not s.in_use), None)

    def end_idle(self) -> None:
        """Forget all that have no request."""
        for name in [name for name, s in self._by_id.items() if not s.in_use]:
            self._by_id.pop(name).drop()

    def values(self) -> Iterable[SessionMemory]:
        """All of them."""
        return self._by_id.values()

    def lent(self) -> Iterable[SessionMemory]:
        """Those that are lent, also where they were ended meanwhile."""
        return self._lent.values()

    def __len__(self) -> int:
        return len(self._by_id)


def common_prefix(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """Length of the longest common prefix. O(length), vectorised."""
    n = min(len(a), len(b))
    if np.array_equal(a[:n], b[:n]):
        return n
    return int(np.argmax(a[:n] != b[:n]))
