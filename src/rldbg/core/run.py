"""The run folder: the one place on disk that ties together what was launched, recorded and found.

    RUN/run.json       command, armed changes, versions, config, git commit, hosts, threads, start and end
    RUN/metrics.jsonl  what the trainer reported per step
    RUN/recording/  RUN/crashes/  RUN/stacks/  RUN/profiles/  RUN/logs/  RUN/reports/

run.json is replaced as a whole (temporary name, then rename), and redacted before it is written.
"""

import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rldbg.core.environment import Environment
from rldbg.core.errors import IncompleteDataError, UsageError, explained_as
from rldbg.version import __version__

_VERSIONED = ("torch", "ray", "transformers", "numpy", "debugpy", "vllm", "sglang", "safetensors")
# File names have at most 255 bytes.
_NAME = 100
_FOLDERS = ("recording", "crashes", "stacks", "profiles", "logs", "reports")


class Run:
    """A run folder on disk. Nothing is made until something is written into it."""

    def __init__(self, path: Path | str, *, redact_secrets: bool = True) -> None:
        self.path = Path(path)
        self._redact = redact_secrets

    @classmethod
    def create(
        cls,
        *,
        name: str,
        path: Path | str | None = None,
        environment: Environment | None = None,
        redact_secrets: bool = True,
    ) -> "Run":
        """The folder asked for, else the enclosing run (RLDBG_RUN), else a new one under .rldbg/runs."""
        environment = environment or Environment()
        path = path or environment.text("RLDBG_RUN")
        runs = Path(environment.text("RLDBG_HOME")) / "runs"
        hint = "choose another place with --run DIR" + ("" if path else ", or set RLDBG_HOME")
        with explained_as(UsageError, OSError, f"cannot create the run folder {path or f'under {runs}'}", hint):
            run = cls(path or _fresh_folder(runs, name), redact_secrets=redact_secrets)
            run.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return run

    def folder(self, name: str) -> Path:
        """One of the run's standard folders, made when first asked for."""
        if name not in _FOLDERS:
            raise ValueError(f"no such folder in a run: {name}")
        folder = self.path / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def read(self) -> dict[str, Any]:
        """run.json, or an empty mapping when the folder has none."""
        file = self.path / "run.json"
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        try:
            data = json.loads(text)
        except ValueError as error:
            raise IncompleteDataError(f"{file} is not valid JSON: {error}", "restore it or remove the file") from error
        if not isinstance(data, dict):
            raise IncompleteDataError(f"{file} does not contain a JSON object", "restore it or remove the file")
        return data

    def update(self, **facts: Any) -> None:
        """Adds facts to run.json; what is there under other names stays."""
        data = self.read() | facts
        data.setdefault("schema_version", 1)
        if self._redact:
            from rldbg.core.redaction import redact  # readers never need its patterns

            data = redact(data)
        write_whole(self.path / "run.json", json.dumps(data, indent=1, default=str) + "\n")

    def start(self, *, command: Sequence[str], config: Mapping[str, Any] | None = None, **facts: Any) -> None:
        """Writes what is known at the start: command, configuration, versions, commit, environment, host."""
        self.update(
            command=list(command),
            config=dict(config or {}),
            started_at=time.time(),
            ended_at=None,
            exit_code=None,
            versions=versions(),
            git_commit=git_commit(Path.cwd()),
            hosts=[os.uname().nodename],
            pid=os.getpid(),
            cwd=str(Path.cwd()),
            environment=Environment().everything(),
            **facts,
        )

    def finish(self, exit_code: int, **facts: Any) -> None:
        self.update(ended_at=time.time(), exit_code=exit_code, **facts)


def versions() -> dict[str, str]:
    """Versions of the packages that affect numerical results, read without importing them."""
    import importlib.metadata

    found = {"python": sys.version.split()[0], "rldbg": __version__}
    for name in _VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_commit(folder: Path) -> str | None:
    """The commit checked out there, with `+dirty` when files differ; None outside a repository."""
    import subprocess

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _fresh_folder(parent: Path, name: str) -> Path:
    """<time>-<name>, made here and now so that two verbs started in the same second do not share one."""
    short = re.sub(r"[^A-Za-z0-9._-]+", "-", name[:_NAME]).strip("-") or "run"
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{short}"
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for attempt in range(1000):
        candidate = parent / (stem if attempt == 0 else f"{stem}-{attempt}")
        try:
            candidate.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return candidate
    raise UsageError(f"no free name for a run folder under {parent}", "choose one with --run DIR")


def write_whole(file: Path, text: str, *, mode: int = 0o666) -> None:
    """Writes under another name and renames: a file of this name is never seen half written. The umask applies."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        temporary.replace(file)
    except OSError as error:
        # The error of a full disk does not name the file, and the partial file would take up space.
        temporary.unlink(missing_ok=True)
        error.filename = str(file)
        raise
