"""Known causes whose lines share telling words with an unknown exception: candidates to look into, never a verdict."""

import math
import re
from collections import Counter
from collections.abc import Mapping

from rldbg.doctor.entries import Entry
from rldbg.doctor.evidence import Failure
from rldbg.doctor.library import Library

_WORD = re.compile(r"[A-Za-z][A-Za-z_]{3,}")
_SAY_NOTHING = frozenset(
    {"object", "attribute", "nonetype", "argument", "keyword", "positional", "required", "missing"}
)
_SHARED_WORDS = 2
_SHARED_WEIGHT = 0.4
"""A candidate has this share of what the exception says; the rarer a word is among known failures, the more it says."""


def resembling(failure: Failure, library: Library, count: int) -> list[Entry]:
    """The causes that an exception without an entry resembles most."""
    said = _words(failure.message)
    causes = [entry for entry in library.entries.values() if entry.can_be_cause and entry.signatures]
    known = {entry.id: _words_of(entry) for entry in causes}
    entries_with = Counter(word for words in known.values() for word in words)
    weights = {word: math.log((1 + len(known)) / (1 + entries_with[word])) for word in said}
    shares = {name: _share(words, weights) for name, words in known.items()}
    best = sorted((name for name in shares if shares[name] >= _SHARED_WEIGHT), key=lambda name: (-shares[name], name))
    return [library.entries[name] for name in best[:count]]


def _share(words: frozenset[str], weights: Mapping[str, float]) -> float:
    shared = [weights[word] for word in weights if word in words]
    return sum(shared) / sum(weights.values()) if len(shared) >= _SHARED_WORDS else 0.0


def _words_of(entry: Entry) -> frozenset[str]:
    return frozenset().union(*(_words(line) for signature in entry.signatures for line in signature.examples))


def _words(line: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(line)) - _SAY_NOTHING
