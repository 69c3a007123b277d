"""The recording loop: scripted users and real tools around a model that generates.

Every session under way has a thread of its own, which runs its tools and waits for the model; so
the model always has as many messages to write at once as there are sessions under way.
"""

from __future__ import annotations

import json
import queue
import re
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import ConfigError
from suffixspec_traces.model import Message, Session, ToolCall
from suffixspec_traces.record.base import (
    Arguments,
    Environment,
    Step,
    Task,
    TextModel,
    ToolFailure,
    tool_list,
    tool_names,
)
from suffixspec_traces.render import ChatRenderer

Ids = NDArray[np.int32]
Progress = Callable[[int, int], None]

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)


@dataclass(slots=True)
class _Live:
    """A session under way; its script is suspended where the model must speak."""

    task: Task
    script: Generator[str, str, None]
    messages: list[Message]
    prefix: str = ""  # what the next output is forced to start with

    def session(self, model: str) -> Session:
        return Session(
            self.task.id,
            tuple(self.messages),
            source=self.task.workload,
            model=model,
        )


class Recorder:
    """Plays tasks with a model and keeps the exact token ids.

    Args:
        model: writes the assistant's messages.
        renderer: renders the prompts; its tokenizer must be the model's.
        max_new_tokens: most tokens per generated message.
        max_context: a session ends before a prompt plus ``max_new_tokens`` would be longer.
        clock: seconds since the epoch.

    Raises:
        ConfigError: a limit is out of range.
    """

    def __init__(
        self,
        model: TextModel,
        renderer: ChatRenderer,
        *,
        max_new_tokens: int = 192,
        max_context: int = 2500,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens is {max_new_tokens}; it must be at least 1")
        if max_context <= max_new_tokens:
            raise ConfigError(
                f"max_context is {max_context}; it must be above max_new_tokens ({max_new_tokens})"
            )
        self.model = model
        self.renderer = renderer
        self.max_new_tokens = max_new_tokens
        self.max_context = max_context
        self.clock = clock

    def record(
        self,
        tasks: Sequence[Task],
        *,
        concurrency: int = 1,
        done: Callable[[Session], None] | None = None,
        progress: Progress | None = None,
    ) -> list[Session]:
        """Play all tasks to their end; sessions in the order of the tasks.

        Environments are closed, also where recording fails; the model is closed then too.

        Args:
            tasks: what to play.
            concurrency: sessions under way at once.
            done: given every session when it is over, in this thread, in the order of ending.
            progress: told after every message how many sessions are done and how many tokens were
                generated, in this thread.

        Raises:
            ConfigError: ``concurrency`` is below 1.
        """
        if concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency}; it must be at least 1")
        said: queue.SimpleQueue[int | Future[Session]] = queue.SimpleQueue()
        ended, tokens = 0, 0
        with ThreadPoolExecutor(concurrency, thread_name_prefix="suffixspec-record") as pool:
            futures = [pool.submit(self._session, task, said.put) for task in tasks]
            for future in futures:
                future.add_done_callback(said.put)
            try:
                while ended < len(futures):
                    event = said.get()
                    if isinstance(event, int):
                        tokens += event
                    else:
                        ended += 1
                        session = event.result()
                        if done is not None:
                            done(session)
                    if progress is not None:
                        progress(ended, tokens)
            except BaseException:
                self.model.close()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return [future.result() for future in futures]

    def _session(self, task: Task, said: Callable[[int], None]) -> Session:
        """Play one task to its end, in a thread of its own; ``said``: tokens of a message."""
        environment = task.open_environment()
        try:
            messages: list[Message] = []
            live = _Live(task, self._play(task, environment, messages), messages)
            text: str | None = None
            while self._advance(live, text):
                prompt = self._prompt(live)
                if len(prompt) + self.max_new_tokens > self.max_context:
                    break
                output = self.model.generate(
                    prompt, key=task.id, max_new_tokens=self.max_new_tokens
                )
                text = self._say(live, prompt, output)
                said(len(output))
            self.model.release(task.id)
            return _ending_with_the_model(live.session(self.model.name))
        finally:
            environment.close()

    def _advance(self, live: _Live, text: str | None) -> bool:
        """Let the script go on; whether it wants the model to speak again."""
        try:
            live.prefix = next(live.script) if text is None else live.script.send(text)
        except StopIteration:
            return False
        return True

    def _play(
        self, task: Task, environment: Environment, messages: list[Message]
    ) -> Generator[str, str, None]:
        """The script of one session.

        It yields where the model speaks, saying what the output must start with, and is sent what
        was said, that start included.
        """
        add = messages.append
        rules = f"{task.system}\nTools:\n{tool_list(task.tools)}"
        add(Message("system", rules, timestamp=self.clock()))
        for message in task.examples:
            add(replace(message, timestamp=self.clock()))
        for number, step in enumerate(task.steps):
            add(Message("user", step.user, timestamp=self.clock()))
            text = yield (forced_start(step.tool) if step.block is None else "")
            name, arguments = choose_call(text, step, task)
            called = messages[-1].tool_calls
            call_id = called[0].id if called and called[0].name == name else f"script_{number}"
            try:
                result = environment.call(name, arguments)
            except ToolFailure as failure:
                result = str(failure)
            add(Message("tool", result, tool_call_id=call_id, name=name, timestamp=self.clock()))
            add(Message("user", step.follow_up, timestamp=self.clock()))
            yield ""

    def _prompt(self, live: _Live) -> Ids:
        prompt = self.renderer.encode_prompt(live.session(self.model.name))
        forced = self.renderer.tokenizer.encode(live.prefix, continuation=True)
        return np.concatenate([prompt, forced])

    def _say(self, live: _Live, prompt: Ids, output: Ids) -> str:
        """Append what the model generated; its text, without the end-of-turn token."""
        ends = self.renderer.tokenizer.eos_token_ids
        ended = len(output) and int(output[-1]) in ends
        text = live.prefix + self.renderer.tokenizer.decode(output[:-1] if ended else output)
        known = tool_names(live.task.tools)
        content, calls = split_calls(text, known, prefix=f"call_{len(live.messages)}")
        live.messages.append(
            Message(
                "assistant",
                content or (None if calls else ""),
                tool_calls=calls,
                generated=True,
                timestamp=self.clock(),
                prompt_token_ids=prompt,
                token_ids=output,
            )
        )
        return text


def forced_start(tool: str) -> str:
    """A tool call up to its arguments, as a server forces it for a named ``tool_choice``."""
    return f'<tool_call>\n{{"name": {json.dumps(tool)}, "arguments":'


def split_calls(
    text: str, known: set[str], *, prefix: str = "call"
) -> tuple[str, tuple[ToolCall, ...]]:
    """Take parseable calls of known tools out of a model's text: ``(content, calls)``.

    Where any ``<tool_call>`` cannot be parsed, the text is left as it is and holds no calls.
    """
    calls: list[ToolCall] = []
    for number, match in enumerate(_CALL.finditer(text)):
        try:
            # What follows the object is forgiven: small models drop the closing tag.
            value: Any = json.JSONDecoder().raw_decode(match.group(1))[0]
        except ValueError:
            return text, ()
        if not isinstance(value, dict) or value.get("name") not in known:
            return text, ()
        arguments = value.get("arguments", {})
        if not isinstance(arguments, dict):
            return text, ()
        written = json.dumps(arguments, ensure_ascii=False)
        calls.append(ToolCall(value["name"], written, f"{prefix}_{number}"))
    return (_CALL.sub("", text).strip(), tuple(calls)) if calls else (text, ())


def choose_call(text: str, step: Step, task: Task) -> tuple[str, Arguments]:
    """What to run: the model's call, else its code block if the step takes one, else the script."""
    known = tool_names(task.tools)
    _, calls = split_calls(text, known)
    if calls:
        return calls[0].name, json.loads(calls[0].arguments)
    if step.block is not None and step.wrap is not None:
        block = re.search(rf"```{step.block}\s*\n(.*?)```", text, re.DOTALL)
        if block is not None and block.group(1).strip():
            return step.tool, step.wrap(block.group(1))
    return step.tool, step.arguments


def _ending_with_the_model(session: Session) -> Session:
    """Drop what no generation followed (``max_context`` cuts a session off at a request)."""
    last = max((i for i, m in enumerate(session.messages) if m.generated), default=-1)
    return replace(session, messages=session.messages[: last + 1])
