"""The shape of src/rldbg: no import circles, and nobody reaches below another package's public list.

Every import counts, also those under TYPE_CHECKING and inside functions: whoever reads one module of a circle has to
read them all.
"""

import ast
import importlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import rldbg

ROOT = Path(rldbg.__file__).parent
# Folders without a public list of their own, because each module is one: reports are named by what they show, and a
# framework's layout is made of the readers of formats and of what layouts share.
TOOLKITS = {"": ("rldbg.reports.",), "frameworks": ("rldbg.recording.formats.", "rldbg.recording.layouts.")}


@cache
def _modules() -> dict[str, Path]:
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = ["rldbg", *file.relative_to(ROOT).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@cache
def _statements(module: str) -> list[ast.Import | ast.ImportFrom]:
    """The import statements of a module, wherever they stand in it."""
    nodes = ast.walk(ast.parse(_modules()[module].read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


@cache
def _imports(module: str) -> frozenset[str]:
    """The modules of rldbg that a module imports."""
    package = module if _modules()[module].name == "__init__.py" else module.rpartition(".")[0]
    return frozenset(target for node in _statements(module) for target in _targets(node, package) if target != module)


def _targets(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in _modules())
    else:
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *base.split(".")] if base else above)
        for alias in node.names:
            inner = f"{base}.{alias.name}"
            if inner in _modules():
                yield inner
            elif base in _modules():
                yield base


def _circles() -> list[list[str]]:
    """The strongly connected parts of the import graph that hold more than one module."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in sorted(_imports(module)):
            if target not in index:
                visit(target)
            if target in stack:
                low[module] = min(low[module], low[target])
        if low[module] == index[module]:
            part = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(part) > 1:
                found.append(sorted(part))

    for module in _modules():
        if module not in index:
            visit(module)
    return found


def _package(module: str) -> str:
    """The part of rldbg that a module belongs to; empty for modules beside the packages, which are entry points."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (ROOT / parts[1]).is_dir() else ""


def _reaches_below(module: str, target: str) -> bool:
    home, other = _package(module), _package(target)
    # A package within a package has a public list of its own.
    is_list = target.count(".") == 1 or _modules()[target].name == "__init__.py"
    is_public = is_list or target.startswith((*TOOLKITS[""], *TOOLKITS.get(home, ())))
    return bool(home) and home != other and not is_public


def test_no_modules_import_each_other_in_a_circle():
    assert not _circles()


def test_nobody_imports_below_another_packages_public_list():
    reaching = [
        f"{module} imports {target}"
        for module in _modules()
        for target in sorted(_imports(module))
        if _reaches_below(module, target)
    ]
    assert not reaching


def test_no_small_module_serves_one_other_module_only():
    """What a package lists serves other packages, too; reports and the zoo's bugs are one module per subject."""
    alone = []
    for module, file in _modules().items():
        importers = [other for other in _modules() if module in _imports(other)]
        is_listed = any(_modules()[other].name == "__init__.py" for other in importers)
        has_subject = module.startswith("rldbg.reports.") or module.endswith("_bugs")
        is_small = len(file.read_text(encoding="utf-8").splitlines()) < 60 and file.name != "__init__.py"
        if len(importers) == 1 and is_small and not is_listed and not has_subject:
            alone.append(f"{module} is imported by {importers[0]} only")
    assert not alone


def test_nobody_imports_a_private_module_of_the_standard_library():
    private = []
    for module in _modules():
        for node in _statements(module):
            if isinstance(node, ast.ImportFrom) and node.level:
                continue
            base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for name in (base + alias.name for alias in node.names):
                parts = name.split(".")
                hidden = any(part.startswith("_") and not part.endswith("__") for part in parts)
                if hidden and parts[0] in sys.stdlib_module_names:
                    private.append(f"{module}:{node.lineno} {name}")
    assert private == []


def test_domain_packages_render_nothing():
    rendering = {
        module
        for module in _modules()
        for node in _statements(module)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        if name.partition(".")[0] == "rich" and _package(module) not in ("reports", "cli")
    }
    assert not rendering


def test_what_a_lazy_package_imports_for_type_checkers_is_what_it_offers():
    for name, file in _modules().items():
        text = file.read_text(encoding="utf-8")
        if file.name == "__init__.py" and "lazy_names" in text:
            blocks = [block for block in ast.parse(text).body if isinstance(block, ast.If)]
            imported = [node for block in blocks for node in block.body]
            declared = {alias.name for node in imported if isinstance(node, ast.ImportFrom) for alias in node.names}
            assert declared == set(dir(importlib.import_module(name))), name


def _types_of(file: Path) -> Iterator[str]:
    """The public classes and type aliases that a module defines at its top, also for type checkers alone."""
    top = ast.parse(file.read_text(encoding="utf-8")).body
    for node in (inner for outer in top for inner in (outer.body if isinstance(outer, ast.If) else [outer])):
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            # Constants are upper case throughout.
            names = [target.id for target in targets if isinstance(target, ast.Name) and not target.id.isupper()]
        else:
            names = []
        yield from (name for name in names if name[0].isupper())


def test_every_public_class_and_type_alias_has_a_name_of_its_own():
    places: dict[str, list[str]] = {}
    for module, file in _modules().items():
        for name in _types_of(file):
            places.setdefault(name, []).append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}
