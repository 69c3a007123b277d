"""From grammars to matchers, by llguidance. One compiler per tokenizer."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from suffixspec_engine.grammar.matcher import Matcher
from suffixspec_engine.grammar.spec import GrammarSpec
from suffixspec_index.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from tokenizers import Tokenizer

_CACHED = 256  # compiled grammars kept: agents send the same few tool schemas again and again


class GrammarCompiler:
    """Compiles grammars for one tokenizer; about 0.3 s to make, under a millisecond per schema.

    Args:
        tokenizer: a ``tokenizers`` tokenizer.
        vocab_size: of the model; may exceed the tokenizer's (padding is never allowed).
        eos_token_ids: the tokens that end a sequence; at least one.

    Raises:
        InputError: the tokenizer cannot be used, or there is no end of sequence.
        MissingDependencyError: llguidance is not installed.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, vocab_size: int, eos_token_ids: Iterable[int]
    ) -> None:
        try:
            from llguidance import LLTokenizer
        except ImportError as error:
            raise MissingDependencyError(
                "structured output needs llguidance; run: pip install 'suffixspec[engine]'"
            ) from error
        self._eos = tuple(dict.fromkeys(int(t) for t in eos_token_ids))
        if not self._eos:
            raise InputError(
                "eos_token_ids: empty; structured output needs a token to end with, so name the "
                "model's end of sequence"
            )
        try:
            self._tokenizer = LLTokenizer(
                tokenizer.to_str(), n_vocab=vocab_size, eos_token=list(self._eos)
            )
        except ValueError as error:
            raise InputError(
                f"tokenizer: llguidance cannot use it for structured output ({error})"
            ) from error
        self._compiled: OrderedDict[GrammarSpec, LLMatcher] = OrderedDict()

    def compile(self, spec: GrammarSpec) -> Matcher:
        """A matcher at the grammar's beginning. Compiled grammars are kept and copied.

        Raises:
            InputError: the grammar is not valid; says where and why.
        """
        if spec in self._compiled:
            self._compiled.move_to_end(spec)
        else:
            self._compiled[spec] = self._compile(spec)
            if len(self._compiled) > _CACHED:
                self._compiled.popitem(last=False)
        inner = self._compiled[spec].deep_copy()
        return Matcher(
            inner,
            self._eos,
            self._tokenizer.vocab_size,
            start_after=spec.start_after,
            then_free=spec.then_free,
        )

    def _compile(self, spec: GrammarSpec) -> LLMatcher:
        from llguidance import LLMatcher

        # Two threads that compile the same grammar at once both succeed; one result is kept.
        try:
            matcher = LLMatcher(self._tokenizer, _source(spec), log_level=0)
        except ValueError as error:
            raise InputError(f"{spec.kind}: not a valid grammar: {error}") from error
        if matcher.is_error():
            raise InputError(f"{spec.kind}: not a valid grammar: {matcher.get_error().strip()}")
        return matcher


def _source(spec: GrammarSpec) -> str:
    """The grammar as llguidance reads it."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if spec.kind == "json":
        return LLMatcher.grammar_from_json_schema(
            spec.text, overrides={"whitespace_flexible": spec.any_whitespace}
        )
    if spec.kind == "regex":
        return LLMatcher.grammar_from_regex(spec.text)
    if spec.kind == "choice":
        choices = " | ".join(json.dumps(text) for text in json.loads(spec.text))
        return LLMatcher.grammar_from_lark(f"start: {choices}")
    try:
        return LLMatcher.grammar_from_lark(any_to_lark(spec.text))
    except Exception as error:  # the converter raises what it likes
        raise InputError(f"grammar: neither Lark nor GBNF: {error}") from error
