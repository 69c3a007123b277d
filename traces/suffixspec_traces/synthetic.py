"""Synthetic agent workloads of any size, for load tests. Labelled ``synthetic``: not evidence.

The sessions repeat themselves as agents do, and by how much is set: tool calls share their
scaffolding, files come back out of a read with a few lines changed, records are restated, plans are
said again. Files and records come from a pool that all sessions share, some far more popular than
others, so what one session said helps the next. Nothing here was written by a model: use recorded
traces to learn what speculation gains, and these to learn what it costs at scale.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from suffixspec_index.errors import ConfigError
from suffixspec_traces.model import Message, Role, Session, ToolCall

SOURCE = "synthetic"
_EPOCH = 1_735_689_600.0  # 2025-01-01, so that equal settings give equal files
_SYSTEM = (
    "You are an autonomous agent. Work step by step, call one tool at a time, and finish with a "
    "summary. Never invent file contents or records."
)
_VERBS = ("load", "parse", "merge", "check", "split", "count", "render", "store", "sort", "match")
_NOUNS = ("order", "token", "user", "batch", "record", "price", "route", "cache", "event", "image")
_FIELDS = ("status", "owner", "region", "amount", "priority", "created", "channel", "reference")
_STATES = ("open", "closed", "pending", "shipped", "on hold", "cancelled", "in review", "draft")
_WISHES = (
    "Please make {path} handle missing values.",
    "The function in {path} is slow; improve it.",
    "Rename the arguments in {path} so that they say what they mean.",
    "Add the missing checks to {path}.",
)
_QUESTIONS = (
    "What is the state of case {record}?",
    "Please update case {record} and tell me what you changed.",
    "Summarise case {record} for me.",
)


@dataclass(frozen=True, slots=True)
class SyntheticConfig:
    """What to generate.

    Attributes:
        sessions: how many.
        seed: equal settings and seed give equal sessions, each independent of the others.
        min_turns, max_turns: generated messages per session, both included.
        pool: distinct files and records the sessions work on; popularity falls as 1/rank.
        file_lines: mean length of a file.
        change_rate: share of lines an edit changes; the rest is copied verbatim.
        arrivals: mean sessions started per second, as a Poisson process.

    Raises:
        ConfigError: a value is out of range.
    """

    sessions: int = 1000
    seed: int = 0
    min_turns: int = 4
    max_turns: int = 12
    pool: int = 500
    file_lines: int = 40
    change_rate: float = 0.1
    arrivals: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("sessions", 1), ("min_turns", 2), ("pool", 1), ("file_lines", 4)):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"{name} is {value}; it must be at least {least}")
        if self.max_turns < self.min_turns:
            raise ConfigError(
                f"max_turns is {self.max_turns}; it must be at least min_turns ({self.min_turns})"
            )
        if not 0 <= self.change_rate <= 1:
            raise ConfigError(f"change_rate is {self.change_rate}; it must be between 0 and 1")
        if self.arrivals <= 0:
            raise ConfigError(f"arrivals is {self.arrivals}; it must be above 0")


def generate_sessions(config: SyntheticConfig) -> Iterator[Session]:
    """Yield the sessions one by one, in order of their start; memory does not grow with them."""
    clock = random.Random(f"{config.seed}-arrivals")
    start = _EPOCH
    for number in range(config.sessions):
        yield _session(config, number, start)
        start += clock.expovariate(config.arrivals)


def _session(config: SyntheticConfig, number: int, start: float) -> Session:
    rng = random.Random(f"{config.seed}-session-{number}")
    turns = rng.randint(config.min_turns, config.max_turns)
    script = _Script(config, rng, start)
    script.say("system", _SYSTEM)
    while script.turns < turns:
        left = turns - script.turns
        if left < 2:
            script.say("user", "Is everything done?")
            script.answer("Everything that was asked is done.")
        elif rng.random() < 0.6:
            script.edit_file(left)
        else:
            script.handle_record(left)
    return Session(
        f"synthetic-{config.seed}-{number:06d}", tuple(script.messages), SOURCE, model=SOURCE
    )


class _Script:
    """The messages of one session while they are made."""

    def __init__(self, config: SyntheticConfig, rng: random.Random, start: float) -> None:
        self.messages: list[Message] = []
        self.turns = 0
        self._config = config
        self._rng = rng
        self._now = start

    def say(self, role: Role, content: str) -> None:
        if role == "user":  # people think before they write
            self._now += self._rng.expovariate(0.1)
        self._add(Message(role, content, timestamp=self._now))

    def answer(self, content: str) -> None:
        self._generated(Message("assistant", content, generated=True, timestamp=self._now))

    def call(self, name: str, arguments: dict[str, str], result: str, thought: str) -> None:
        call_id = f"call_{len(self.messages)}"
        text = json.dumps(arguments)
        call = ToolCall(name, text, call_id)
        self._generated(Message("assistant", thought, (call,), generated=True, timestamp=self._now))
        self._now += self._rng.uniform(0.05, 1.0)
        self._add(Message("tool", result, tool_call_id=call_id, name=name, timestamp=self._now))

    def edit_file(self, left: int) -> None:
        """Read a file, write it back with a few lines changed, test it, and say what was done."""
        path, text = _file(self._config.seed, self._popular(), self._config.file_lines)
        self.say("user", self._rng.choice(_WISHES).format(path=path))
        self.call("read_file", {"path": path}, text, f"I will start by reading {path}.")
        changed, lines = self._changed(text)
        if left > 2:
            thought = f"Now I will write the corrected {path}, keeping everything else unchanged."
            result = f"wrote {changed.count(chr(10))} lines to {path}"
            self.call("write_file", {"path": path, "content": changed}, result, thought)
        if left > 3:
            result = f"collected {lines + 3} items\n\n{lines + 3} passed"
            self.call("run_tests", {"path": path}, result, "Let me run the tests.")
        self.answer(
            f"I changed {lines} lines of {path}. The plan was: read {path}, write the corrected "
            f"{path}, run the tests. All of this is done."
        )

    def handle_record(self, left: int) -> None:
        """Look a record up, change a field, and restate it."""
        key, record = _record(self._config.seed, self._popular())
        fields = dict(record)
        self.say("user", self._rng.choice(_QUESTIONS).format(record=key))
        self.call("get_record", {"id": key}, json.dumps(fields), f"Let me look up case {key}.")
        if left > 2:
            name, value = "status", self._rng.choice(_STATES)
            fields[name] = value
            arguments = {"id": key, "field": name, "value": value}
            thought = f"I will set {name} of case {key} to {value}."
            self.call("update_record", arguments, json.dumps(fields), thought)
        listed = "\n".join(f"- {name}: {value}" for name, value in fields.items())
        self.answer(f"Here is case {key}:\n\n{listed}\n\nIs there anything else I can do?")

    def _popular(self) -> int:
        """A rank in the pool; rank r is drawn in proportion to 1/(r + 1)."""
        # Inverse of the harmonic sum's logarithm: exact enough, and O(1).
        return int((self._config.pool + 1) ** self._rng.random()) - 1

    def _changed(self, text: str) -> tuple[str, int]:
        lines = text.split("\n")
        count = 0
        for i, line in enumerate(lines):
            if line.startswith("    ") and self._rng.random() < self._config.change_rate:
                lines[i] = f"{line}  # {self._rng.choice(_VERBS)} {self._rng.randint(0, 99)}"
                count += 1
        return "\n".join(lines), count

    def _generated(self, message: Message) -> None:
        self._now += self._rng.uniform(0.5, 5.0)
        self.turns += 1
        self._add(message)

    def _add(self, message: Message) -> None:
        self.messages.append(message)


@lru_cache(maxsize=1024)
def _file(seed: int, rank: int, mean_lines: int) -> tuple[str, str]:
    """The pool's file of this rank: path and text."""
    rng = random.Random(f"{seed}-file-{rank}")
    path = f"src/{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}_{rank}.py"
    lines: list[str] = []
    target = max(4, int(rng.gauss(mean_lines, mean_lines / 4)))
    while len(lines) < target:
        verb, noun, other = rng.choice(_VERBS), rng.choice(_NOUNS), rng.choice(_NOUNS)
        lines.append(f"def {verb}_{noun}({noun}, {other}_id={rng.randint(0, 999)}):")
        for _ in range(rng.randint(2, 6)):
            left, step = rng.choice(_NOUNS), rng.choice(_VERBS)
            lines.append(f"    {left} = {step}_{rng.choice(_NOUNS)}({noun}, {rng.randint(0, 99)})")
        lines += [f"    return {noun}", ""]
    return path, "\n".join(lines)


@lru_cache(maxsize=1024)
def _record(seed: int, rank: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The pool's record of this rank: key and fields."""
    rng = random.Random(f"{seed}-record-{rank}")
    key = f"C{rank:05d}-{rng.randint(100, 999)}"
    values = {name: f"{rng.choice(_NOUNS)}-{rng.randint(1000, 99999)}" for name in _FIELDS}
    values["status"] = rng.choice(_STATES)
    return key, (("id", key), *values.items())
