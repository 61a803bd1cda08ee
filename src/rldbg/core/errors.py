"""Errors that reach a user: each has a kind, an exit code and a hint that says what to try next.

They are raised near the cause and caught once, in the command line. They pickle, because they cross Ray.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum


class ExitCode(IntEnum):
    """The closed set of exit codes of every verb."""

    OK = 0
    FINDING = 1
    USAGE = 2
    PREREQUISITE = 3
    INCOMPLETE = 4
    UNREACHABLE = 5
    INTERNAL = 70
    INTERRUPTED = 130


class RldbgError(Exception):
    """Base of all errors with a message for the user and a hint on what to try next."""

    kind = "error"
    exit_code = ExitCode.FINDING

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message

    def to_dict(self) -> dict[str, str]:
        return {"kind": self.kind, "message": self.message, "hint": self.hint}


class UsageError(RldbgError, ValueError):
    """The request itself is wrong: a bad option, key, name or value."""

    kind = "usage"
    exit_code = ExitCode.USAGE


class PrerequisiteError(RldbgError):
    """Something that must be installed, running or permitted is not."""

    kind = "prerequisite"
    exit_code = ExitCode.PREREQUISITE


class IncompleteDataError(RldbgError):
    """There is nothing to work on, or what is there is incomplete, unreadable or damaged."""

    kind = "incomplete"
    exit_code = ExitCode.INCOMPLETE


class UnreachableError(RldbgError, ConnectionError):
    """A cluster, broker or server does not answer."""

    kind = "unreachable"
    exit_code = ExitCode.UNREACHABLE


def did_you_mean(name: str, known: Iterable[str], otherwise: str, *, cutoff: float = 0.6) -> str:
    """The hint for a name that does not exist: the nearest one that does, or else what to do."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else otherwise


@contextmanager
def explained_as(error: type[RldbgError], caught: type[Exception], message: str, hint: str) -> Iterator[None]:
    """Wrap an OSError or ImportError in an error of ours, followed by the system's reason if there is one."""
    try:
        yield
    except caught as raised:
        reason = f": {raised.strerror or raised}" if isinstance(raised, OSError) else ""
        raise error(message + reason, hint) from raised
