"""`rldbg ...` as a user types it: a process of its own, with an environment that no other test has changed."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

RLDBG = [sys.executable, "-m", "rldbg"]
_OF_OTHER_RUNS = ("RLDBG", "RAY_", "NRL_", "SLURM", "TORCH_", "PYTHONPATH", "VIRTUAL_ENV")


def clean_environment(**more: str) -> dict[str, str]:
    """Without what runs, clusters and environments of others set; `python` and `rldbg` are those of the tests."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_OF_OTHER_RUNS)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return clean | {"PATH": path, "PYTHONUNBUFFERED": "1"} | more


def rldbg(
    folder: Path,
    *words: object,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout_s: float = 150,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """The command with its output, in the clean environment or in `env`, with `more` variables."""
    return subprocess.run(
        [*RLDBG, *map(str, words)],
        cwd=folder,
        env={**(env or clean_environment()), **more},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
