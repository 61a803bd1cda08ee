"""A bug of the zoo: one function of the trainer replaced, at its real place, for as long as a run lasts.

The trainer knows nothing about the bugs. A bug names the function it replaces and can call the original, so that it
differs from it in one respect only, as real bugs do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Bug:
    """What is replaced, what must be found, and the recipe that makes it visible.

    `stage` is the first stage in which a recording of it differs from a clean one; `causes` are the ids of the
    explanations that name it; `late` marks bugs written after the hypotheses were finished; `needs` is what a run must
    have for the bug to change anything: several `ranks`, `padding`, or numbers of `float32`.
    """

    name: str
    story: str
    at: tuple[str, ...]
    stage: str
    causes: tuple[str, ...]
    spoiled: Callable[..., Any]
    overrides: tuple[str, ...] = ()
    late: bool = False
    needs: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        """The functions it changes, as shown to users."""
        return ", ".join(name.removeprefix("rldbg.") for name in self.at)


def bug(
    *at: str,
    stage: str,
    cause: str | tuple[str, ...],
    overrides: tuple[str, ...] = (),
    late: bool = False,
    needs: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Bug]:
    """Makes a bug of a function that takes the original one and its arguments; its name and docstring are the bug's."""

    def make(spoiled: Callable[..., Any]) -> Bug:
        causes = (cause,) if isinstance(cause, str) else cause
        story = " ".join((spoiled.__doc__ or "").split())
        return Bug(
            spoiled.__name__.replace("_", "-"), story, at, stage, causes, spoiled, overrides, late, frozenset(needs)
        )

    return make


@contextmanager
def replaced(at: str, spoiled: Callable[..., Any]) -> Iterator[None]:
    """Replaces the function called `at` by `spoiled` (package.module.name or package.module.Class.name)."""
    owner, name = _owner(at)
    original = getattr(owner, name)

    @wraps(original)
    def instead(*arguments: Any, **options: Any) -> Any:
        return spoiled(original, *arguments, **options)

    setattr(owner, name, instead)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _owner(at: str) -> tuple[Any, str]:
    """The module or class that holds the function, and its name there."""
    parts = at.split(".")
    module, rest = ".".join(parts[:3]), parts[3:]
    while len(rest) > 1 and not rest[0].lstrip("_")[0].isupper():
        module, rest = f"{module}.{rest[0]}", rest[1:]
    owner = import_module(module)
    for part in rest[:-1]:
        owner = getattr(owner, part)
    return owner, rest[-1]
