"""The stub and the supervisor of a worker under nsys; `run_under_nsys` starts both in place of the worker.

The stub keeps the process id that the launcher knows, forwards signals and returns the exit code. The supervisor leaves
the launcher's process tree, runs `nsys ... python ...` and stays until the report is written. Ctrl-C, `ray.kill`,
`ray.shutdown` or a kill of the stub or the worker does not reach nsys before it has finished.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..settings import say
from ..waits.processes.open_files import ends_of
from ..waits.reading.kernel import all_processes
from .nsys import VARIABLE, UnderNsys, has_gpu, nsys_options, report_path
from .plan import Plan, fresh_path
from .status_file import OPEN_STATES, StatusFile

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_BEAT_S = 0.2
_REPORT_S = 60.0
_TRIES = 3


def main() -> None:
    """The stub; it never returns."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        os.setsid()
        # The child that stays has no parent in the launcher's tree, which Ray kills as a whole.
        if os.fork() == 0:
            _supervise(job, writing)
        os._exit(0)
    os.wait()
    os.close(writing)
    code = _stand_in(reading)
    if code is None:
        say("nsys ended before it had started this worker: it runs without nsys")
        os.environ[VARIABLE] = json.dumps({"worker": job["worker"]})
        os.execv(job["program"][0], job["program"])
    os._exit(code)


def _supervise(job: dict[str, Any], pipe: int) -> None:
    try:
        Supervisor(Plan.from_environment(), job, pipe).run()
    except (OSError, ValueError) as error:
        say(f"the supervisor of a worker under nsys failed: {error}")
    finally:
        os._exit(0)


class Supervisor:
    """Runs nsys and the worker below it to the end of both, and keeps the status file."""

    def __init__(self, plan: Plan, job: dict[str, Any], pipe: int) -> None:
        name, _, pattern = str(job["worker"]).partition("\t")
        self._plan = plan
        self._program: list[str] = job["program"]
        self._status_file = status = StatusFile(plan.state_folder, name, pattern, "nsys")
        self._pipe = pipe
        self._told = 0
        windowed = plan.steps is not None or plan.ranks or plan.delay_s
        mode = ("cuda" if has_gpu() else "session") if windowed else "whole"
        notes = status.path.parent / "nsys" / status.path.stem
        notes.parent.mkdir(parents=True, exist_ok=True)
        output = str(Path(plan.folder) / plan.stem(name, "%p"))
        self._session = session = f"rldbg-{status.path.stem.replace('_', '-')}"
        self._under = UnderNsys(mode, job["nsys"], session, output, str(notes), job["worker"])

    def run(self) -> None:
        self._status_file.update(supervisor=os.getpid(), state="recording" if self._under.mode == "whole" else "armed")
        code = self._run_nsys()
        for again in range(2, _TRIES + 1):
            # On a busy machine nsys 2022 now and then gives up before it has started anything.
            if not code or self._told:
                break
            self._end_agent()
            self._under = replace(self._under, session=f"{self._session}-{again}")
            code = self._run_nsys()
        self._tell(f"exit {code}")
        self._settle(code)
        self._end_agent()

    def _run_nsys(self) -> int:
        process = subprocess.Popen(self._command(), env=os.environ | {VARIABLE: json.dumps(asdict(self._under))})
        while process.poll() is None:
            self._look()
            time.sleep(_BEAT_S)
        self._look()
        return process.returncode

    def _command(self) -> list[str]:
        under, options = self._under, nsys_options(self._plan, self._under.mode)
        program = self._program
        if under.mode == "session":
            # `launch` takes what is traced; sampling options and the output path are given when the window opens.
            traced = [word for at, word in enumerate(options) if word == "-t" or (at and options[at - 1] == "-t")]
            traced += [word for word in options if word.startswith("--trace=")]
            return [under.nsys, "launch", f"--session-new={under.session}", *traced, *program]
        own = [] if "o" in self._plan.options or "output" in self._plan.options else ["-o", under.output]
        return [under.nsys, "profile", f"--session-new={under.session}", *own, *options, *program]

    def _tell(self, line: str) -> None:
        """The stub may have been killed; the supervisor stays."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, f"{line}\n".encode())

    def _look(self) -> None:
        """Takes over what the worker noted; the time of the status file says that this supervisor is alive."""
        notes: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            notes = json.loads(Path(self._under.notes).read_text())
        if notes.get("pid") and not self._told:
            self._told = int(notes["pid"])
            self._tell(f"pid {self._told}")
        if notes != self._status_file.facts.get("notes") or time.time() - self._status_file.facts["at"] > 2.0:
            known = {name: notes[name] for name in ("pid", "rank", "steps_seen", "state", "reason") if name in notes}
            if known.get("state") == "done":
                known["state"] = "finishing"  # for the worker; the report may not be written yet
            self._status_file.update(notes=notes, **known)

    def _settle(self, code: int) -> None:
        if not self._told:
            self._status_file.update(state="failed", reason=f"nsys ended with {code} before it had started the worker")
            return
        opened = self._under.mode == "whole" or self._status_file.facts["state"] in OPEN_STATES
        report = self._report(_REPORT_S if opened else 0.0)
        if report is not None:
            self._status_file.update(state="done", files=[str(report)], places=self._copies(report))
        elif opened:
            expected = report_path(self._under.output, self._told)
            raw = expected.with_suffix(".qdstrm")
            reason = "nsys wrote an empty report" if expected.exists() else "nsys wrote no report"
            reason = f"nsys left only {raw}: its importer is not installed" if raw.exists() else reason
            self._status_file.update(state="failed", reason=reason)

    def _report(self, limit_s: float) -> Path | None:
        given = self._plan.options.get("o") or self._plan.options.get("output") or self._under.output
        return written_report(report_path(given, self._told), limit_s)

    def _copies(self, report: Path) -> list[str]:
        """Where the documents look for a report: Ray's session on this node, and the job's synchronised logs."""
        made = []
        for folder in document_places(self._plan, self._program):
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                target = fresh_path(folder / report.name)
                try:
                    os.link(report, target)
                except OSError:
                    shutil.copy2(report, target)
                made.append(str(target))
        return made

    def _end_agent(self) -> None:
        """nsys 2022 now and then leaves its agent of this session behind."""
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = entry.read_bytes().split(b"\0")
                if b"--start-agent" in words and f"--session-name={self._under.session}".encode() in words:
                    os.kill(int(entry.parent.name), signal.SIGTERM)


def written_report(path: Path, limit_s: float) -> Path | None:
    """The report, once the agent of nsys has closed it: it goes on writing after nsys has ended. None if there is none,
    or nothing in it."""
    deadline = time.monotonic() + limit_s
    while True:
        written = path.exists() and path.stat().st_size > 0
        is_open = written and any(end["writes"] for end in ends_of(str(path.resolve()), all_processes()))
        if (written and not is_open) or time.monotonic() >= deadline:
            return path if written else None
        time.sleep(_BEAT_S)


def document_places(plan: Plan, program: Sequence[str]) -> Iterator[Path]:
    """`/tmp/ray/session_*/logs/nsight` of the session this worker belongs to; the log folder that is synchronised."""
    given = dict(word.lstrip("-").split("=", 1) for word in program if word.startswith("--") and "=" in word)
    session = given.get("session-name", "")
    if session:
        logs = Path(given.get("temp-dir", "/tmp/ray")) / session / "logs"
        if logs.is_dir():
            yield logs / "nsight"
    if plan.sync_s and plan.sync_to:
        yield Path(plan.sync_to) / (session or "processes") / "logs" / "nsight"


def _stand_in(pipe: int) -> int | None:
    """Waits for the worker's end and returns the status a shell would show; None when nsys never started it."""
    state = {"pid": 0, "pending": 0}

    def forward(number: int, _frame: Any) -> None:
        state["pending"] = number
        with contextlib.suppress(OSError):
            if state["pid"]:
                os.kill(state["pid"], number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    with os.fdopen(pipe, encoding="ascii") as messages:
        for line in messages:
            word, _, value = line.partition(" ")
            if word == "exit":
                # nsys gives 128 + n for a worker that signal n has ended.
                code = int(value)
                return None if not state["pid"] else code if code >= 0 else 128 - code
            state["pid"] = int(value)
            if state["pending"]:
                forward(state["pending"], None)
    return 1
