"""What is known of the job whose logs are read: the variables it ran with, and whether it ran on this machine."""

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rldbg.core import Environment

_RUN_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Facts beside the logs; they can confirm a cause, never name one."""

    environment: dict[str, str] = field(default_factory=dict)
    is_local: bool = False
    """Whether the logs come from this machine, so that a look at it means something."""
    has_ended: bool = True
    exit_code: int | None = None


def job_facts(paths: Sequence[str | Path]) -> JobFacts:
    """From run.json where a run folder was given, else from where the logs lie."""
    for path in paths:
        run = _run_file(Path(path))
        if run:
            hosts = run.get("hosts") or []
            return JobFacts(
                {str(key): str(value) for key, value in (run.get("environment") or {}).items()},
                socket.gethostname() in hosts,
                run.get("ended_at") is not None,
                run.get("exit_code"),
            )
    sessions = Path(os.path.realpath(Environment().text("RAY_TMPDIR") or "/tmp/ray"))
    local = any(sessions in Path(os.path.realpath(path)).parents for path in paths if str(path) != "-")
    return JobFacts(is_local=local)


def _run_file(path: Path) -> dict[str, Any]:
    try:
        content = json.loads((path / _RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
