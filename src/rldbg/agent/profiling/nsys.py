"""Runs a worker under nsys by restarting it with its own interpreter and options.

The process that the launcher (Ray, torchrun, a shell) knows becomes a stub (see nsys_supervisor); below nsys runs what
it would have run itself.
"""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..arming import STARTUP
from ..ray_process import is_ray_worker
from ..settings import say
from .plan import ChosenWorker, Plan, program_name
from .status_file import StatusFile

VARIABLE = "RLDBG_UNDER_NSYS"
STUB = "from rldbg_agent.profiling.nsys_supervisor import main; main()"
INSTALL = "apt-get install nsight-systems-cli (NVIDIA's repository) or nsight-systems (Debian non-free)"
_ELSEWHERE = (
    "opt/nvidia/nsight-systems*/*/bin/nsys",
    "opt/nvidia/nsight-systems*/bin/nsys",
    "usr/local/cuda*/bin/nsys",
)


@dataclass(frozen=True)
class UnderNsys:
    """Settings of a process under nsys: how its window is opened, and where it writes notes for its supervisor.

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
        """The settings, only in the process that nsys runs; its children are in the report but have no window."""
        text = os.environ.get(VARIABLE, "")
        if not text:
            return None
        facts = json.loads(text)
        if "notes" not in facts:
            # nsys failed to start this worker, which therefore runs without it.
            return None
        under = cls(**facts)
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


def choose_this_process(plan: Plan) -> ChosenWorker | None:
    """What is known before the program's first line: Ray actors were chosen by their creator, others have a name."""
    choice = ChosenWorker.from_environment()
    if choice is not None or is_ray_worker():
        return choice
    name, rank = program_name(), os.environ.get("RANK", "")
    return plan.choose([name, f"{name}/{rank}"] if rank else [name])


def run_under_nsys(plan: Plan) -> None:
    """Returns in processes that do not run under nsys and in the one that already does; else this process becomes a
    stub."""
    choice = choose_this_process(plan)
    above = json.loads(os.environ.get(VARIABLE) or "{}")
    inherited = ChosenWorker.from_environment() is None or above.get("worker") == (
        choice.to_variable() if choice else ""
    )
    if choice is None or (above and inherited):
        return
    nsys = find_nsys()
    if nsys is None:
        StatusFile(plan.state_folder, choice.name, choice.pattern, "nsys").update(
            state="failed", reason=f"nsys is not installed on this node: {INSTALL}"
        )
        say(f"nsys is not installed on this node: {choice.name} runs without it")
        return
    job = {"nsys": nsys, "worker": choice.to_variable(), "program": [sys.executable, *sys.orig_argv[1:]]}
    code = f"import sys; sys.path.insert(0, {STARTUP!r}); import rldbg_startup; rldbg_startup.load_agent(); {STUB}"
    # Isolated and without site: the stub is a process of ours, not one more worker of the run.
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", code, json.dumps(job)])


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


def report_path(output: str, pid: int) -> Path:
    path = output.replace("%p", str(pid))
    return Path(path if path.endswith(".nsys-rep") else f"{path}.nsys-rep")
