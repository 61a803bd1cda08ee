"""Draws the packages of rldbg and what imports what, as an SVG made from the source tree.

A row is above everything its packages import. Only direct imports that no longer path implies are drawn.
"""

from collections.abc import Iterator, Mapping
from itertools import count

import grimp

_WIDTH, _ROW, _BOX_HEIGHT, _LETTER, _GAP, _MARGIN = 960, 64, 30, 8.2, 24, 20
_REGISTRY = ("rldbg.frameworks", "rldbg.frameworks.base")
_Imports = Mapping[str, frozenset[str]]


def packages_svg() -> str:
    imports = _package_imports()
    rows = list(_rows(imports))
    boxes = _boxes(rows, imports)
    height = 2 * _MARGIN + len(rows) * _ROW - (_ROW - _BOX_HEIGHT)
    shapes = [*_arrows(boxes, _reduced(imports)), *(shape for name in sorted(boxes) for shape in _box(name, boxes))]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="ui-monospace,monospace" font-size="13">\n'
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#9ca3af"/></marker></defs>\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n' + "\n".join(shapes) + "\n</svg>\n"
    )


def _package_imports() -> _Imports:
    """Which package imports which. The registry of frameworks and the folders below it are two: planes ask the
    registry, and the folders use the planes."""
    graph = grimp.build_graph("rldbg", exclude_type_checking_imports=True)
    packages = {name for name in graph.find_children("rldbg") if graph.find_children(name)}

    def package_of(module: str) -> str | None:
        if module.startswith("rldbg.frameworks.") and module not in _REGISTRY:
            return "frameworks/*"
        if module in _REGISTRY:
            return "frameworks (registry)"
        top = ".".join(module.split(".")[:2])
        return top.removeprefix("rldbg.") if top in packages else None

    found: dict[str, set[str]] = {}
    for module in graph.modules:
        importer = package_of(module)
        if importer is None:
            continue
        used = {package_of(other) for other in graph.find_modules_directly_imported_by(module)}
        found.setdefault(importer, set()).update(name for name in used if name and name != importer)
    # What stands above the command line are other names for it.
    return {name: frozenset(used) for name, used in found.items() if "cli" not in used}


def _rows(imports: _Imports) -> Iterator[list[str]]:
    """From the bottom up: each package in the lowest row that is above all it imports."""
    placed: set[str] = set()
    while len(placed) < len(imports):
        row = sorted(name for name, used in imports.items() if name not in placed and used <= placed)
        if not row:
            raise ValueError(f"packages import each other in a circle: {sorted(set(imports) - placed)}")
        yield row
        placed.update(row)


def _reduced(imports: _Imports) -> Iterator[tuple[str, str]]:
    """Imports that no longer path implies."""
    for name in sorted(imports):
        indirect = {far for near in imports[name] for far in _reachable(near, imports)}
        for used in sorted(imports[name] - indirect):
            yield name, used


def _reachable(name: str, imports: _Imports) -> set[str]:
    return {far for near in imports[name] for far in (near, *_reachable(near, imports))}


def _boxes(rows: list[list[str]], imports: _Imports) -> dict[str, tuple[float, float, float]]:
    """Left edge, top edge and width of each box."""
    boxes: dict[str, tuple[float, float, float]] = {}
    for number, row in zip(count(len(rows) - 1, -1), rows, strict=False):
        # Each above the middle of what it imports: fewer lines cross.
        row = sorted(row, key=lambda name: (_middle([boxes[used] for used in sorted(imports[name])]), name))
        widths = [len(name) * _LETTER + 20 for name in row]
        gap = (_WIDTH - 2 * _MARGIN - sum(widths)) / len(row)
        left = _MARGIN + gap / 2
        for name, width in zip(row, widths, strict=True):
            boxes[name] = (left, _MARGIN + number * _ROW, width)
            left += width + gap
    return boxes


def _middle(boxes: list[tuple[float, float, float]]) -> float:
    return sum(left + width / 2 for left, _, width in boxes) / max(len(boxes), 1)


def _box(name: str, boxes: Mapping[str, tuple[float, float, float]]) -> Iterator[str]:
    left, top, width = boxes[name]
    yield (
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{_BOX_HEIGHT}" rx="6" '
        'fill="#eef2ff" stroke="#6366f1"/>'
    )
    yield f'<text x="{left + width / 2:.0f}" y="{top + 20:.0f}" text-anchor="middle" fill="#1f2937">{name}</text>'


def _arrows(boxes: Mapping[str, tuple[float, float, float]], edges: Iterator[tuple[str, str]]) -> Iterator[str]:
    for importer, used in edges:
        (from_left, from_top, from_width), (to_left, to_top, to_width) = boxes[importer], boxes[used]
        x1, y1, x2, y2 = from_left + from_width / 2, from_top + _BOX_HEIGHT, to_left + to_width / 2, to_top
        bend = (y2 - y1) / 2
        yield (
            f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2 - 1:.0f}" '
            'fill="none" stroke="#9ca3af" marker-end="url(#a)"/>'
        )
