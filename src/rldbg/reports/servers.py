"""The servers of this user: where they are and whether they answer."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from rldbg.core import Finding
from rldbg.inference import Server
from rldbg.reports.findings import to_terminal as findings_to_terminal
from rldbg.reports.tables import Table


def to_terminal(servers: Sequence[Server], states: Sequence[Sequence[str]]) -> Table:
    table = Table("name", "backend", "model", "state", "address", "pid", "up")
    for server, row in zip(servers, states, strict=True):
        age = f"{(time.time() - server.started_at) / 60:.0f} min"
        for process, state in zip(server.processes, row, strict=True):
            table.add_row(server.name, server.backend, server.model, state, process.address, str(process.pid), age)
    return table


def crash_notes(servers: Sequence[Server], states: Sequence[Sequence[str]]) -> Iterator[str]:
    """The last lines of each process that crashed, and what to do."""
    for server, row in zip(servers, states, strict=True):
        for process, state in zip(server.processes, row, strict=True):
            if state == "crashed":
                yield f"{server.name} (pid {process.pid}) crashed. The last lines of {process.log}:"
                yield "\n".join(f"  {line}" for line in process.last_lines(5)) or "  none"
                yield f"  restart it with `rldbg serve restart {server.name}`"


def stopped_lines(reports: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[RenderableType]:
    """The final report of each process of the stopped servers."""
    for name, parts in reports.items():
        yield f"{name} is down"
        yield from (f"  {part['summary']}" for part in parts)
    findings = [
        Finding.from_dict(item) for parts in reports.values() for part in parts for item in part.get("findings", ())
    ]
    if findings:
        yield findings_to_terminal(findings)
