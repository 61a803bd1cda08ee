"""What of a framework is supported, and whether its hooks are in the version that is installed here.

Nothing of the framework is imported: its package is located, and the source is parsed. Modules without source (compiled
ones) are reported as not checked.
"""

import ast
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rldbg.agent.profiling import Hook, file_of, installed_version, is_expected
from rldbg.frameworks.base import Framework
from rldbg.frameworks.registry import lineage

Resolution = Literal["found", "missing", "not in this version", "not checked"]
CAPABILITIES = ("launch", "record", "replay", "layout", "phases", "weights")
_DEEPEST = 8
_BRANCHES = (ast.If, ast.Try, ast.With)


@dataclass(frozen=True, slots=True)
class HookState:
    """One hook, and whether the installed version has it."""

    hook: Hook
    state: Resolution
    how: str
    """How that was found out: a file and line, or what is missing."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self.hook) | {"state": self.state, "how": self.how}


@dataclass(frozen=True, slots=True)
class Support:
    """A framework as this installation of rldbg knows it, and as this environment has it."""

    framework: Framework
    version: str
    """Of the installed distribution; empty if there is none."""
    launch: str
    record: str
    replay: str
    layout: str
    phases: str
    weights: str
    hooks: tuple[HookState, ...]
    knowledge: int
    tested: str = ""
    """What its recording by hooks was tested with."""

    @property
    def missing(self) -> list[HookState]:
        return [hook for hook in self.hooks if hook.state == "missing"]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.framework.name,
            "title": self.framework.title,
            "version": self.version or None,
            "based_on": self.framework.based_on or None,
            "supported": {name: getattr(self, name) or None for name in CAPABILITIES},
            "tested": self.tested or None,
            "known_failures": self.knowledge,
            "hooks": [hook.to_dict() for hook in self.hooks],
        }


def support_of(framework: Framework) -> Support:
    """What is supported, in one line per capability; empty where nothing is."""
    launch = _launch(framework)
    hooks = [hook for each in lineage(framework) for hook in each.part("hooks") or ()]
    own = _layout_of(framework)
    sent_by = (hook.function for hook in hooks if hook.phase == "sync" and not _is_collective(hook))
    tested = next(filter(None, (each.tested for each in lineage(framework))), "")
    return Support(
        framework,
        version_of(framework),
        launch=f"{launch.get('dialect')} options" if launch else "",
        record="; ".join(filter(None, (_record_by_hooks(hooks, tested), _record(launch)))),
        replay=framework.replay,
        layout=own.looks_for if own is not None else "",
        phases=", ".join(dict.fromkeys(hook.phase for hook in hooks if hook.phase)),
        weights=", ".join(dict.fromkeys(sent_by)),
        hooks=tuple(map(resolve, hooks)),
        knowledge=sum(map(_entries, lineage(framework))),
        tested=tested,
    )


def version_of(framework: Framework) -> str:
    """The version of the first of its distributions that is installed; empty if none is."""
    return next(filter(None, map(installed_version, framework.distributions or framework.modules)), "")


def resolve(hook: Hook) -> HookState:
    """Looks a hook up in the source of the package that is installed."""
    package = hook.module.partition(".")[0]
    folders = _folders(package)
    if folders is None:
        return HookState(hook, "not checked", f"{package} is not installed")
    expected = is_expected(hook, installed_version(package))
    absent: Resolution = "missing" if expected else "not in this version"
    file = _module_file(folders, hook.module)
    if file is None:
        return HookState(hook, absent, f"no module {hook.module}")
    if file.suffix != ".py":
        return HookState(hook, "not checked", f"{file} has no source")
    found = _find(folders, hook.module, hook.function.split("."))
    if found is None:
        return HookState(hook, absent, f"no {hook.function} in {file}")
    return HookState(hook, "found", found)


def _folders(package: str) -> list[Path] | None:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    return [Path(folder) for folder in spec.submodule_search_locations or ()]


def _module_file(folders: Sequence[Path], module: str) -> Path | None:
    """The file of a module below the folders of its top-level package."""
    found: Path | None = None
    places = list(folders)
    parts = module.split(".")[1:]
    if not parts:
        return next((place / "__init__.py" for place in places if (place / "__init__.py").is_file()), None)
    for part in parts:
        found = next((file for place in places if (file := file_of(place, part)) is not None), None)
        if found is None:
            return None
        places = [place / part for place in places if (place / part).is_dir()]
    return found


@cache
def _tree(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _find(folders: Sequence[Path], module: str, path: Sequence[str], depth: int = 0) -> str | None:
    """Where a name is defined: in the module, in the module it is imported from, or in a base class."""
    file = _module_file(folders, module)
    tree = _tree(file) if file is not None and file.suffix == ".py" else None
    if file is None or tree is None or depth > _DEEPEST:
        return None
    name, *rest = path
    for statement in _statements(tree.body):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == name and not rest:
            return f"{file}:{statement.lineno}"
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return _in_class(folders, module, file, statement, rest, depth)
        if isinstance(statement, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == name for t in statement.targets
        ):
            return f"{file}:{statement.lineno}" if not rest else None
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    source = _absolute(module, file, statement)
                    return _find(folders, source, [alias.name, *rest], depth + 1)
    return None


def _in_class(
    folders: Sequence[Path], module: str, file: Path, owner: ast.ClassDef, rest: Sequence[str], depth: int
) -> str | None:
    if not rest:
        return f"{file}:{owner.lineno}"
    for statement in _statements(owner.body):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == rest[0]:
            return f"{file}:{statement.lineno}"
    for base in owner.bases:
        if isinstance(base, ast.Name):
            found = _find(folders, module, [base.id, *rest], depth + 1)
            if found is not None:
                return found
    return None


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, and those under its conditions."""
    for statement in body:
        if isinstance(statement, _BRANCHES):
            handlers = [handler.body for handler in getattr(statement, "handlers", ())]
            for inner in (statement.body, getattr(statement, "orelse", []), *handlers):
                yield from _statements(inner)
        else:
            yield statement


def _absolute(module: str, file: Path, statement: ast.ImportFrom) -> str:
    if not statement.level:
        return statement.module or ""
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    kept = package[: len(package) - statement.level + 1]
    return ".".join([*kept, *([statement.module] if statement.module else [])])


def _launch(framework: Framework) -> dict[str, Any]:
    for each in lineage(framework):
        file = each.file("launch.yaml")
        if file is not None:
            data: dict[str, Any] = _yaml(file)
            return data
    return {}


def _record_by_hooks(hooks: Sequence[Hook], tested: str) -> str:
    """What `rldbg run --record` records by itself, and what that was tested with."""
    kinds = sorted({kind for hook in hooks for kind in hook.records})
    how = f"by hooks, tested with {tested}" if tested else "by hooks"
    return f"{', '.join(kinds)} ({how})" if kinds else ""


def _record(launch: dict[str, Any]) -> str:
    """What `rldbg run --record` switches on: the framework's own dumps."""
    options = [entry if isinstance(entry, str) else entry["key"] for entry in launch.get("record", ())]
    kinds = [*launch.get("records", ()), *launch.get("record_kinds", ())]
    return f"{', '.join(kinds)} (by {', '.join(options)})" if options else ""


def _is_collective(hook: Hook) -> bool:
    """Collectives of torch are `sync` as well, but carry anything."""
    return hook.module.startswith("torch.")


def _layout_of(framework: Framework) -> Any:
    return next((layout for each in lineage(framework) if (layout := each.part("layout")) is not None), None)


def _entries(framework: Framework) -> int:
    file = framework.file("knowledge.yaml")
    return len(_yaml(file)) if file is not None else 0


def _yaml(file: Path) -> Any:
    import yaml

    return yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
