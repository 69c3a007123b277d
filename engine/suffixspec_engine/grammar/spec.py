"""What a structured output must look like, as a hashable value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from suffixspec_index.errors import InputError

Kind = Literal["json", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A grammar, and where in the output it applies. Made by :meth:`json` and its siblings.

    Attributes:
        kind: how ``text`` is to be read.
        text: the JSON schema, the regular expression, the JSON list of choices, or the grammar.
        any_whitespace: JSON may hold whitespace between its parts.
        start_after: token ids after which the grammar begins (the end of a reasoning part, say);
            until the output has held them in a row, anything may be said. Empty: at once.
        then_free: anything may be said once the grammar is complete; else only the end of sequence.
    """

    kind: Kind
    text: str
    any_whitespace: bool = True
    start_after: tuple[int, ...] = ()
    then_free: bool = False

    @staticmethod
    def json(
        schema: str | Mapping[str, Any] | None = None, *, any_whitespace: bool = True
    ) -> GrammarSpec:
        """Output is JSON that fits a JSON schema; ``None``: any JSON.

        Raises:
            InputError: the schema is not JSON.
        """
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except ValueError as error:
                raise InputError(f"json: the schema is not valid JSON ({error})") from error
        schema = {} if schema is None else schema
        if not isinstance(schema, Mapping):
            raise InputError(f"json: the schema {schema!r} is not an object; see json-schema.org")
        # In the order given, which is the order in which properties are then said.
        return GrammarSpec("json", json.dumps(schema), any_whitespace=any_whitespace)

    @staticmethod
    def json_object(*, any_whitespace: bool = True) -> GrammarSpec:
        """Output is any JSON object (OpenAI's ``json_object``)."""
        return GrammarSpec.json({"type": "object"}, any_whitespace=any_whitespace)

    @staticmethod
    def regex(pattern: str) -> GrammarSpec:
        """Output matches the whole of a regular expression (Rust's syntax)."""
        return GrammarSpec("regex", pattern)

    @staticmethod
    def choice(texts: Sequence[str]) -> GrammarSpec:
        """Output is one of ``texts``.

        Raises:
            InputError: there is no choice, or one is not a non-empty string.
        """
        if isinstance(texts, str) or not texts:
            raise InputError(f"choice: {texts!r} is not a list of at least one string")
        for text in texts:
            if not isinstance(text, str) or not text:
                raise InputError(f"choice: {text!r} is not a non-empty string; leave it out")
        return GrammarSpec("choice", json.dumps(list(texts)))

    @staticmethod
    def grammar(text: str) -> GrammarSpec:
        """Output is derived from a context-free grammar in Lark's or GBNF's syntax."""
        return GrammarSpec("grammar", text)

    def after(self, token_ids: Sequence[int]) -> GrammarSpec:
        """The same grammar, beginning after ``token_ids``."""
        return replace(self, start_after=tuple(int(t) for t in token_ids))

    def then_anything(self) -> GrammarSpec:
        """The same grammar, free text allowed once it is complete."""
        return replace(self, then_free=True)
