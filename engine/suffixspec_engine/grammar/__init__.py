"""Structured output: grammars that the output must follow, compiled by llguidance.

:class:`GrammarSpec` says what, :class:`GrammarCompiler` makes a :class:`Matcher` per request, and
:func:`constrain` fits drafts to it.
"""

from suffixspec_engine.grammar.compiler import GrammarCompiler
from suffixspec_engine.grammar.drafts import Constrained, constrain
from suffixspec_engine.grammar.matcher import Matcher
from suffixspec_engine.grammar.spec import GrammarSpec, Kind

__all__ = ["Constrained", "GrammarCompiler", "GrammarSpec", "Kind", "Matcher", "constrain"]
