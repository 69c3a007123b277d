from __future__ import annotations

from datetime import UTC, datetime

import pytest

from suffixspec_index.errors import TokenizerError
from suffixspec_traces.templates import ChatTemplate, TemplateRefusalError
from suffixspec_traces.tokenizers import TraceTokenizer
from tests.traces.template_texts import ALTERNATING, HERMES, SMOLLM, STRING_ARGUMENTS, THINKING


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, origin="test", variables={"eos_token": "</s>"})


def show(source: str, *messages: dict[str, object], **options: object) -> str:
    return template(source).render(messages, add_generation_prompt=False, **options)  # type: ignore[arg-type]


class TestEnvironment:
    def test_json_is_plain(self) -> None:
        source = "{{ messages[0] | tojson }}"
        assert show(source, {"z": "<é>", "a": 1}) == '{"z": "<é>", "a": 1}'
        assert show("{{ messages[0] | tojson(indent=2) }}", {"a": 1}) == '{\n  "a": 1\n}'

    def test_loop_controls_and_generation_tag(self) -> None:
        source = "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}" + (
            "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
        )
        assert show(source, {"content": "a"}, {"content": "b"}) == "a"

    def test_dates_are_fixed(self) -> None:
        source = "{{ strftime_now('%d %b %Y') }}"
        assert show(source) == "01 Jan 2025"
        assert show(source, date=datetime(2024, 7, 26, tzinfo=UTC)) == "26 Jul 2024"

    def test_the_sandbox_holds(self) -> None:
        with pytest.raises(TemplateRefusalError):
            show("{{ messages.__class__.__mro__[1].__subclasses__() }}")
        with pytest.raises(TemplateRefusalError, match="no system"):
            show("{{ raise_exception('no system') }}")

    def test_wrong_syntax_names_the_line(self) -> None:
        with pytest.raises(TokenizerError, match="line 2"):
            template("{{ a }}\n{% if %}")


class TestTraits:
    def test_smollm_ignores_tools(self) -> None:
        traits = template(SMOLLM).traits
        assert traits.arguments is None
        assert not traits.tool_role
        assert traits.system
        assert traits.repeated_user

    def test_hermes_prints_objects(self) -> None:
        traits = template(HERMES).traits
        assert traits.arguments == "object"
        assert traits.tool_role
        assert traits.tools

    def test_a_template_that_prints_argument_text(self) -> None:
        assert template(STRING_ARGUMENTS).traits.arguments == "text"

    def test_a_template_that_insists_on_alternation(self) -> None:
        traits = template(ALTERNATING).traits
        assert not traits.system
        assert not traits.repeated_user
        assert not traits.assistant_first

    def test_reasoning(self) -> None:
        assert template(THINKING).traits.reasoning
        assert not template(SMOLLM).traits.reasoning


def test_chatml_of_a_vocabulary_that_has_it(tiny: TraceTokenizer) -> None:
    built_in = ChatTemplate.of(tiny)
    assert built_in.origin == "built-in ChatML"
    text = built_in.render([{"role": "user", "content": "hi"}], add_generation_prompt=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
