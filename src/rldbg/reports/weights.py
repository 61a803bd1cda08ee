"""The rules that match tensor names, and the matches between two sets of names."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from rldbg.reports.tables import table
from rldbg.weights import MappedName, NamingRule


def rules_to_terminal(rules: Sequence[NamingRule]) -> Iterator[RenderableType]:
    rows = ((rule.id, rule.engine, "\n".join(rule.parts), rule.meaning) for rule in rules)
    yield table("rule", "engine", "trainer", "meaning", rows=rows)


def mapping_to_terminal(mapped: Sequence[MappedName]) -> Iterator[RenderableType]:
    same = sum(not item.rule for item in mapped)
    yield f"{same} of {len(mapped)} tensors have equal names"
    rows = [(item.engine, "\n".join(item.trainer), item.rule) for item in mapped if item.rule]
    if rows:
        yield table("engine", "trainer", "rule", rows=rows)
