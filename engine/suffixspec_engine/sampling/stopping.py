"""When a request ends: stop tokens, stop strings and length, whichever comes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from suffixspec_engine.sampling.contract import FinishReason, RowState
from suffixspec_engine.sampling.params import SamplingParams
from suffixspec_index.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Finish:
    """How a request ended at a token.

    Attributes as of :class:`~.contract.Verdict`; ``visible``: whether the token is in the text.
    """

    reason: FinishReason
    stop_reason: int | str | None = None
    visible: bool = True
    text_end: int | None = None


class StopCheck:
    """Follows the tokens that a step gains and says at which of them the request ends.

    The state is not changed: text is followed by a fork of its detokenizer, and only where there
    are stop strings.

    Raises:
        ConfigError: there are stop strings, and no detokenizer to find them with.
    """

    def __init__(self, state: RowState, params: SamplingParams) -> None:
        self._params = params
        self.stop_ids = state.stop_ids(params)
        self._count = state.position
        self._last = state.position + state.remaining(params)
        self._tail = ""
        self._tail_start = 0
        self._detokenizer = None
        if params.stop:
            if state.detokenizer is None:
                raise ConfigError(
                    f"stop: {list(params.stop)!r} needs a detokenizer; this engine has no "
                    "tokenizer, so use stop_token_ids"
                )
            self._detokenizer = state.detokenizer.fork()
            reach = max(len(text) for text in params.stop) - 1
            self._tail_start = max(0, len(state.text) - reach)
            self._tail = state.text[self._tail_start :]

    def add(self, token_id: int) -> Finish | None:
        """The request gained ``token_id``; how it ends there, or ``None``."""
        self._count += 1
        if token_id in self.stop_ids:
            # Not to be asked whether min_tokens are there: until then stop tokens are masked,
            # except where the grammar allows nothing else. As in vLLM, the model's own end of
            # sequence is not named.
            named = token_id if token_id in self._params.stop_token_id_set else None
            return Finish("stop", named, visible=self._params.include_stop_str_in_output)
        if self._detokenizer is not None:
            old = len(self._tail)
            self._tail += self._detokenizer.feed(token_id)
            found = None
            if self._count > self._params.min_tokens:
                found = _first_stop(self._tail, self._params.stop, old)
            if found is not None:
                text, start = found
                end = start + len(text) if self._params.include_stop_str_in_output else start
                return Finish("stop", text, text_end=self._tail_start + end)
        if self._count >= self._last:
            return Finish("length")
        return None


def _first_stop(text: str, stops: Sequence[str], known: int) -> tuple[str, int] | None:
    """The stop string that ends first beyond ``known`` characters (the longest, where two end
    together), and where it starts."""
    best: tuple[int, int, str] | None = None
    for stop in stops:
        start = text.find(stop, max(0, known - len(stop) + 1))
        if start >= 0:
            found = (start + len(stop), start, stop)
            best = found if best is None else min(best, found)
    return None if best is None else (best[2], best[1])


class IncrementalDetokenizer:
    """Text of a growing sequence, token by token, in O(1) decodes of a few tokens each.

    A token's text is what it adds to the decoding of the tokens just before it, so that spaces come
    out as in the whole; text that ends in an unfinished character is held back until it is whole.

    Args:
        decode: token ids to text, special tokens already skipped.
        prompt_token_ids: its last tokens are the first context.
    """

    _CONTEXT = 5

    def __init__(
        self, decode: Callable[[list[int]], str], prompt_token_ids: Sequence[int] = ()
    ) -> None:
        self._decode = decode
        self._ids = [int(t) for t in prompt_token_ids[-self._CONTEXT :]]
        self._read = len(self._ids)
        self._shown = decode(self._ids) if self._ids else ""

    def feed(self, token_id: int) -> str:
        """The text that ``token_id`` completes; empty inside an unfinished character."""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        if len(text) <= len(self._shown) or text.endswith("\ufffd"):
            return ""
        gained = text[len(self._shown) :]
        self._ids = self._ids[self._read :]
        self._read = len(self._ids)
        self._shown = self._decode(self._ids)
        return gained

    def fork(self) -> IncrementalDetokenizer:
        """A copy that can be fed without changing this one."""
        copy = IncrementalDetokenizer(self._decode)
        copy._ids, copy._read, copy._shown = list(self._ids), self._read, self._shown
        return copy
