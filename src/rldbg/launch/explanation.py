"""What `rldbg run` would do: which command trains, what is changed in it and why, and what cannot be reached."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import join
from typing import Any

from rldbg.agent import STARTUP
from rldbg.core import Finding
from rldbg.frameworks import GENERIC
from rldbg.launch.changes import Edit, LaunchChange, Unreached, armed_arguments, changes_of, option_edits
from rldbg.launch.command_line import is_interpreter, understand
from rldbg.launch.dry_run.calls import ShellCall
from rldbg.launch.dry_run.execution import DryRun, execute
from rldbg.launch.hazards import never_reached, no_training, run_hazards, script_hazards, training_hazards
from rldbg.launch.laptop import refuse_laptop
from rldbg.launch.profile import profile_named
from rldbg.launch.ray_auth import VARIABLE as AUTH_MODE
from rldbg.launch.ray_auth import auth_mode
from rldbg.launch.reach import Reach, reach_of
from rldbg.launch.recognition import Command, recognise
from rldbg.launch.request import Request
from rldbg.launch.requirements import demanded_variables, what_it_lacks
from rldbg.launch.run_environment import dry_environment, environment_changes
from rldbg.launch.script import check_syntax, read_commands

_DEMAND = re.compile(r"(?m): line \d+: (\w+): ")
"""How bash says that `${NAME:?...}` has no value."""
_MOST_DEMANDS = 5
"""Rounds of demands by scripts that the script itself runs; its own are met at once."""
_NO_SUCH_FILE = re.compile(r"([\w./@+-]*[\w-]\.?[\w-]+)['\"]?: No such file or directory")
_MARK = "rldbg.mark=1"
_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True)
class Explained:
    """One command with everything that arming does to it."""

    command: Command
    edits: tuple[Edit, ...] = ()
    reach: Reach | None = None
    changes: tuple[LaunchChange, ...] = ()
    unreached: tuple[Unreached, ...] = ()

    @property
    def armed_arguments(self) -> list[str]:
        """sys.argv[1:] of the training program."""
        return armed_arguments(self.command, self.edits)

    def to_dict(self) -> dict[str, Any]:
        call = self.command.call
        body: dict[str, Any] = {
            "argv": list(call.argv),
            "cwd": call.cwd,
            "kind": self.command.kind,
            "file": call.file,
            "line": call.line,
            "via": [join(launcher.argv) for launcher in self.command.via],
            "changes": [change.to_dict() for change in self.changes],
            "unreached": [missing.to_dict() for missing in self.unreached],
        }
        if self.command.kind == "training":
            body["framework"] = self.command.profile.name
            body["program"] = {"kind": self.command.program.kind, "name": self.command.program.name}
            body["armed_arguments"] = self.armed_arguments
        return body


@dataclass(frozen=True, slots=True)
class LaunchExplanation:
    """The whole answer of a dry run."""

    framework: str
    commands: tuple[Explained, ...]
    hazards: tuple[Finding, ...]
    isolation: str
    stopped: str = ""
    """Where the script would stop before any training, FILE:LINE; empty when it would not."""
    request: Request | None = field(default=None, repr=False)

    @property
    def trainings(self) -> list[Explained]:
        return [explained for explained in self.commands if explained.command.kind == "training"]

    def to_dict(self) -> dict[str, Any]:
        return {
            "framework": self.framework,
            "commands": [explained.to_dict() for explained in self.commands],
            "hazards": [hazard.to_dict() for hazard in self.hazards],
            "isolation": self.isolation,
        }


def explain(request: Request, run_folder: Path) -> LaunchExplanation:
    """Runs the script dry, or takes the command as it is, and determines what arming changes."""
    if request.framework:
        profile_named(request.framework)
    if request.script is not None:
        check_syntax(request.script, request.argv[0])
    dry_run, seen = _observe(request, run_folder)
    commands = [
        replace(command, call=through_wrapper(command.call)) if command.kind == "training" else command
        for command in seen
    ]
    mode, why = auth_mode(commands, dict(request.environment) | request.added_environment)
    common = [LaunchChange(AUTH_MODE, mode, "environment", why)] if mode else []
    if request.left_out:
        reason = "one process, because this machine has no accelerator"
        common.append(LaunchChange("left out", request.left_out, "command line", reason))
    explained = tuple(_explain(command, request, run_folder, tuple(common)) for command in commands)
    hazards = _hazards(request, dry_run, commands)
    trainings = [command for command in commands if command.kind == "training"]
    framework = request.framework or (trainings[0].profile.name if trainings else GENERIC)
    stopped = dry_run.passed[0] if dry_run is not None and dry_run.passed else ""
    isolation = dry_run.isolation if dry_run is not None else "none needed"
    return LaunchExplanation(framework, explained, tuple(hazards), isolation, stopped, request)


def _observe(request: Request, run_folder: Path) -> tuple[DryRun | None, list[Command]]:
    environment = dry_environment(request, run_folder)
    if request.script is None and not _runs_shell(request):
        call = ShellCall(request.argv, str(request.cwd), environment=environment)
        return None, recognise([call], request.framework)
    dry_run = _execute(request, environment)
    calls: Sequence[ShellCall] = dry_run.calls
    if dry_run.isolation == "none" and request.script is not None:
        calls = read_commands(request.script)
    commands = recognise(calls, request.framework)
    if any(command.kind == "training" for command in commands) or dry_run.isolation == "none":
        return dry_run, commands
    insisted, behind = _insist(request, environment)
    if not behind:
        return dry_run, commands
    stops = () if _lacks_its_own_output(dry_run) else (dry_run.last,)
    first = {name: getattr(dry_run, name) for name in ("output", "exit_code", "last", "last_command", "condition")}
    empty = {**insisted.empty, **dry_run.empty}
    return replace(insisted, **first, empty=empty, passed=(*stops, *insisted.passed)), behind


def _lacks_its_own_output(dry_run: DryRun) -> bool:
    """Whether the file that the script misses is one that an earlier program of it was told to make: in a dry run none
    is made."""
    said = [line for line in dry_run.output.splitlines() if line.strip()]
    missing = _NO_SUCH_FILE.search(said[-1]) if said else None
    return missing is not None and any(missing[1] in word for call in dry_run.calls for word in call.argv[1:])


def _insist(request: Request, environment: dict[str, str]) -> tuple[DryRun, list[Command]]:
    """Carries the script past its checks, filling in variables that it demands; no commands when that shows nothing."""
    demanded = demanded_variables(request.script, environment, always=False)
    environment = environment | {name: f"<{name}>" for name in demanded}
    for _ in range(_MOST_DEMANDS):
        insisted = _execute(request, environment, insist=True)
        behind = recognise(insisted.calls, request.framework)
        if any(command.kind == "training" for command in behind):
            return insisted, behind
        further = {name for name in _DEMAND.findall(insisted.output) if name not in environment}
        if not further:
            break
        environment = environment | {name: f"<{name}>" for name in further}
    return insisted, []


def _given_to(request: Request) -> dict[str, str]:
    """The variables that the script finds, as far as the user sets them."""
    return {**request.environment, **dict(request.set_environment)}


def _runs_shell(request: Request) -> bool:
    """`bash -c ...`, `sbatch job.sh`, `srun bash ...`: a command whose inside only a dry run can show."""
    if understand(request.argv).is_python:
        return False
    command = recognise([ShellCall(request.argv, str(request.cwd))], request.framework)
    return not command or (not command[0].program.is_python and command[0].kind == "other")


def _execute(
    request: Request, environment: dict[str, str], *, insist: bool = False, more: Sequence[str] = ()
) -> DryRun:
    script = request.script or Path(request.argv[0])
    argv = (*request.argv, *more)
    if request.script is None and Path(request.argv[0]).name not in ("bash", "sh"):
        # A shell in front notes the command itself; `exec` keeps the words exactly as they are.
        # It is not the shell whose last command counts: that is the script's, which the command starts.
        argv = ("bash", "-c", 'unset RLDBG_DRY_MAIN; "$@"', "bash", *argv)
    return execute(argv, cwd=request.cwd, script=script.absolute(), environment=environment, insist=insist)


def _explain(command: Command, request: Request, run_folder: Path, common: tuple[LaunchChange, ...]) -> Explained:
    if command.kind != "training":
        return Explained(command)
    if request.laptop:
        refuse_laptop(command.profile)
    edits, missing = option_edits(command, request, run_folder / "recording")
    reach = reach_of(command, STARTUP)
    if reach.options == "none" and request.script is not None and command.program.ignores_start_up:
        reach = reach_of(command, STARTUP, lands_last=_lands_last(command, request, run_folder))
    changes = [*changes_of(command, edits, reach), *environment_changes(command, request, reach), *common]
    unreached = [*missing, *(Unreached(" ".join(command.call.argv[:3]), reason) for reason in reach.reasons)]
    if reach.options == "none":
        changes = [change for change in changes if change.method != "none"]
    return Explained(command, tuple(edits), reach, tuple(changes), tuple(unreached))


def _lands_last(command: Command, request: Request, run_folder: Path) -> bool:
    """Whether one more argument of the script becomes the last argument of the training command, and nothing else."""
    marked = _execute(request, dry_environment(request, run_folder), more=(_MARK,))
    wanted = (*command.call.argv, _MARK)
    return any(call.argv == wanted for call in marked.calls) and sum(_MARK in call.argv for call in marked.calls) == 1


def _hazards(request: Request, dry_run: DryRun | None, commands: Sequence[Command]) -> list[Finding]:
    found: list[Finding] = []
    trains = any(command.kind == "training" for command in commands)
    lacks: tuple[str, ...] = ()
    if dry_run is not None:
        # The words after the script, of `bash SCRIPT ...`.
        given = len(request.argv) - 2
        lacks = what_it_lacks(dry_run, request.script, given, request.cwd, _given_to(request))
        found += run_hazards(dry_run, commands, request.script, lacks, given)
    else:
        found += [hazard for command in commands if command.kind == "training" for hazard in training_hazards(command)]
    if request.script is not None:
        in_slurm = "SLURM_JOB_ID" in request.environment
        known = {(finding.id, finding.where) for finding in found}
        found += [
            finding
            for finding in script_hazards(request.script, commands, in_slurm=in_slurm)
            if (finding.id, finding.where) not in known
        ]
        if dry_run is not None and not trains:
            found += never_reached(request.script, dry_run, commands, lacks)
    missed = any(finding.id == "launch.training-not-reached" for finding in found)
    return found if trains or missed else [*found, no_training(request.script, commands, dry_run)]


def through_wrapper(call: ShellCall) -> ShellCall:
    """The call as the interpreter sees it: pyenv and its like are shell scripts that start it under another name."""
    program = call.argv[0]
    if not is_interpreter(program):
        return call
    found = shutil.which(program, path=call.environment.get("PATH"))
    if found is None or _is_binary(Path(found)):
        return call
    try:
        answer = subprocess.run(
            [found, "-c", "import json, sys; print(json.dumps(sys.orig_argv[0]))"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
            cwd=call.cwd if os.path.isdir(call.cwd) else None,  # noqa: PTH112 - never raises
        )
        name = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return call  # what the wrapper does cannot be known without running it
    return replace(call, argv=(str(name), *call.argv[1:]))


def _is_binary(file: Path) -> bool:
    try:
        with file.open("rb") as handle:
            return handle.read(4) == _ELF
    except OSError:
        return True
