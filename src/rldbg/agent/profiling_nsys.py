"""A worker under nsys, started anew by its own interpreter, so that no interpreter, option or report is lost.

The process that the launcher (Ray, torchrun, a shell) knows becomes a stub: it forwards signals and hands on the exit
code. A minder, in a session of its own, runs `nsys ... python ...` and stays until the report is written: neither
Ctrl-C, `ray.shutdown` nor the kill of the stub or of the worker reaches nsys before it has finished.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .profiling_plan import Choice, Plan, fresh_path, program_name
from .profiling_ticket import Ticket
from .ray_process import is_ray_worker
from .settings import say

VARIABLE = "RLDBG_UNDER_NSYS"
INSTALL = "apt-get install nsight-systems-cli (NVIDIA's repository) or nsight-systems (Debian non-free)"
_ELSEWHERE = (
    "opt/nvidia/nsight-systems*/*/bin/nsys",
    "opt/nvidia/nsight-systems*/bin/nsys",
    "usr/local/cuda*/bin/nsys",
)
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_BEAT_S = 0.2
_REPORT_S = 60.0


@dataclass(frozen=True)
class UnderNsys:
    """What a process under nsys must know: how its window is opened, and where it leaves notes for its minder.

    `mode` is whole (nsys records all the time), cuda (cudaProfilerStart and Stop), or session (`nsys start`, `stop`).
    """

    mode: str
    nsys: str
    session: str
    output: str
    notes: str
    worker: str

    @classmethod
    def here(cls) -> "UnderNsys | None":
        """Only in the process that nsys was told to run; those below it are in its report but have no window."""
        text = os.environ.get(VARIABLE, "")
        if not text:
            return None
        under = cls(**json.loads(text))
        try:
            os.close(os.open(f"{under.notes}.claim", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except OSError:
            return None
        under.note(pid=os.getpid())
        return under

    def note(self, **facts: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            path = Path(self.notes)
            known = json.loads(path.read_text()) if path.exists() else {}
            temporary = path.with_suffix(".new")
            temporary.write_text(json.dumps(known | facts))
            temporary.replace(path)


def find_nsys() -> str | None:
    elsewhere = [str(path) for pattern in _ELSEWHERE for path in sorted(Path("/").glob(pattern), reverse=True)]
    return shutil.which("nsys") or next(iter(elsewhere), None)


def has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


def choose_this_process(plan: Plan) -> Choice | None:
    """What is known before the program's first line: Ray actors were chosen by their creator, others have a name."""
    choice = Choice.from_environment()
    if choice is not None or is_ray_worker():
        return choice
    name, rank = program_name(), os.environ.get("RANK", "")
    return plan.choose([name, f"{name}/{rank}"] if rank else [name])


def run_under_nsys(plan: Plan) -> None:
    """Returns in processes that nsys shall not run, and in the one that it runs; a stub never returns."""
    choice = choose_this_process(plan)
    above = json.loads(os.environ.get(VARIABLE) or "{}")
    inherited = Choice.from_environment() is None or above.get("worker") == (choice.to_variable() if choice else "")
    if choice is None or (above and inherited):
        return
    ticket = Ticket(plan.books, choice.name, choice.pattern, "nsys")
    nsys = find_nsys()
    if nsys is None:
        ticket.update(state="failed", reason=f"there is no nsys on this node: {INSTALL}")
        say(f"no nsys on this node: {choice.name} runs without it")
        return
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        if _stub(reading):
            return
    os.close(reading)
    try:
        _Minder(plan, choice, ticket, nsys, writing).run()
    finally:
        os._exit(0)


def nsys_options(plan: Plan, mode: str) -> list[str]:
    """The documented defaults with the user's options over them; None is a bare flag."""
    options: dict[str, str | None] = {"t": "cuda,nvtx" if has_gpu() else "osrt,nvtx", "s": "none"}
    if mode == "whole":
        options |= {"stop-on-exit": "true", "cpuctxsw": "none"}
    if has_gpu():
        options["cuda-graph-trace"] = "node"
    if mode == "cuda":
        options |= {"stop-on-exit": "true", "capture-range": "cudaProfilerApi", "capture-range-end": "stop"}
    long_names = {"t": "trace", "s": "sample", "o": "output", "w": "show-output", "y": "delay", "d": "duration"}
    for name, value in plan.options.items():
        options = {key: kept for key, kept in options.items() if key != name and long_names.get(key) != name}
        options[name] = value
    return option_words(options)


def option_words(options: Mapping[str, str | None]) -> list[str]:
    words = []
    for name, value in options.items():
        if value is None:
            words.append(f"--{name}" if len(name) > 1 else f"-{name}")
        else:
            words += [f"--{name}={value}"] if len(name) > 1 else [f"-{name}", value]
    return words


class _Minder:
    """Runs nsys and the worker below it to the end of both, and keeps the ticket."""

    def __init__(self, plan: Plan, choice: Choice, ticket: Ticket, nsys: str, pipe: int) -> None:
        self._plan = plan
        self._ticket = ticket
        self._nsys = nsys
        self._pipe = pipe
        self._told = 0
        windowed = plan.steps is not None or plan.ranks or plan.delay_s
        mode = ("cuda" if has_gpu() else "session") if windowed else "whole"
        notes = ticket.path.parent / "nsys" / ticket.path.stem
        notes.parent.mkdir(parents=True, exist_ok=True)
        output = str(Path(plan.folder) / plan.stem(choice.name, "%p"))
        session = f"rldbg-{ticket.path.stem.replace('_', '-')}"
        self._under = UnderNsys(mode, nsys, session, output, str(notes), choice.to_variable())

    def run(self) -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._ticket.update(minder=os.getpid(), state="recording" if self._under.mode == "whole" else "armed")
        process = subprocess.Popen(self._command(), env=os.environ | {VARIABLE: json.dumps(asdict(self._under))})
        while process.poll() is None:
            self._look()
            time.sleep(_BEAT_S)
        self._look()
        os.write(self._pipe, f"exit {process.returncode}\n".encode())
        self._settle(process.returncode)
        self._end_agent()

    def _command(self) -> list[str]:
        under, options = self._under, nsys_options(self._plan, self._under.mode)
        program = [sys.executable, *sys.orig_argv[1:]]
        if under.mode == "session":
            # `launch` takes what is traced; what is sampled and where it goes is said when the window opens.
            traced = [word for at, word in enumerate(options) if word == "-t" or (at and options[at - 1] == "-t")]
            traced += [word for word in options if word.startswith("--trace=")]
            return [under.nsys, "launch", f"--session-new={under.session}", *traced, *program]
        own = [] if "o" in self._plan.options or "output" in self._plan.options else ["-o", under.output]
        return [under.nsys, "profile", f"--session-new={under.session}", *own, *options, *program]

    def _look(self) -> None:
        """Takes over what the worker noted; the ticket's time says that this minder is alive."""
        notes: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            notes = json.loads(Path(self._under.notes).read_text())
        if notes.get("pid") and not self._told:
            self._told = int(notes["pid"])
            os.write(self._pipe, f"pid {self._told}\n".encode())
        if notes != self._ticket.facts.get("notes") or time.time() - self._ticket.facts["at"] > 2.0:
            known = {name: notes[name] for name in ("pid", "rank", "steps_seen", "state", "reason") if name in notes}
            self._ticket.update(notes=notes, **known)

    def _settle(self, code: int) -> None:
        if not self._told:
            self._ticket.update(state="failed", reason=f"nsys ended with {code} before it had started the worker")
            return
        opened = self._under.mode == "whole" or self._ticket.facts["state"] in ("recording", "finishing", "done")
        report = self._report(_REPORT_S if opened else 0.0)
        if report is not None:
            self._ticket.update(state="done", files=[str(report)], places=self._copies(report))
        elif opened:
            raw = report_path(self._under.output, self._told).with_suffix(".qdstrm")
            reason = f"nsys left only {raw}: its importer is not installed" if raw.exists() else "nsys wrote no report"
            self._ticket.update(state="failed", reason=reason)

    def _report(self, limit_s: float) -> Path | None:
        given = self._plan.options.get("o") or self._plan.options.get("output") or self._under.output
        path = report_path(given, self._told)
        deadline = time.monotonic() + limit_s
        while not path.exists():
            if time.monotonic() > deadline:
                return None
            time.sleep(_BEAT_S)
        return path

    def _copies(self, report: Path) -> list[str]:
        """Where the documents look for a report: Ray's session on this node, and the job's synchronised logs."""
        made = []
        for folder in document_places(self._plan):
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


def report_path(output: str, pid: int) -> Path:
    path = output.replace("%p", str(pid))
    return Path(path if path.endswith(".nsys-rep") else f"{path}.nsys-rep")


def document_places(plan: Plan) -> Iterator[Path]:
    """`/tmp/ray/session_*/logs/nsight` of the session this worker belongs to; the log folder that is synchronised."""
    given = dict(word.lstrip("-").split("=", 1) for word in sys.orig_argv if word.startswith("--") and "=" in word)
    session = given.get("session-name", "") if is_ray_worker() else ""
    if session:
        logs = Path(given.get("temp-dir", "/tmp/ray")) / session / "logs"
        if logs.is_dir():
            yield logs / "nsight"
    if plan.sync_s and plan.sync_to:
        yield Path(plan.sync_to) / (session or "processes") / "logs" / "nsight"


def _stub(pipe: int) -> bool:
    """Stands for the worker until it has ended. True when nsys never started it: then this process is the worker."""
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
                if not state["pid"]:
                    say("nsys ended before it had started this worker: it runs without nsys")
                    for number in _FORWARDED:
                        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
                    return True
                code = int(value)
                # The status a shell would show: nsys gives 128 + n for a worker that signal n has ended.
                os._exit(code if code >= 0 else 128 - code)
            state["pid"] = int(value)
            if state["pending"]:
                forward(state["pending"], None)
    os._exit(1)
