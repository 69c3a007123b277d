"""Beginning a request: its prompt enters the session's memory, beside the lock where it is long.

Inserting a prompt costs one to two microseconds a token, so a long one under the write lock would
hold up the steps of all other requests for a tenth of a second. The session's memory is therefore
lent: its arrays become a tree of a forest of their own, that nobody else knows of. Without the lock
the prompt is inserted there, and what came of it is taken back in microseconds. Meanwhile the
session is in use, as it is while a request of it lives: a second request gets a private branch,
nobody forgets it, and where it is ended the request goes on with what becomes a private memory.
What is being built counts against the budget from the moment when it is taken back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.sessions import SessionMemory, common_prefix

if TYPE_CHECKING:
    from suffixspec_index.index import SuffixIndex

_AT_ONCE = 512  # new tokens that are inserted under the lock: less than a millisecond


def begin_request(
    index: SuffixIndex, session_id: str, prompt: NDArray[np.int32], max_tokens: int | None
) -> tuple[int, bool]:
    """Start a request; returns its handle, and whether the oldest sequences must be forgotten.

    Call it without the index's lock.

    Raises:
        CapacityError: too much text. The request does not exist then; the session's own memory,
            which may have been changed already, is forgotten.
    """
    sessions = index._sessions
    with index._lock.writing():
        session = sessions.for_request(session_id)
        try:
            if session.new_tokens(prompt) <= _AT_ONCE:
                known = session.set_prompt(prompt)
                return _open(index, session_id, session, prompt, known, max_tokens)
            lent = sessions.lend(session, prompt)
        except BaseException:
            sessions.abandon(session)
            raise
    try:
        known = lent.set_prompt(prompt)
        with index._lock.writing():
            given_up = sessions.take_back(session, lent)
            opened = _open(index, session_id, session, prompt, known, max_tokens)
    except BaseException:
        with index._lock.writing():
            sessions.abandon(session)
        raise
    del given_up  # not before: giving memory back takes longer than what is done under the lock
    return opened


def _open(
    index: SuffixIndex,
    session_id: str,
    session: SessionMemory,
    prompt: NDArray[np.int32],
    known: int,
    max_tokens: int | None,
) -> tuple[int, bool]:
    """Open the request of a session that holds its prompt, ``known`` tokens of it since earlier.
    The write lock is held."""
    if index.config.index_prompts and index.config.max_cached_requests:
        origin = index._sessions.get(session_id)
        if session.id is None and origin is not None:  # a branch: that has brought most, or will
            held = origin.context() if origin.awaited is None else origin.awaited
            known = common_prefix(held, prompt)
        fresh = prompt[known:]
        if len(fresh) > 1:
            index.spoken.insert(fresh)
    handle = index._requests.open(session, max_tokens)
    index._update_context()
    return handle, index._budget.enforce()
