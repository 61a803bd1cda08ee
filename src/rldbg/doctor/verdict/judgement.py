"""The verdict on all evidence, before it is written out."""

from dataclasses import dataclass

from rldbg.doctor.knowledge.entries import KnownFailure
from rldbg.doctor.logs.evidence import Failure, Hit


@dataclass(frozen=True, slots=True)
class Sighting:
    """An entry, and the places where it was seen, earliest first."""

    entry: KnownFailure
    hits: tuple[Hit, ...]
    survived: bool
    by_family: bool = False
    """It stands for an exception that no signature matches."""
    kind: KnownFailure | None = None
    """Where it only says whose code failed: what the words of the exception say."""

    @property
    def only_says_kind(self) -> bool:
        """Whether it only names whose code failed, or the kind of the exception."""
        return self.by_family and self.entry.family is not None and self.entry.family.asked_last

    @property
    def first(self) -> Hit:
        return self.hits[0]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict."""

    causes: tuple[Sighting, ...]
    """The root cause first, then independent ones."""
    fallout: tuple[Sighting, ...]
    notes: tuple[Sighting, ...]
    bystanders: tuple[Sighting, ...]
    """Known failures that the program went on after, or that came after its end: possible causes, no more."""
    first_error: Failure | None
    failed: bool
    """Whether anything failed at all."""
