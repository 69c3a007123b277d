"""The engine as one who writes messages: what the recorder of agent sessions asks.

It fits ``suffixspec_traces.record.TextModel`` without knowing it. Speculation makes recording
quicker and changes nothing in the text: every message's random draws are keyed by its session and
place, and a message that falls into a loop ends at the same token, however it was drafted.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from suffixspec_engine.engine import Engine
from suffixspec_engine.sampling import SamplingParams
from suffixspec_index.errors import ConfigError, GenerationError

Ids = NDArray[np.int32]


class EngineTextModel:
    """Messages by an engine, for many threads at once.

    Args:
        engine: who runs the model; closed by :meth:`close`.
        name: what recordings call the model; the engine's name for it by default.
        temperature, top_p: as in :class:`~suffixspec_engine.sampling.SamplingParams`.
        seed: together with a message's session and length of prompt it fixes the random draws,
            whatever else is running. (Floating-point sums may still differ from batch to batch.)
        repeat_limit: stop a message that says the same tokens this many times in a row (0: never).
            Small models fall into such loops, and a recording of them would flatter speculation.

    Attributes:
        settings: how it generates, JSON-ready. What is drafted is not part of it: it leaves no
            trace in the text.

    Raises:
        ConfigError: a setting is out of range.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        name: str | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        repeat_limit: int = 0,
    ) -> None:
        if repeat_limit < 0 or repeat_limit == 1:
            raise ConfigError(f"repeat_limit is {repeat_limit}; it must be 0 (never) or at least 2")
        SamplingParams(temperature=temperature, top_p=top_p)  # says what is wrong with them
        self.name = name or engine.model.name
        self.settings: dict[str, object] = {
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
            "repeat_limit": repeat_limit,
            "dtype": str(engine.model.dtype).removeprefix("torch."),
        }
        self._engine = engine
        self._temperature, self._top_p, self._seed = temperature, top_p, seed
        self._repeat_limit = repeat_limit

    def generate(self, prompt: Ids, *, key: str, max_new_tokens: int) -> Ids:
        """What the model says after ``prompt``.

        Args:
            prompt: ``(n,)`` int32. What the session's cache shares with it is not computed again.
            key: names the session.
            max_new_tokens: most tokens of the message.

        Returns:
            ``(m,)`` int32, the end token included where it ended.

        Raises:
            GenerationError: the engine was closed, or a step failed.
            ConfigError, InputError, CapacityError: as for :meth:`Engine.submit`.
        """
        draws = zlib.crc32(f"{self._seed}:{key}:{len(prompt)}".encode())
        params = SamplingParams(
            temperature=self._temperature, top_p=self._top_p, seed=draws, max_tokens=max_new_tokens
        )
        output: list[int] = []
        for event in self._engine.stream(prompt, params, session_id=key):
            if event.finish_reason in ("error", "cancelled"):
                raise GenerationError(
                    f"session {key!r}: the message was cut off: {event.stop_reason}"
                )
            for token in event.token_ids:
                output.append(token)
                if self._repeat_limit and repeats(output, self._repeat_limit):
                    return np.array(output, np.int32)  # leaving the loop cancels the request
        return np.array(output, np.int32)

    def release(self, key: str) -> None:
        """Forget a session's cache; what it said still serves others as drafts."""
        self._engine.end_session(key)

    def close(self) -> None:
        """Close the engine: what is being generated ends with an error."""
        self._engine.close()


def repeats(ids: Sequence[int], times: int, *, at_least: int = 16) -> bool:
    """Whether ``ids`` end in one block of tokens said ``times`` times in a row.

    The repetition must be ``at_least`` tokens long, so that rows of dashes or digits do not count.
    O(n²/times) for n tokens at worst; nearly always O(n/times).
    """
    n = len(ids)
    for period in range(max(1, -(-at_least // times)), n // times + 1):
        span = period * times
        if ids[n - 1] == ids[n - 1 - period] and all(
            ids[n - i] == ids[n - i - period] for i in range(1, span - period + 1)
        ):
            return True
    return False
