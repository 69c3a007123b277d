"""Trace messages as one chat template takes them.

A template that lacks something (tool calls, a system message, two user messages in a row) gets the
same information in the form it can print, and a note says so.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from suffixspec_traces.model import Message, Session, ToolCall
from suffixspec_traces.templates import ChatMessage, TemplateTraits

TOOLS_HEADING = (
    "You can call tools. Their signatures, as JSON schemas, are within <tools></tools>:\n"
    "<tools>\n{tools}\n</tools>\n"
    "To call one, reply with a JSON object within <tool_call></tool_call>:\n"
    '<tool_call>\n{{"name": NAME, "arguments": ARGUMENTS}}\n</tool_call>'
)


def hermes_call(call: ToolCall) -> str:
    """A tool call as text; the arguments stand as generated where they are valid JSON."""
    try:
        json.loads(call.arguments)
        arguments = call.arguments
    except ValueError:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


class Conversation:
    """Messages of one session, added in order; ``messages`` is what the template is given.

    Adding changes nothing but the end of the list, so the list before a generated message is
    exactly the prompt it was generated from.
    """

    def __init__(
        self,
        traits: TemplateTraits,
        *,
        escape: Callable[[str], str],
        notes: Counter[str],
    ) -> None:
        self.messages: list[ChatMessage] = []
        self.tools: list[dict[str, Any]] = []
        self._traits = traits
        self._escape = escape
        self._notes = notes
        self._held_system: list[str] = []
        self._tool_names: dict[str, str] = {}

    def start(self, session: Session) -> None:
        """Tell the conversation which tools the session has."""
        if not session.tools:
            return
        if self._traits.tools:
            text = self._escape(json.dumps(session.tools, ensure_ascii=False))
            self.tools = json.loads(text)
            return
        self._notes["tool definitions put into the system message"] += 1
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in session.tools)
        self._system(self._escape(TOOLS_HEADING.format(tools=lines)))

    def add(self, message: Message) -> None:
        """Append one message."""
        content = self._escape(message.content or "")
        if message.role == "system":
            self._system(content)
        elif message.role == "user":
            self._user(content)
        elif message.role == "tool":
            self._tool(message, content)
        else:
            self._assistant(message, content)

    def tool_name(self, message: Message) -> str | None:
        """The tool whose result ``message`` is, by its name or by the call it answers."""
        return message.name or self._tool_names.get(message.tool_call_id or "")

    def _system(self, content: str) -> None:
        if not self.messages and self._traits.system:
            self.messages.append({"role": "system", "content": content})
        elif self.messages and self.messages[-1]["role"] == "system":
            merged = self.messages[-1]["content"]
            self.messages[-1] = {
                "role": "system",
                "content": f"{content}\n\n{merged}"
                if "<tools>" in merged
                else f"{merged}\n\n{content}",
            }
        elif not self.messages:
            self._notes["system message put before the first user message"] += 1
            self._held_system.append(content)
        elif self._traits.late_system:
            self.messages.append({"role": "system", "content": content})
        else:
            self._notes["later system message sent as a user message"] += 1
            self._user(content)

    def _user(self, content: str) -> None:
        if self._held_system:
            content = "\n\n".join([*self._held_system, content])
            self._held_system = []
        last = self.messages[-1] if self.messages else None
        if last is not None and last["role"] == "user" and not self._traits.repeated_user:
            self._notes["user messages in a row merged"] += 1
            self.messages[-1] = {"role": "user", "content": f"{last['content']}\n\n{content}"}
        else:
            self.messages.append({"role": "user", "content": content})

    def _tool(self, message: Message, content: str) -> None:
        if not self._traits.tool_role:
            self._notes["tool results sent as user messages (<tool_response>)"] += 1
            self._user(f"<tool_response>\n{content}\n</tool_response>")
            return
        entry: ChatMessage = {"role": "tool", "content": content}
        name = self.tool_name(message)
        if name is not None:
            entry["name"] = self._escape(name)
        if message.tool_call_id is not None or self._traits.short_ids:
            entry["tool_call_id"] = self._call_id(message.tool_call_id or "")
        self.messages.append(entry)

    def _assistant(self, message: Message, content: str) -> None:
        self.make_room()
        entry: ChatMessage = {"role": "assistant", "content": content}
        for call in message.tool_calls:
            if call.id is not None:
                self._tool_names[call.id] = call.name
        if message.tool_calls and self._traits.arguments is None:
            self._notes["tool calls written as text (<tool_call>)"] += 1
            calls = [self._escape(hermes_call(call)) for call in message.tool_calls]
            entry["content"] = "\n".join([content, *calls] if content else calls)
        elif message.tool_calls:
            entry["tool_calls"] = [self._call(call) for call in message.tool_calls]
            if message.content is None and self._traits.null_content:
                entry["content"] = None
        if message.reasoning and self._traits.reasoning:
            entry["reasoning_content"] = self._escape(message.reasoning)
        elif message.reasoning:
            self._notes["reasoning left out (the template has no place for it)"] += 1
        self.messages.append(entry)

    def make_room(self) -> None:
        """Put a user message where the template wants one before an assistant's.

        Called before the prompt of a generated message is rendered; :meth:`add` does it for others.
        """
        opening = not self.messages or self.messages[-1]["role"] == "system"
        if self._held_system:
            self._user("Begin.")
        elif not self.messages or (opening and not self._traits.assistant_first):
            # Without any message a template prints no prompt that the next turn could start with.
            self._notes["user message put before an opening assistant message"] += 1
            self._user("Begin.")
        elif self._repeats_assistant() and not self._traits.repeated_assistant:
            self._notes["user message put between assistant messages"] += 1
            self._user("Continue.")

    def _repeats_assistant(self) -> bool:
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    def _call(self, call: ToolCall) -> dict[str, Any]:
        text = self._escape(call.arguments)
        arguments: object = text
        if self._traits.arguments == "object":
            try:
                arguments = json.loads(text)
            except ValueError:
                self._notes["tool arguments that are not JSON, passed as text"] += 1
        function = {"name": self._escape(call.name), "arguments": arguments}
        entry: dict[str, Any] = {"type": "function", "function": function}
        if call.id is not None or self._traits.short_ids:
            entry["id"] = self._call_id(call.id or "")
        return entry

    def _call_id(self, call_id: str) -> str:
        if self._traits.short_ids:
            return hashlib.sha256(call_id.encode()).hexdigest()[:9]
        return self._escape(call_id)
