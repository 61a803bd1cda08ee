"""Constrained decoding by llguidance: JSON schemas, regular expressions, choices, grammars, each a mask over tokens.

The library is optional and loaded when the first constraint comes.
"""

import json
from typing import Any

import numpy as np

from rldbg.inference.backend import ModelCard
from rldbg.inference.generation import Constraint
from rldbg.inference.request_error import RequestError

_INSTALL = "constraints need llguidance: pip install 'rldbg[constraints]' where the server runs"
# Blanks between the parts of JSON are fixed: a model may otherwise write blanks until it reaches its limit.
_JSON: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Constraints:
    """Makes matchers for a model's vocabulary."""

    def __init__(self, card: ModelCard) -> None:
        self._card = card
        self._tokenizer: Any = None

    def matcher(self, constraint: Constraint) -> "Matcher":
        """A new matcher at the start of an answer; what cannot be compiled is a request error."""
        try:
            import llguidance
        except ImportError as error:
            raise RequestError(_INSTALL) from error
        if self._tokenizer is None:
            try:
                self._tokenizer = self._card.text.constrained(self._card.vocabulary_size, sorted(self._card.end_ids))
            except ValueError as error:
                raise RequestError(f"the model's tokenizer cannot be constrained: {error}") from error
        try:
            grammar = _grammar(constraint)
            message = llguidance.LLMatcher.validate_grammar(grammar, self._tokenizer)
        except (ValueError, TypeError) as error:
            message = str(error)
        if message:
            raise RequestError(f"the {_name(constraint)} cannot be used: {message[:500]}")
        made = Matcher(llguidance.LLMatcher(self._tokenizer, grammar, log_level=0))
        made.mask(self._card.vocabulary_size)
        if made.error:
            raise RequestError(f"the {_name(constraint)} cannot be used: {made.error}")
        return made


class Matcher:
    """Which tokens may come next in one answer."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def mask(self, size: int) -> np.ndarray:
        """True for each token of the vocabulary that may come."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.zeros(size, dtype=bool)
        found = np.unpackbits(bits, bitorder="little")[:size].astype(bool)
        allowed[: len(found)] = found
        return allowed

    def consume(self, token: int) -> bool:
        """Takes a token; True when nothing can follow: the answer is complete, or the constraint has failed."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())

    @property
    def error(self) -> str:
        """Why the constraint has failed; it does so where a grammar becomes too complex, and where characters that it
        demands are in no token."""
        if not self._matcher.is_error():
            return ""
        said = str(self._matcher.get_error()).partition("\n")[0]
        if said.startswith("NoExtension"):
            return "no token of the model can come next; take a model whose tokenizer has all characters (tiny has few)"
        return said[:300]


def _name(constraint: Constraint) -> str:
    """What the client asked for; the language of our own grammars means nothing to it."""
    return "form of a tool call" if constraint.kind == "lark" else constraint.kind.replace("_", " ")


def _grammar(constraint: Constraint) -> Any:
    from llguidance import LLMatcher, grammar_from

    value = constraint.value
    if constraint.kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(value, overrides=_JSON)
    if constraint.kind == "regex":
        return LLMatcher.grammar_from_regex(value)
    if constraint.kind == "choice":
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(item) for item in json.loads(value)))
    if constraint.kind == "lark":
        return LLMatcher.grammar_from_lark(value)
    return grammar_from("grammar", value)
