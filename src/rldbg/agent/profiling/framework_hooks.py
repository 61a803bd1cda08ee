"""Functions of frameworks that are phases or steps: wrapped when their module is imported.

A framework renames its modules and functions from version to version. A function that is missing would silently lose
its phase, so it is reported once per run: on stderr of the process that finds it first, and in a file below
RUN/profiling/unresolved.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType

from ..settings import say
from .phases import HookedFunction
from .plan import Hook

UNRESOLVED = "unresolved"


class FrameworkHooks:
    """The hooks of a plan, installed as the program imports what they name."""

    def __init__(self, hooks: Iterable[Hook], state_folder: str, *, wrap: Callable[[Hook], HookedFunction]) -> None:
        self._unresolved = Path(state_folder) / UNRESOLVED
        self._wrap = wrap
        self._of_module: dict[str, list[Hook]] = {}
        self._of_framework: dict[str, list[Hook]] = {}
        for hook in hooks:
            self._of_module.setdefault(hook.module, []).append(hook)
            self._of_framework.setdefault(hook.module.partition(".")[0], []).append(hook)

    @property
    def modules(self) -> Sequence[str]:
        """The modules whose import is to be told to `imported`."""
        return list(dict.fromkeys([*self._of_framework, *self._of_module]))

    def imported(self, module: ModuleType) -> None:
        name = module.__name__
        absent: dict[str, list[Hook]] = {}
        for hook in self._of_framework.get(name, ()):
            if module_is_in(list(getattr(module, "__path__", ())), hook.module) is False:
                absent.setdefault(hook.module, []).append(hook)
        for missing, hooks in absent.items():
            self._report(missing, hooks, "there is no such module")
        for hook in self._of_module.get(name, ()):
            problem = self._wrap(hook).install(module)
            if problem:
                self._report(f"{name}.{hook.function}", [hook], problem)

    def _report(self, name: str, hooks: Sequence[Hook], problem: str) -> None:
        framework = name.partition(".")[0]
        version = installed_version(framework)
        lost = [f"{hook.function} ({hook.phase or 'steps'})" for hook in hooks if is_expected(hook, version)]
        if not lost:
            return
        where = f"{framework} {version or 'of unknown version'}"
        text = f"hook not found in {where}: {name}: {problem}; not measured: {', '.join(lost)}"
        if is_first(self._unresolved, name, text):
            say(f"{text}. `rldbg frameworks` lists all hooks")


def is_first(folder: Path, name: str, text: str) -> bool:
    """Writes a file that no process has written yet. Where nothing can be written, every process is the first."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    except OSError:
        return True
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)
    return True


def module_is_in(search: Sequence[str], module: str) -> bool | None:
    """Whether a package that is searched in these folders has the module, by its files and without importing it; None
    where the package does not lie in folders."""
    folders = [Path(folder) for folder in search]
    if folders and not any(folder.is_dir() for folder in folders):
        return None
    _, *packages, last = [*module.split(".")] if "." in module else [module, ""]
    for package in packages:
        folders = [folder / package for folder in folders if (folder / package).is_dir()]
    return not last or any(file_of(folder, last) is not None for folder in folders)


def file_of(folder: Path, name: str) -> Path | None:
    """The file or folder of a module in its package's folder."""
    for path in (folder / name / "__init__.py", folder / f"{name}.py", folder / name):
        if path.exists():
            return path
    return next((path for path in folder.glob(f"{name}.*") if path.suffix in (".so", ".pyd", ".pyc")), None)


def installed_version(package: str) -> str:
    """The version of the distribution that is named like a package, else of one that brings it; empty without one."""
    from importlib.metadata import PackageNotFoundError, packages_distributions, version
    from importlib.util import find_spec

    try:
        return version(package)
    except PackageNotFoundError:
        # All distributions are searched only for a package that exists.
        is_here = package in sys.modules or find_spec(package) is not None
        return next(map(version, packages_distributions().get(package, ()) if is_here else ()), "")


def is_expected(hook: Hook, version: str) -> bool:
    """Whether a version should have the function, by what is known of versions. Unknown versions and newer ones should
    have what is not known to be gone."""
    if not version:
        return not hook.gone
    here = _numbers(version)
    return (not hook.since or _numbers(hook.since) <= here) and (not hook.gone or here < _numbers(hook.gone))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
