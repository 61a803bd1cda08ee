"""A user's own object by name: `module:name`, or `file.py:name`. The working directory is importable.

Also how such code is called: with its traceback shown, or under pdb.
"""

import importlib
import importlib.util
import pdb
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from rldbg.core.errors import RldbgError, UsageError, did_you_mean


def load_user_object(target: str, *, what: str) -> Any:
    """The object that `target` names; `what` is its role in error messages ("workflow", "loss" ...).

    What the user's module raises while it is imported is shown with its traceback.
    """
    place, separator, path = target.rpartition(":")
    if not separator or not place or not path:
        raise UsageError(f"{target!r} does not name a {what}", f"write module:name or file.py:name for the {what}")
    with user_code(f"importing {place}"):
        module = _module(place, what)
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            public = [item for item in dir(found) if not item.startswith("_")]
            raise UsageError(f"{place} has no {name!r}", did_you_mean(name, public, f"see what {place} defines"))
        found = getattr(found, name)
    return found


@contextmanager
def user_code(doing: str) -> Iterator[None]:
    """Run code of the user; show what it raises with its traceback."""
    try:
        yield
    except RldbgError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise UsageError(
            f"{doing} failed\n{user_traceback(error)}", "fix it: the last line says what is wrong"
        ) from error


def user_traceback(error: BaseException) -> str:
    """The traceback of an exception without the frames of rldbg and of the import machinery around the user's code."""
    text = traceback.TracebackException.from_exception(error)
    chain: list[traceback.TracebackException] = [text]
    while (earlier := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(earlier)
    for part in chain:
        theirs = [frame for frame in part.stack if not _is_machinery(frame.filename)]
        if theirs:
            part.stack = traceback.StackSummary.from_list(theirs)
    return "".join(text.format()).rstrip()


def _is_machinery(file: str) -> bool:
    ours = Path(__file__).resolve().parent.parent
    return file.startswith("<frozen ") or Path(file).resolve().is_relative_to(ours)


def _module(place: str, what: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if place.endswith(".py") or "/" in place:
        return _module_of_file(Path(place), what)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(f"{error.name}.")):
            raise
        raise UsageError(
            f"no module {place!r} for the {what}",
            f"run in the folder that holds {place.partition('.')[0]}, set PYTHONPATH, or name the file: path.py:name",
        ) from None


def _module_of_file(file: Path, what: str) -> ModuleType:
    if not file.is_file():
        raise UsageError(f"no file {file} for the {what}", "check the path before the colon")
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file.resolve()):
        return known
    specification = importlib.util.spec_from_file_location(file.stem, file.resolve())
    if specification is None or specification.loader is None:
        raise UsageError(f"{file} is not a Python file", f"name a .py file for the {what}")
    module = importlib.util.module_from_spec(specification)
    sys.modules[file.stem] = module
    specification.loader.exec_module(module)
    return module


class _Pdb(pdb.Pdb):
    """A pdb that remembers whether the user quit before the call returned."""

    has_quit = False

    def set_quit(self) -> None:
        self.has_quit = True
        super().set_quit()


def call_under_pdb(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """Stops at the function's first line; leaving the debugger ends the verb as Ctrl-C does."""
    debugger = _Pdb()
    result = debugger.runcall(function, *arguments, **named)
    if debugger.has_quit:
        raise KeyboardInterrupt
    return result
