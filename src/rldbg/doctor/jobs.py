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
    """Facts in addition to the logs; they can confirm a cause but never establish one."""

    environment: dict[str, str] = field(default_factory=dict)
    is_local: bool = False
    """Whether the logs come from this machine, so that a look at it means something."""
    has_ended: bool = True
    exit_code: int | None = None
    end_is_missing: bool = False
    """The run has ended without recording how: the launcher was killed, or the disk was full."""


def job_facts(paths: Sequence[str | Path]) -> JobFacts:
    """Facts from run.json if a run folder was given, else from the location of the logs."""
    for path in paths:
        run = _run_file(Path(path))
        if run is None:
            return JobFacts(end_is_missing=True)
        if run:
            is_local = socket.gethostname() in (run.get("hosts") or [])
            return JobFacts(
                {str(key): str(value) for key, value in (run.get("environment") or {}).items()},
                is_local,
                run.get("ended_at") is not None,
                run.get("exit_code"),
                end_is_missing=is_local and _is_abandoned(Path(path), run),
            )
    sessions = Path(os.path.realpath(Environment().text("RAY_TMPDIR") or "/tmp/ray"))
    local = any(sessions in Path(os.path.realpath(path)).parents for path in paths if str(path) != "-")
    return JobFacts(is_local=local)


def _is_abandoned(folder: Path, run: dict[str, Any]) -> bool:
    """Whether a run of `rldbg run` has no end, and no broker that it would have while it runs."""
    if "armed" not in run or run.get("ended_at") is not None:
        return False
    from rldbg.live import is_alive

    return not is_alive(folder)


def _run_file(path: Path) -> dict[str, Any] | None:
    """The contents of run.json; None if it is damaged."""
    try:
        content = json.loads((path / _RUN_FILE).read_text(encoding="utf-8"))
    except OSError:
        return {}
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
