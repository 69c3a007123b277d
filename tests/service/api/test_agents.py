"""Agent frameworks from PyPI at work against the real service on the real model.

A model of 135 million parameters cannot plan. So each step's choice is forced by a grammar, and
what is tested is everything around it: that the framework's requests are understood, that its tools
are really called, and that their results come back into the conversation.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.serving import Served

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Run a command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "enum": ["ls", "pwd"]}},
            "required": ["command"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def own_loop() -> Iterator[None]:
    """An event loop for LiteLLM, which asks for the thread's default one even when it is called
    synchronously, and never closes it: some later test would then be blamed for it. Its clients,
    kept in a cache with their connections open, are closed too."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    if (litellm := sys.modules.get("litellm")) is not None:
        for client in litellm.in_memory_llm_clients_cache.cache_dict.values():
            if inspect.isawaitable(closed := client.close()):
                loop.run_until_complete(closed)
        litellm.in_memory_llm_clients_cache.flush_cache()
    asyncio.set_event_loop(None)
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.mark.filterwarnings("ignore")  # LiteLLM's imports warn
@pytest.mark.usefixtures("own_loop")
def test_litellm(real: Served) -> None:
    litellm = pytest.importorskip("litellm")
    asked: dict[str, Any] = {
        "model": "openai/smollm2",
        "api_base": real.api,
        "api_key": "none",
        "messages": [{"role": "user", "content": "List the files."}],
        "temperature": 0,
        "max_tokens": 40,
    }
    made = litellm.completion(
        **asked, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = made.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["command"] in ("ls", "pwd")
    chunks = list(litellm.completion(**(asked | {"max_tokens": 6}), stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == litellm.completion(**(asked | {"max_tokens": 6})).choices[0].message.content
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**(asked | {"model": "openai/gpt-9"}))
    real.settle()


@pytest.mark.filterwarnings("ignore")  # the framework's imports warn
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_openai_agents(real: Served, api: str) -> None:
    """An agent calls its tool, reads the result and ends with what the tool said."""
    agents = pytest.importorskip("agents")
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    called: list[int] = []

    @agents.function_tool  # type: ignore[untyped-decorator]
    def add(a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: the first.
            b: the second.
        """
        called.append(a + b)
        return f"the sum is {a + b}"

    async with AsyncOpenAI(base_url=real.api, api_key="none", max_retries=0) as client:
        kind = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel
        agent = agents.Agent(
            name="adder",
            instructions="Add numbers with the tool.",
            model=kind(model="smollm2", openai_client=client),
            tools=[add],
            tool_use_behavior="stop_on_first_tool",
            model_settings=agents.ModelSettings(
                temperature=0, max_tokens=80, tool_choice="required", parallel_tool_calls=False
            ),
        )
        result = await agents.Runner.run(agent, "What is 2 + 3?", max_turns=2)
    assert len(called) == 1
    assert result.final_output == f"the sum is {called[0]}"
    real.settle()


@pytest.mark.filterwarnings("ignore")  # as above
@pytest.mark.usefixtures("own_loop")
def test_mini_swe_agent(real: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent looks at a folder, writes a file and submits; commands really run."""
    monkeypatch.setenv("MSWEA_SILENT_STARTUP", "1")
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    pytest.importorskip("minisweagent")
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    steps = [
        "ls",
        "echo done > result.txt",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat result.txt",
    ]

    class Scripted(LitellmModel):
        """Asks the service, and forces the command of each step by a schema."""

        turn = 0

        def _query(self, messages: list[dict[str, str]], **kwargs: Any) -> Any:
            command = steps[self.turn]
            self.turn += 1
            tool = {
                "type": "function",
                "function": {
                    "name": "bash",
                    "description": "Execute a bash command",
                    "parameters": {
                        "type": "object",
                        "properties": {"command": {"type": "string", "enum": [command]}},
                        "required": ["command"],
                        "additionalProperties": False,
                    },
                },
            }
            import litellm

            return litellm.completion(
                model=self.config.model_name,
                messages=messages,
                tools=[tool],
                **(self.config.model_kwargs | kwargs),
            )

    model = Scripted(
        cost_tracking="ignore_errors",
        model_name="openai/smollm2",
        model_kwargs={
            "api_base": real.api,
            "temperature": 0,
            "max_tokens": 80,
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    )
    work = tmp_path / "work"
    work.mkdir()
    agent = DefaultAgent(
        model,
        LocalEnvironment(cwd=str(work)),
        system_template="You work in a shell.",
        instance_template="Task: {{task}}",
        step_limit=5,
        cost_limit=0,
    )
    result = agent.run("write a file")
    assert result["exit_status"] == "Submitted"
    assert result["submission"].strip() == "done"
    assert (work / "result.txt").read_text() == "done\n"
    assert model.turn == 3
    real.settle()
