"""The search index of a library: all anchors, engines that find them, and the patterns of each anchor."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rldbg.core import Finding, Severity
from rldbg.doctor.knowledge.entries import KnownFailure, Signature
from rldbg.doctor.knowledge.library import Library
from rldbg.doctor.logs import failures
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.standing import is_information, is_setting, is_warning
from rldbg.doctor.search.anchors import anchors_of
from rldbg.doctor.search.engines import Engine, EngineName, engine_for
from rldbg.doctor.search.expressions import Expression


@dataclass(frozen=True, eq=False)
class SignaturePattern:
    """A signature, ready to be tried at a place."""

    entry: KnownFailure
    signature: Signature
    match: Expression
    unless: Expression | None
    near: Expression | None
    not_near: Expression | None
    undone_by: Expression | None
    raised_in: Expression | None

    @cached_property
    def in_warnings(self) -> bool:
        """Whether lines that a logger calls a warning count: those of warnings, and where an example is such a line."""
        return self.entry.severity == "warning" or any(map(is_warning, self._examples))

    @cached_property
    def in_information(self) -> bool:
        """Whether lines that a logger calls an information count: where an example is such a line."""
        return self.entry.severity == "warning" or any(map(is_information, self._examples))

    @cached_property
    def in_settings(self) -> bool:
        """Whether the value of a setting counts: where an example is one."""
        return any(is_setting(line, found.start()) for line in self._examples if (found := self.match.search(line)))

    @cached_property
    def _examples(self) -> list[str]:
        return [clean(example).text for example in self.signature.examples]


@dataclass(frozen=True, slots=True)
class CluePattern:
    """An expression of which only matters whether it occurs."""

    match: Expression


@dataclass(frozen=True, slots=True)
class CrashPattern:
    """A traceback, an exception line or a crash word."""

    anchor: str


Pattern = SignaturePattern | CluePattern | CrashPattern


class SearchIndex:
    """All anchors of a library, engines that find them, and for each anchor the patterns it may be part of."""

    def __init__(self, library: Library, engine: EngineName = "auto") -> None:
        anchored = list(_anchored(library))
        by_anchor = _shortest_only((pattern, first) for pattern, first, _every in anchored)
        needed = [anchor.encode() for anchor in by_anchor]
        for pattern, first, every in anchored:
            for anchor in sorted(set(every) - set(first)):
                by_anchor.setdefault(anchor, []).append(pattern)
        self.library = library
        self.patterns: tuple[tuple[Pattern, ...], ...] = tuple(tuple(found) for found in by_anchor.values())
        self._needed = needed
        self._every = [anchor.encode() for anchor in by_anchor]
        self._engine_name: EngineName = engine

    @cached_property
    def engine(self) -> Engine:
        """One anchor per wording: for large logs, as programs wrote them."""
        return engine_for(self._needed, self._engine_name)

    @cached_property
    def folded_engine(self) -> Engine:
        """An engine with the second anchors too: for small logs, which a terminal or a mail may have wrapped."""
        return engine_for(self._every, self._engine_name)

    @property
    def engine_name(self) -> str:
        return self.folded_engine.name

    def known(self, text: str) -> Iterator[str]:
        """The entries whose words a text contains, whatever its context."""
        return iter(dict.fromkeys(pattern.entry.id for pattern in self._matching(text)))

    def stated_in(self, text: str) -> Iterator[SignaturePattern]:
        """The signatures that a text matches by itself, one of each entry; not those that need lines around it."""
        seen: set[str] = set()
        for pattern in self._matching(text):
            alone = not (pattern.near or pattern.not_near or pattern.raised_in or pattern.signature.last_before)
            if alone and not pattern.signature.when and pattern.entry.id not in seen:
                seen.add(pattern.entry.id)
                yield pattern

    def _matching(self, text: str) -> Iterator[SignaturePattern]:
        for _at, anchor in self.folded_engine.find(text.encode()):
            for pattern in self.patterns[anchor]:
                if isinstance(pattern, SignaturePattern) and pattern.match.search(text):
                    yield pattern


def _shortest_only(anchored: Iterable[tuple[Pattern, Sequence[str]]]) -> dict[str, list[Pattern]]:
    """The patterns by anchor. An anchor that contains another one is not searched for: the shorter finds it too."""
    by_anchor: dict[str, list[Pattern]] = {}
    for pattern, anchors in anchored:
        for anchor in anchors:
            by_anchor.setdefault(anchor, []).append(pattern)
    kept: dict[str, list[Pattern]] = {}
    for anchor in sorted(by_anchor, key=len):
        shorter = next((other for other in kept if other in anchor), anchor)
        found = kept.setdefault(shorter, [])
        found += [pattern for pattern in by_anchor[anchor] if pattern not in found]
    return kept


def _anchored(library: Library) -> Iterator[tuple[Pattern, Sequence[str], Sequence[str]]]:
    """Every pattern with the anchors it needs, and with those that find it in wrapped text too."""
    clues: dict[str, CluePattern] = {}
    for entry in library.entries.values():
        for signature in entry.signatures:
            pattern = _signature_pattern(entry, signature)
            if signature.anchors:
                yield pattern, signature.anchors, signature.anchors
            else:
                yield pattern, anchors_of(signature.match, both=False), anchors_of(signature.match)
        for source in (*entry.needs, *entry.excluded_by, *entry.traces):
            clues.setdefault(source, CluePattern(Expression(source)))
    for source, clue in clues.items():
        yield clue, anchors_of(source, both=False), anchors_of(source)
    for anchor in failures.ANCHORS:
        yield CrashPattern(anchor), (anchor,), (anchor,)


def _signature_pattern(entry: KnownFailure, signature: Signature) -> SignaturePattern:
    def expression(source: str | None) -> Expression | None:
        return Expression(source) if source else None

    return SignaturePattern(
        entry,
        signature,
        Expression(signature.match),
        expression(signature.unless),
        expression(signature.near),
        expression(signature.not_near),
        expression(signature.undone_by),
        expression(signature.raised_in),
    )


def too_slow(pattern: SignaturePattern, log: str) -> Finding:
    """A signature that took too long in a log is skipped there."""
    return Finding(
        "signature-too-slow",
        Severity.WARNING,
        f"{pattern.entry.id} in {log}",
        (pattern.signature.match,),
        "this signature exceeded its time limit in this log and was skipped from there on",
        ("make the expression more specific, or give it `anchors:`",),
    )
