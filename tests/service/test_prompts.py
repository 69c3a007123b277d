"""Conversations rendered by templates that know tools, and by those that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from suffixspec_index.errors import InputError
from suffixspec_service.prompts import PromptBuilder
from suffixspec_service.tool_calls import Tool
from tests.engine.conftest import write_byte_tokenizer

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content + '' }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
KNOWING = (
    "{% if tools %}[TOOLS]{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}:"
    "{{ c.function.arguments.city }}{% endfor %}{% endfor %}"
)
TOOL = Tool("get_weather", "of a city", {"type": "object", "properties": {}})
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c", "content": "sunny"},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_a_template_without_tools_is_helped(tokenizer: Any) -> None:
    builder = PromptBuilder(tokenizer, PLAIN)
    assert builder.style.name == "hermes"
    text = builder.text(TURNS, [TOOL])
    assert text.startswith("<system># Tools")
    assert '"name": "get_weather"' in text
    assert (
        '<assistant><tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n'
        "</tool_call></assistant>" in text
    )
    assert "<user><tool_response>\nsunny\n</tool_response></user>" in text
    given = builder.text([{"role": "system", "content": "Be brief."}, *TURNS], [TOOL])
    assert given.startswith("<system>Be brief.\n\n# Tools")
    assert "# Tools" not in builder.text(TURNS)


def test_a_template_that_knows_tools_gets_them(tokenizer: Any) -> None:
    builder = PromptBuilder(tokenizer, KNOWING)
    assert builder.style.name == "mistral"
    text = builder.text(TURNS, [TOOL])
    assert text.startswith('[TOOLS][{"type": "function"')
    assert "[TOOL_CALLS]get_weather:Rome" in text
    assert text.endswith("<tool>sunny")


def test_tokens_are_those_of_the_text(tokenizer: Any) -> None:
    builder = PromptBuilder(tokenizer, PLAIN)
    assert bytes(builder.encode("hi").tolist()) != b""
    text = builder.text(TURNS)
    assert builder.chat(TURNS).tolist() == tokenizer(text, add_special_tokens=False).input_ids


def test_what_cannot_be_rendered(tokenizer: Any) -> None:
    with pytest.raises(InputError, match="no chat template"):
        PromptBuilder(tokenizer).chat(TURNS)
    refusing = PromptBuilder(tokenizer, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InputError, match="roles must alternate"):
        refusing.chat(TURNS)
    with pytest.raises(InputError, match="no tokenizer"):
        PromptBuilder(None).encode("hi")
