"""Frameworks: one row each, or one with its hooks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column
from rich.text import Text

from rldbg.agent.profiling import Hook
from rldbg.core import Finding
from rldbg.frameworks import CAPABILITIES, HookState, Support
from rldbg.reports.findings import to_terminal as findings_to_terminal
from rldbg.reports.tables import Table

_STYLES = {"found": "green", "missing": "bold red"}


def framework_table(found: Sequence[Support]) -> RenderableType:
    """One row per framework: version, capabilities, and how many of its hooks the installed version has."""
    table = Table("framework", "installed", *CAPABILITIES, "hooks", box=None, header_style="bold")
    for support in found:
        marks = [_mark(support, name) for name in CAPABILITIES]
        style = "bold red" if support.missing else ""
        table.add_row(support.framework.name, support.version or "-", *marks, Text(_summary(support), style))
    missing = [hook for support in found for hook in support.missing]
    notes = [Text(f"missing: {hook.hook.module}.{hook.hook.function}: {hook.how}", "red") for hook in missing]
    return Group(table, *notes, Text("rldbg frameworks NAME shows one with all its hooks", "dim"))


def _mark(support: Support, capability: str) -> str:
    if capability == "record" and support.tested.startswith("a stub"):
        return "stub"
    return "yes" if getattr(support, capability) else "-"


def framework_details(support: Support) -> RenderableType:
    """Everything that is known of one framework."""
    framework = support.framework
    facts = Table.grid(padding=(0, 2))
    facts.add_row("framework", f"{framework.title} ({framework.name})")
    if framework.based_on:
        facts.add_row("fork of", framework.based_on)
    facts.add_row("installed", support.version or "no")
    for name in CAPABILITIES:
        facts.add_row(name, Text(getattr(support, name) or "-"))
    facts.add_row("known failures", str(support.knowledge))
    facts.add_row("hooks", _summary(support))
    return Group(facts, *_hook_lines(support.hooks))


def hooks_of_run(processes: Sequence[Mapping[str, Any]], findings: Sequence[Finding]) -> RenderableType:
    """What each process hooked for a recording, how often it was called, and what is missing."""
    function = Column("function", no_wrap=True)
    table = Table("process", "rank", function, "records", "calls", "cost", box=None, header_style="bold")
    for process in processes:
        for name, hook in process["hooks"].items():
            failed = f", {hook['errors']} failed" if hook["errors"] else ""
            calls = Text(hook["problem"] or f"{hook['calls']}{failed}", "" if hook["calls"] and not failed else "red")
            who = f"{process['host']} {process['pid']}"
            cost = f"{hook['seconds']:.3f} s"
            # Modules of some are longer than the line; --json has them.
            short = ".".join(name.split(".")[-2:])
            table.add_row(who, process["rank"] or "-", short, ", ".join(hook["records"]), calls, cost)
    return Group(table, findings_to_terminal(findings))


def _hook_lines(hooks: Sequence[HookState]) -> Iterator[RenderableType]:
    """Each hook with its state and how that was found out; a reason that several share is shown above them, once."""
    by_reason: dict[tuple[str, str], list[HookState]] = {}
    for each in hooks:
        by_reason.setdefault((each.state, each.how if each.state != "found" else ""), []).append(each)
    for (state, reason), alike in by_reason.items():
        style = _STYLES.get(state, "dim")
        if len(alike) > 1 and reason:
            yield Text.assemble((state, style), f": {reason}")
        for each in alike:
            if len(alike) > 1 and reason:
                yield _indented(Text.assemble(_hook_text(each), (_versions(each.hook), "dim")))
            else:
                yield Text.assemble((state, style), "  ", _hook_text(each))
                yield _indented(Text(f"{each.how}{_versions(each.hook)}", "dim"))


def _indented(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, 4), expand=False)


def _hook_text(state: HookState) -> Text:
    hook = state.hook
    records = f"records {', '.join(hook.records)}" if hook.records else ""
    yields = ", ".join(filter(None, (hook.phase, f"step {hook.step}" if hook.step else "", records)))
    return Text.assemble(f"{hook.module}.{hook.function}  ", (yields, "bold"))


def _versions(hook: Hook) -> str:
    facts = (("since", hook.since), ("gone in", hook.gone), ("last seen in", hook.seen))
    versions = ", ".join(f"{word} {version}" for word, version in facts if version)
    return f" ({versions})" if versions else ""


def _summary(support: Support) -> str:
    if not support.hooks:
        return "-"
    counted = [hook.state for hook in support.hooks]
    return ", ".join(f"{counted.count(state)} {state}" for state in dict.fromkeys(counted))
