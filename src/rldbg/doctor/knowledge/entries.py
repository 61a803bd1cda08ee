"""One known failure as data: how it looks in a log, what it means, what to do, and its consequences.

Entries are written in YAML (`knowledge/<category>.yaml`, `frameworks/<name>/knowledge.yaml`) and are closed: an unknown
key is an error. A signature is a regular expression for one line as a person reads it: colours, Ray's prefixes and
terminal wrapping are gone, and a space in it stands for any white space or none (a wrapped line may have lost it).
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from rldbg.doctor.search.anchors import long_enough
from rldbg.doctor.search.expressions import Expression

PACKAGED = Path(__file__).parent
_PLACEHOLDER = re.compile(r"\{([a-z]+)\}")
_ISSUE = re.compile(r"[\w.-]+/[\w.-]+#\d+(?: \((?P<year>20\d\d)\))?")


@cache
def categories() -> frozenset[str]:
    """The topics, one page each: every packaged file has its own, and users' entries are local."""
    return frozenset({"local", *(file.stem for file in PACKAGED.glob("*.yaml"))})


def _known_category(name: str) -> str:
    if name not in categories():
        raise ValueError(f"expected one of {', '.join(sorted(categories()))}")
    return name


TESTED = "tested"
"""The context in which packaged entries are read: a test checks that their expressions are safe, not each start."""


def _checked_expression(source: str, info: ValidationInfo) -> str:
    return source if info.context == TESTED else Expression.checked(source)


Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
Category = Annotated[str, AfterValidator(_known_category)]
Regex = Annotated[str, AfterValidator(_checked_expression)]


class Role(StrEnum):
    """What an entry means when it is seen."""

    ROOT = "root"
    """It is a cause."""
    SYMPTOM = "symptom"
    """It is a consequence of something else; alone it explains nothing."""
    EITHER = "either"
    """A consequence if one of its known causes was found too, else a cause."""
    BENIGN = "benign"
    """It looks like a failure but is harmless."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NumericCondition(_Model):
    """A numeric condition on two named groups of the match, each a number with an optional unit of bytes."""

    left: str
    right: str
    factor: float = 1.0
    """The match counts only when left > factor * right."""


class Signature(_Model):
    """One wording of a failure."""

    match: Regex
    examples: Annotated[list[str], Field(min_length=1)]
    """Lines as they are printed; every one is a test."""
    unless: Regex | None = None
    """The line is not evidence when this also matches it."""
    near: Regex | None = None
    """The line counts only when this occurs within a few dozen lines of it."""
    not_near: Regex | None = None
    undone_by: Regex | None = None
    """What `near` says does not hold any more after a line that this matches."""
    raised_in: Regex | None = None
    """The line is an exception, and the last file of its traceback matches this."""
    last_before: Slug | None = None
    """The line counts only when it is the last thing that happened before that entry's trouble began."""
    when: list[NumericCondition] = []
    """Numbers of the match that must all compare so."""
    anchors: list[Annotated[str, AfterValidator(long_enough)]] = []
    """Literal texts, one of which is in every matching line; derived from `match` when not given."""
    in_code: bool = False
    """Also counts in a line of source code that a traceback shows."""
    of_driver: bool = False
    """Counts only in the driver's own output: a worker of Ray that says it was ended when it is not needed any more."""
    as_advice: bool = False
    """Also counts after words such as "may be caused by"."""
    rendered: bool = False
    """The example was filled in from the program's format string instead of being seen."""


class Probe(_Model):
    """A look at the machine that would confirm the entry; exactly one kind of it."""

    check: str | None = None
    """A check of `rldbg doctor` by its id: the entry is confirmed when that check fails or warns."""
    env: str | None = None
    """An environment variable of the job."""
    is_set: bool | None = None
    contains: str | None = None
    file: str | None = None
    exists: bool | None = None
    command: str | None = None
    """A command for a person to run; rldbg never runs it."""

    @model_validator(mode="after")
    def _one_kind(self) -> "Probe":
        kinds = [kind for kind in (self.check, self.env, self.file, self.command) if kind is not None]
        if len(kinds) != 1:
            raise ValueError("a probe has exactly one of check, env, file, command")
        return self


class ExceptionFamily(_Model):
    """Exceptions that have no entry of their own and belong together by their type and where they were raised."""

    exception: Regex
    """Matches `Type: message`."""
    raised_in: Regex | None = None
    """Matches a frame of the traceback, written `file:line in function`; without it the message alone decides, asked
    after all families that have a place."""
    within: Regex | None = None
    """Matches one of the frames, however far out: what the program was doing."""
    not_within: Regex | None = None
    other_work: Regex | None = None
    """Matches functions that do something else, whatever the file or the folder is called that they are in."""
    asked_last: bool = False
    """It only says whose code failed: every other family says more."""
    yields: bool = False
    """With `asked_last`: an exception whose words say which kind it is has that name; what a framework is given, by
    functions and data of the user, has more to do with it than what an engine is given."""
    beside_only: bool = False
    """Its name would only repeat the exception: it is a verdict only where a framework raised it, and explains others
    beside what is said of them."""
    despite: list[Slug] = []
    """Symptoms that may be said of such an exception: it stands for it all the same, for where it was raised says whose
    trouble it is."""
    frames: Annotated[int, Field(gt=0)] | None = None
    """How many of the innermost frames may be that one; else those of Python and of libraries, and the one of a
    framework or of the user's that called them."""
    examples: Annotated[list[str], Field(min_length=1)]
    """`frame | Type: message`, or `outer frame > frame | Type: message`; every one is a test."""


class Variant(_Model):
    """What an entry says where its lines say more than its title: which of several reasons it was, and what fits it.

    `{name}` in title, cause and fix is the group of that name.
    """

    says: Regex
    """Matches a line of the entry."""
    raised_in: Regex | None = None
    """Also matches a frame of the exception, written `file:line in function`."""
    example: str
    """A line of the entry that it matches; with `raised_in`, written `frame | line`."""
    title: str
    title_zh: str
    cause: str | None = None
    fix: list[str] | None = None
    """Instead of those of the entry, which it has where these are not given."""
    unsure: bool = False
    """It says what failed and not why, so it is never said with high confidence."""

    @model_validator(mode="after")
    def _groups_exist(self, info: ValidationInfo) -> "Variant":
        if info.context == TESTED:
            return self
        groups = re.compile(self.says).groupindex
        texts = (self.title, self.title_zh, self.cause or "", *(self.fix or ()))
        unknown = [name for text in texts for name in _PLACEHOLDER.findall(text) if name not in groups]
        if unknown:
            raise ValueError(f"{{{unknown[0]}}} is not a group of {self.says!r}")
        return self


class KnownFailure(_Model):
    """A known failure."""

    id: Slug
    title: str
    title_zh: str
    category: Category = "local"
    """In a packaged file that is a topic, the file's own name."""
    role: Role = Role.ROOT
    severity: Literal["error", "warning"] = "error"
    """A warning is named as the cause only when nothing else in the log failed for an unknown reason."""
    signatures: list[Signature] = []
    family: ExceptionFamily | None = None
    """Which exceptions without an entry it stands for; asked only when nothing else explains the failure."""
    not_examples: list[str] = []
    """Lines that look similar and must not match."""
    needs: list[Regex] = []
    """At least one of these occurs somewhere in the logs, or the entry does not count."""
    excluded_by: list[Regex] = []
    """If one of these occurs anywhere in the logs, the entry does not count."""
    cause: str
    fix: Annotated[list[str], Field(min_length=1)]
    variants: list[Variant] = []
    """Asked in order; the first one that matches a line replaces title, cause and fix."""
    stays: bool = False
    """Its lines come with every step once it has begun: such steps do not outlive it."""
    after_stall: Regex | None = None
    """Lines of it that also end a program which had failed or was stuck before: then that is the failure."""
    look: list[str] = []
    """Where the true cause is to be found when this entry is only fallout."""
    probes: list[Probe] = []
    remedy: str | None = None
    """The id of an automatic fix (`rldbg doctor --fix`)."""
    downstream_of: list[Slug] = []
    leads_to: list[Slug] = []
    traces: list[Regex] = []
    """It is offered as a possible cause of a symptom only if one of these occurs in the logs."""
    suspects: list[Slug] = []
    """Of a symptom that nearly anything can cause: its usual causes, the likeliest first."""
    sources: list[str] = []
    versions: str = ""
    evidence: Literal["maintainer", "documentation", "source", "reporter", "measured"] | None = None
    """Who confirms it, if the sources do not show it."""

    @property
    def is_confirmed(self) -> bool:
        """Whether more than issues of users say so."""
        if self.evidence is not None:
            return self.evidence != "reporter"
        return not all(_ISSUE.fullmatch(source) for source in self.sources)

    @property
    def years(self) -> frozenset[int]:
        """The years of the reports among its sources, where they are stated: `owner/repository#1 (2026)`."""
        found = [_ISSUE.fullmatch(source) for source in self.sources]
        return frozenset(int(issue["year"]) for issue in found if issue and issue["year"])

    def variant_in(self, lines: Sequence[str], frames: Sequence[str] = ()) -> tuple[Variant, re.Match[str]] | None:
        """The first variant that one of the lines tells, and where; `frames` are those of the exception."""
        found = (
            (each, match)
            for each in self.variants
            if each.raised_in is None or any(map(Expression(each.raised_in).search, frames))
            for line in lines
            if (match := Expression(each.says).search(line))
        )
        return next(found, None)

    def as_told_by(self, lines: Sequence[str], frames: Sequence[str] = ()) -> "KnownFailure":
        """The entry in the words of that variant."""
        found = self.variant_in(lines, frames)
        if found is None:
            return self
        variant, match = found

        def filled(text: str) -> str:
            return _PLACEHOLDER.sub(lambda name: match[name[1]] or "", text).strip()

        changes = {
            "title": filled(variant.title),
            "title_zh": filled(variant.title_zh),
            "cause": self.cause if variant.cause is None else filled(variant.cause),
            "fix": self.fix if variant.fix is None else [filled(step) for step in variant.fix],
        }
        return self.model_copy(update=changes)

    @property
    def can_be_cause(self) -> bool:
        return self.role in (Role.ROOT, Role.EITHER)
