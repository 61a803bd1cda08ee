"""Possible causes where none is named: what an exception without an entry resembles, and what a symptom usually comes
from. They are candidates to look into, never a verdict; what would have left a trace in the logs, and did not, is none.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping

from rldbg.doctor.clues.mentions import Mention
from rldbg.doctor.knowledge.entries import KnownFailure, Role
from rldbg.doctor.knowledge.families import passed_through
from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs.evidence import Failure, LogEvidence
from rldbg.doctor.logs.exception_lines import last_error
from rldbg.doctor.logs.failures import tells_of_child
from rldbg.doctor.verdict.bystanders import FROM_OUTSIDE
from rldbg.doctor.verdict.judgement import Judgement
from rldbg.frameworks import frameworks

_WORD = re.compile(r"[A-Za-z][A-Za-z_]{3,}")
_SAY_NOTHING = frozenset(
    {"object", "attribute", "nonetype", "argument", "keyword", "positional", "required", "missing"}
    | {"error", "errors", "code", "detail", "found", "failed", "line", "file", "type", "value", "message"}
)
_NAME_OF_SIGNAL = re.compile(
    r"(?:Fatal Python error|fatal)?\W{0,3}(?:Floating point exception|Segmentation fault|Illegal instruction|Bus error"
    r"|Abort(?:ed)?)(?: \(core dumped\))?\W*$"
)
"""The names of signals have words that say nothing of what happened."""
_SHARED_WORDS = 2
_SHARED_WEIGHT = 0.4
"""A candidate has this share of what the exception says; the rarer a word is among known failures, the more it says."""
_ANYTHING_CAUSES_IT = 0.1
"""A symptom that this share of all known failures can cause does not tell them apart."""
SHOWN = 3


def candidates(
    judgement: Judgement, library: Library, evidence: LogEvidence, said: Mention | None
) -> list[KnownFailure]:
    """The causes that an unknown exception resembles; without one those that fit the most specific symptoms best, then
    those that are usual for a symptom that anything can cause. What NCCL says rules out what it would say of others."""
    seen = words_seen(evidence)
    if judgement.first_error is not None:
        around = passed_through(judgement.first_error, library.entries.values())
        says_no_more = tells_of_child(judgement.first_error) or _NAME_OF_SIGNAL.search(judgement.first_error.headline)
        alike = [] if says_no_more else resembling(judgement.first_error, library, SHOWN)
        listed = [*([around] if around else []), *(entry for entry in alike if not around or entry.id != around.id)]
        return [entry for entry in listed if not _is_of_another(entry, seen)]
    says = next((found for failure in evidence.failures if (found := last_error(failure))), said.text if said else "")
    if says and all(sighting.entry.category == "nccl" for sighting in judgement.fallout):
        alike = resembling(Failure("", says, judgement.fallout[0].first.place), library, SHOWN)
        return [entry for entry in alike if entry.category == "nccl"]
    fit: dict[str, float] = {}
    anything = _ANYTHING_CAUSES_IT * len(library.entries)
    for sighting in judgement.fallout:
        entry = sighting.entry
        causes = [name for name in entry.downstream_of if library.entries[name].can_be_cause]
        if len(causes) >= anything:
            for place, name in enumerate(entry.suspects, 1):
                fit.setdefault(name, 1 / anything / place)
            continue
        for name in causes:
            cause = library.entries[name]
            if cause.category not in FROM_OUTSIDE or cause.traces or name in entry.suspects:
                fit[name] = fit.get(name, 0.0) + 1 / len(causes)
    told = {sighting.entry.id for sighting in (*judgement.fallout, *judgement.notes, *judgement.bystanders)}
    fit = {
        name: weight
        for name, weight in fit.items()
        if name not in told and _has_trace(library.entries[name], evidence, seen)
    }

    def order(name: str) -> tuple[float, bool, int, str]:
        entry = library.entries[name]
        return -fit[name], entry.role is Role.EITHER, -len(entry.sources), name

    return [library.entries[name] for name in sorted(fit, key=order)[:SHOWN]]


def words_seen(evidence: LogEvidence) -> str:
    """The known lines and the frames of all failures, in lower case."""
    frames = (frame for failure in evidence.failures for frame in (failure.headline, *failure.frames))
    return "\n".join([*(hit.text for hit in evidence.hits), *frames]).lower()


def _is_of_another(entry: KnownFailure, seen: str) -> bool:
    """Whether an entry is of Ray, a framework or an engine that the logs never name."""
    names = ("ray", *(framework.name.replace("_", "-") for framework in frameworks()))
    words = [name.partition("-")[0] for name in names if entry.id.startswith(f"{name}-")]
    return any(re.search(rf"(?<![a-z]){word}", seen) is None for word in words)


def _has_trace(entry: KnownFailure, evidence: LogEvidence, seen: str) -> bool:
    """Whether the logs say anything of what an entry is about. One that names no traces and prints nothing needs none:
    what prints something would be in these logs."""
    if _is_of_another(entry, seen):
        return False
    return bool(evidence.clues.intersection(entry.traces)) or (not entry.traces and _is_silent(entry))


def _is_silent(entry: KnownFailure) -> bool:
    """Whether a failure may show in no log of the program: it has no words of its own, or a command on the machine
    shows what struck the program from outside."""
    if entry.category in FROM_OUTSIDE:
        return any(probe.command for probe in entry.probes)
    return not entry.signatures and entry.family is None and not entry.variants  # what has those has lines


def confirmation(entry: KnownFailure) -> str:
    """What would confirm an entry: its line in another log, a command, or what its explanation says."""
    command = next((probe.command for probe in entry.probes if probe.command), None)
    if command:
        return f"to confirm it run: {command}"
    if entry.signatures:
        return f'a line such as "{entry.signatures[0].examples[0].strip()[:120]}" in another log confirms it'
    return f"`rldbg doctor --explain {entry.id}` shows how to confirm it"


def resembling(failure: Failure, library: Library, count: int) -> list[KnownFailure]:
    """The causes that an exception without an entry resembles most: candidates to look into, never a verdict."""
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


def _words_of(entry: KnownFailure) -> frozenset[str]:
    return frozenset().union(*(_words(line) for signature in entry.signatures for line in signature.examples))


def _words(line: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(line)) - _SAY_NOTHING
