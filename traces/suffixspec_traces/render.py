"""Sessions of messages rendered into token sessions.

Text is rendered by the chat template once per generated message and tokenized in segments: what a
turn adds to the one before is encoded once, and the output apart from the prompt, as a model
produces it. So a turn's prompt starts, token for token, with the prompt and output of the turn
before it, and all turns are views of one buffer. Where a template rewrites history (it drops
earlier reasoning, say), the prompt that the template really gives is used, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from suffixspec_index.errors import TokenError
from suffixspec_traces.conversation import Conversation
from suffixspec_traces.model import Message, Session, TokenSession, Turn
from suffixspec_traces.templates import (
    DEFAULT_DATE,
    STRICT,
    ChatTemplate,
    TemplateRefusalError,
    TemplateTraits,
)
from suffixspec_traces.trace_tokenizer import TraceTokenizer

Ids = NDArray[np.int32]


@dataclass(slots=True)
class RenderReport:
    """What rendering did: counts for the head of a report."""

    sessions: int = 0
    turns: int = 0
    recorded_turns: int = 0  # output ids taken from the trace, not tokenized again
    rerendered_turns: int = 0  # prompts that did not start with the turn before them
    fallback_sessions: int = 0  # sessions the template refused
    notes: Counter[str] = field(default_factory=Counter)  # adaptation -> times


@dataclass(slots=True)
class _Plan:
    """One generation as text; ``continues`` says that its prompt starts with the turn before."""

    message: Message
    tail: str  # prompt text to encode: what comes after the turn before, or all of it
    continues: bool
    output: str
    after_tool: str | None


class ChatRenderer:
    """Renders sessions for one tokenizer and one chat template.

    Args:
        tokenizer: the vocabulary to render for.
        template: Jinja text to use in place of the tokenizer's own template.

    ``report`` counts what was rendered. Not safe to share between threads.

    Raises:
        TokenizerError: the template is not valid Jinja.
    """

    def __init__(self, tokenizer: TraceTokenizer, template: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate.of(tokenizer, template)
        self.report = RenderReport()
        self._ends = [tokenizer.token_texts([i])[0] for i in tokenizer.eos_token_ids]

    def describe(self) -> dict[str, object]:
        """Which tokenizer and template were used, and what was adapted; JSON-ready."""
        traits = self.template.traits
        calls = "as text: <tool_call>{...}</tool_call>" if traits.arguments is None else "template"
        results = "template (role tool)" if traits.tool_role else "user: <tool_response>"
        return {
            **self.tokenizer.describe(),
            "chat_template": self.template.origin,
            "tool_calls": calls,
            "tool_results": results,
            "tool_definitions": "template" if traits.tools else "system message",
            "sessions": self.report.sessions,
            "turns": self.report.turns,
            "recorded_turns": self.report.recorded_turns,
            "rerendered_turns": self.report.rerendered_turns,
            "fallback_sessions": self.report.fallback_sessions,
            "notes": dict(self.report.notes),
        }

    def render_sessions(self, sessions: Iterable[Session]) -> Iterator[TokenSession]:
        """:meth:`render_session` for each session, in order."""
        return map(self.render_session, sessions)

    def render_session(self, session: Session) -> TokenSession:
        """Render and tokenize one session; every generated message is one turn.

        Costs O(turns × text) in the template and O(new text) in the tokenizer.

        Raises:
            TokenError: recorded ids are outside the tokenizer's vocabulary.
        """
        plans = self._plan_or_fall_back(session)
        turns = self._assemble(session, plans)
        self.report.sessions += 1
        self.report.turns += len(turns)
        stamps = (m.timestamp for m in session.messages if m.timestamp is not None)
        return TokenSession(
            session.id, tuple(turns), session.source, session.model, next(stamps, None)
        )

    def render_prompt(self, messages: Iterable[Message], tools: Iterable[object] = ()) -> str:
        """The prompt text that asks for the next assistant message."""
        session = Session("", tuple(messages), tools=tuple(t for t in tools if isinstance(t, dict)))
        conversation = self._conversation(session, self.template.traits, Counter())
        for message in session.messages:
            conversation.add(message)
        text = self.template.render(
            conversation.messages, add_generation_prompt=True, tools=conversation.tools
        )
        return self.tokenizer.unescape(text)

    def encode_prompt(self, session: Session) -> Ids:
        """``(n,)`` int32 ids of the prompt that asks for the session's next assistant message.

        The ids are those :meth:`render_session` gives once that message has been added.
        """
        asked = Message("assistant", "", generated=True)
        extended = Session(
            session.id,
            (*session.messages, asked),
            session.source,
            session.model,
            tools=session.tools,
        )
        plans = self._plan_or_fall_back(extended, count=False)
        return self._assemble(extended, plans, count=False)[-1].prompt

    # -- text ----------------------------------------------------------------------------------

    def _conversation(
        self, session: Session, traits: TemplateTraits, notes: Counter[str]
    ) -> Conversation:
        conversation = Conversation(traits, escape=self.tokenizer.escape, notes=notes)
        conversation.start(session)
        return conversation

    def _plan_or_fall_back(self, session: Session, *, count: bool = True) -> list[_Plan]:
        """The session's turns as text, with the first template and traits that take it."""
        chatml = ChatTemplate.chatml(self.tokenizer)
        ladder = [
            (self.template, self.template.traits, ""),
            (self.template, STRICT, "messages reduced to plain alternation"),
            (chatml, chatml.traits, "built-in ChatML used instead"),
        ]
        for template, traits, note in ladder:
            notes: Counter[str] = Counter()
            try:
                plans = self._plan(session, template, traits, notes)
            except TemplateRefusalError:
                continue
            if count:
                self.report.notes.update(notes)
                if note:
                    self.report.notes[f"the template refused a session: {note}"] += 1
                    self.report.fallback_sessions += 1
            return plans
        raise AssertionError("the built-in template takes every conversation")

    def _plan(
        self,
        session: Session,
        template: ChatTemplate,
        traits: TemplateTraits,
        notes: Counter[str],
    ) -> list[_Plan]:
        conversation = self._conversation(session, traits, notes)
        stamps = (m.timestamp for m in session.messages if m.timestamp is not None)
        start = next(stamps, None)
        date = DEFAULT_DATE if start is None else datetime.fromtimestamp(start, UTC)

        def render(*, asking: bool) -> str:
            return template.render(
                conversation.messages,
                add_generation_prompt=asking,
                tools=conversation.tools,
                date=date,
            )

        plans: list[_Plan] = []
        known, owed = "", ""  # text the turns so far account for; what a cut-off turn still owes
        after_tool: str | None = None
        for message in session.messages:
            if not message.generated:
                after_tool = conversation.tool_name(message) if message.role == "tool" else None
                conversation.add(message)
                continue
            conversation.make_room()
            prompt = render(asking=True)
            continues = bool(plans) and prompt.startswith(known)
            tail = owed + prompt[len(known) :] if continues else prompt
            conversation.add(message)
            output = _output(prompt, render(asking=False), self._ends)
            plans.append(_Plan(message, tail, continues, output, after_tool))
            known = prompt + output
            owed = self._owed(message, output)
            after_tool = None
        return plans

    def _owed(self, message: Message, output: str) -> str:
        """The end-of-turn text that the template prints and the recorded ids lack."""
        ids = message.token_ids
        if ids is None or (len(ids) and int(ids[-1]) in self.tokenizer.eos_token_ids):
            return ""
        return next((end for end in self._ends if end and output.endswith(end)), "")

    # -- tokens --------------------------------------------------------------------------------

    def _assemble(self, session: Session, plans: list[_Plan], *, count: bool = True) -> list[Turn]:
        tails = self._encode([p.tail for p in plans], [p.continues for p in plans])
        outputs = self.tokenizer.encode_many([p.output for p in plans], continuation=True)
        chain = _Chain()
        spans: list[tuple[int, int, int]] = []
        for plan, tail, output in zip(plans, tails, outputs, strict=True):
            message = plan.message
            if message.prompt_token_ids is not None:
                given = self._checked(message.prompt_token_ids, session)
                kept = chain.restart_at(given)
            else:
                kept = plan.continues
                chain.extend(tail, fresh=not kept)
            prompt_end = chain.length
            if message.token_ids is not None:
                output = self._checked(message.token_ids, session)
            chain.extend(output)
            spans.append((chain.number, prompt_end, chain.length))
            if count:
                self.report.recorded_turns += message.token_ids is not None
                self.report.rerendered_turns += len(spans) > 1 and not kept
        buffers = chain.buffers()
        return [
            Turn(
                prompt=buffers[number][:prompt_end],
                output=buffers[number][prompt_end:end],
                tool=plan.message.tool_calls[0].name if plan.message.tool_calls else None,
                after_tool=plan.after_tool,
                timestamp=plan.message.timestamp,
            )
            for plan, (number, prompt_end, end) in zip(plans, spans, strict=True)
        ]

    def _encode(self, texts: list[str], continuations: list[bool]) -> list[Ids]:
        rows: list[Ids] = [np.empty(0, np.int32)] * len(texts)
        for flag in (False, True):
            places = [i for i, c in enumerate(continuations) if c is flag]
            encoded = self.tokenizer.encode_many([texts[i] for i in places], continuation=flag)
            for place, ids in zip(places, encoded, strict=True):
                rows[place] = ids
        return rows

    def _checked(self, ids: Ids, session: Session) -> Ids:
        if len(ids) and (ids.min() < 0 or ids.max() >= self.tokenizer.vocab_size):
            wrong = int(ids.max() if ids.min() >= 0 else ids.min())
            raise TokenError(
                f"session {session.id!r}: recorded token id {wrong} is outside the vocabulary of "
                f"{self.tokenizer.name} (0 to {self.tokenizer.vocab_size - 1}); replay it with the "
                "tokenizer it was recorded with"
            )
        return np.asarray(ids, dtype=np.int32)


class _Chain:
    """Token buffers under construction; a new one starts where history was rewritten."""

    def __init__(self) -> None:
        self._done: list[list[Ids]] = []
        self._parts: list[Ids] = []
        self.length = 0

    @property
    def number(self) -> int:
        return len(self._done)

    def extend(self, ids: Ids, *, fresh: bool = False) -> None:
        if fresh and self._parts:
            self._done.append(self._parts)
            self._parts, self.length = [], 0
        self._parts.append(ids)
        self.length += len(ids)

    def restart_at(self, prompt: Ids) -> bool:
        """Make the buffer equal ``prompt``; whether it went on from what was there."""
        known = np.concatenate(self._parts) if self._parts else np.empty(0, np.int32)
        kept = bool(np.array_equal(prompt[: len(known)], known))
        if kept:
            self._parts = [known] if len(known) else []
            self.extend(prompt[len(known) :])
        else:
            self.extend(prompt, fresh=True)
        return kept

    def buffers(self) -> list[Ids]:
        joined = [np.concatenate(parts) for parts in [*self._done, self._parts] if parts]
        for buffer in joined:
            buffer.flags.writeable = False
        return joined


def _common_length(left: str, right: str) -> int:
    if right.startswith(left):
        return len(left)
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))


def _output(prompt: str, full: str, ends: list[str]) -> str:
    """What the model wrote: the text after the prompt, up to and including the end of the turn.

    A generation prompt may hold something the finished message does not (an opened ``<think>``);
    then the output starts where the two part.
    """
    output = full[_common_length(prompt, full) :]
    cut = max((output.rfind(end) + len(end) for end in ends if end and end in output), default=0)
    return output[:cut] if cut else output
