"""What is to be profiled: one JSON file in the run folder, written by `rldbg profile` and read by every process.

RLDBG_PROFILING names the file; RLDBG_PROFILING_PLAN is its text, for processes on nodes that do not see it.
RLDBG_PROFILE_WORKER is set for one worker by whoever creates it: its name and, behind a
tab, the pattern that chose it; processes below that worker inherit both.
"""

import json
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..arguments import program_of
from ..selection import Subject, parse_selection

PLAN_VARIABLE = "RLDBG_PROFILING"
TEXT_VARIABLE = "RLDBG_PROFILING_PLAN"
WORKER_VARIABLE = "RLDBG_PROFILE_WORKER"
OWN_VARIABLES = ("NRL_NSYS_WORKER_PATTERNS", "NRL_NSYS_PROFILE_STEP_RANGE")
"""By these a framework profiles itself. The plan has what they say: a worker that read them as well would start
and stop the same capture range a second time, and the first stop ends the report."""
OPEN_END = 2**31
_UNFIT = re.compile(r"[^A-Za-z0-9._:+-]+")


@dataclass(frozen=True)
class Hook:
    """A function of a framework: the phase that it is, the step that it begins or ends, and what of it is recorded.

    `function` is its name inside `module`, dotted for methods. `step` is an argument, dotted for an attribute or key
    of it, `calls` (how often the function was called), or a number; `per` names attributes of the same argument whose
    product it is divided by (micro-batches of one RL step), `offset` makes it 1-based, and where a module of `unless`
    is imported it says nothing. With `ends` the next step begins when the function returns. Where a function that
    `owns_steps` is imported, optimizer steps are never counted. `since` is the version that brought the function,
    `gone` the one that no longer has it, and `seen` the last in which it was looked up. `records` are the kinds that
    `handler`, a method of the framework's RECORDING, makes of its calls.
    """

    module: str
    function: str
    phase: str = ""
    step: str = ""
    offset: int = 0
    per: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    ends: bool = False
    owns_steps: bool = False
    since: str = ""
    gone: str = ""
    seen: str = ""
    records: tuple[str, ...] = ()
    handler: str = ""


@dataclass(frozen=True)
class ChosenWorker:
    """A worker that is to be profiled: its name, and the pattern that matched."""

    name: str
    pattern: str

    @classmethod
    def from_environment(cls) -> "ChosenWorker | None":
        name, _, pattern = os.environ.get(WORKER_VARIABLE, "").partition("\t")
        return cls(name, pattern) if name else None

    def to_variable(self) -> str:
        return f"{self.name}\t{self.pattern}"


@dataclass(frozen=True)
class Plan:
    """A profile: which workers and ranks, which steps (1-based, stop exclusive), by which tool, into which folder.

    `state_folder` is where processes report: RUN/profiling with status files, workers, steps and phases.
    """

    tool: str
    patterns: tuple[str, ...]
    folder: str
    state_folder: str
    ranks: str = ""
    steps: tuple[int, int] | None = None
    options: dict[str, str | None] = field(default_factory=dict)
    class_names_first: bool = False
    delay_s: float = 0.0
    sync_s: float = 0.0
    sync_to: str = ""
    hooks: tuple[Hook, ...] = ()

    @classmethod
    def from_environment(cls) -> "Plan":
        """The plan of this process's run. On a node that does not see the run folder, what the process writes lies in
        a folder of the same name, until it is gathered."""
        path = Path(os.environ[PLAN_VARIABLE])
        if path.exists() or TEXT_VARIABLE not in os.environ:
            return cls.parse(path.read_text(encoding="utf-8"))
        plan = cls.parse(os.environ[TEXT_VARIABLE])
        for folder in (plan.folder, plan.state_folder):
            Path(folder).mkdir(parents=True, exist_ok=True)
        return plan

    @classmethod
    def parse(cls, text: str) -> "Plan":
        data: dict[str, Any] = json.loads(text)
        data["patterns"] = tuple(data["patterns"])
        data["steps"] = tuple(data["steps"]) if data["steps"] else None
        for hook in data["hooks"]:
            hook.update({name: tuple(value) for name, value in hook.items() if isinstance(value, list)})
        data["hooks"] = tuple(Hook(**hook) for hook in data["hooks"])
        return cls(**data)

    def to_text(self) -> str:
        """JSON; of a hook only what is not the default, because the text travels in the environment of each process."""
        hooks = [{name: value for name, value in asdict(hook).items() if value} for hook in self.hooks]
        return json.dumps(asdict(replace(self, hooks=())) | {"hooks": hooks})

    def choose(self, names: Iterable[str]) -> ChosenWorker | None:
        """The first of a worker's names that a pattern matches."""
        for name in names:
            for pattern in self.patterns:
                if fnmatchcase(name, pattern):
                    return ChosenWorker(name, pattern)
        return None

    def choose_actor(self, name: str, class_name: str) -> ChosenWorker | None:
        """An actor is known by its name and, if it has none, by its class; the documented variables look at the class
        first."""
        names = [each for each in (name, class_name) if each]
        return self.choose(reversed(names) if self.class_names_first else names)

    def wants_rank(self, identity: dict[str, Any]) -> bool:
        if not self.ranks:
            return True
        role, rank = str(identity["role"]), identity["rank"]
        who = role if rank is None else f"{role}/{rank}"
        return parse_selection(self.ranks).matches(Subject(who, role, rank, identity["coordinates"], identity["pid"]))

    @property
    def window(self) -> str:
        """The window as part of file names; empty for the whole life of a process."""
        if self.steps is None:
            return ""
        return f"{self.steps[0]}:{self.steps[1] if self.steps[1] < OPEN_END else ''}"

    def stem(self, worker: str, pid: str) -> str:
        """`<worker>_<window>_<pid>`: what every file of a worker's profile begins with."""
        return "_".join(part for part in (_UNFIT.sub("_", worker).strip("_"), self.window, pid) if part)


def program_name() -> str:
    """What a plain process is called before it has said anything: its script or module."""
    kind, name, _ = program_of(sys.orig_argv)
    if kind == "script":
        path = Path(name)
        return path.parent.name if path.name == "__main__.py" else path.stem
    return name if kind == "module" else "python"


def fresh_path(path: Path) -> Path:
    """The path, or the first of `name.2.ext`, `name.3.ext` ... that does not exist: nothing is overwritten."""
    stem, dot, extension = path.name.partition(".")
    number = 2
    while path.exists():
        path = path.with_name(f"{stem}.{number}{dot}{extension}")
        number += 1
    return path
