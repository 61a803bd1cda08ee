"""Everything that the real run needs, worked out from the explanation: command line, environment, shell functions."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from rldbg.agent import ARGUMENTS_VARIABLE, STARTUP, Arming
from rldbg.core import PrerequisiteError, UsageError
from rldbg.launch.changes import as_words, rule_of
from rldbg.launch.explanation import Explained, LaunchExplanation
from rldbg.launch.ray_auth import VARIABLE as AUTH_MODE
from rldbg.launch.reach import ARGUMENTS, SHELL
from rldbg.launch.request import Request
from rldbg.launch.run_environment import added_variables, run_environment
from rldbg.launch.script import logical_lines, read_text

_LARGEST_VARIABLE_BYTES = 120_000
_FUNCTIONS = "functions.sh"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A command line and the environment to start it in."""

    argv: tuple[str, ...]
    cwd: Path
    environment: Mapping[str, str]


def make_plan(explanation: LaunchExplanation, request: Request, arming: Arming, folder: Path) -> LaunchPlan:
    """`folder` is the run's; the shell functions are written there."""
    trainings = explanation.trainings
    refuse_unarmable(explanation)
    added = added_variables([explained.command for explained in trainings], request)
    added |= {
        change.what: change.value for explained in trainings for change in explained.changes if change.what == AUTH_MODE
    }
    environment = run_environment(request, folder, arming, added)
    environment[ARGUMENTS_VARIABLE] = _arguments_variable(trainings, environment, added)
    functions = shell_functions(trainings, request, environment.get("BASH_ENV", ""))
    if functions:
        file = folder / _FUNCTIONS
        file.write_text(functions, encoding="utf-8")
        environment["BASH_ENV"] = str(file)
    return LaunchPlan((*request.argv, *_script_arguments(trainings)), request.cwd, environment)


def refuse_unarmable(explanation: LaunchExplanation) -> None:
    """Refuses a run that would not train. A command that the user gives explicitly always runs."""
    if not explanation.trainings and (explanation.request is None or explanation.request.script is not None):
        missed = next((hazard for hazard in explanation.hazards if hazard.id == "launch.training-not-reached"), None)
        if missed is not None:
            raise UsageError(
                f"the script does not reach a training command ({missed.where}): {'; '.join(missed.evidence)}",
                "; ".join(missed.fix),
            )
        if not any(explained.command.program.is_python for explained in explanation.commands):
            raise UsageError(
                "no training command found in it",
                "see what it starts with --dry-run; give the training command itself: rldbg run -- COMMAND",
            )
    if explanation.stopped:
        early = next(hazard for hazard in explanation.hazards if hazard.id == "launch.stops-early")
        why = "".join(f"; {line}" for line in early.evidence)
        raise UsageError(
            f"the script stops at {explanation.stopped} before any training{why}",
            f"{'; '.join(early.fix)}; --dry-run shows the rest",
        )


def _arguments_variable(trainings: Sequence[Explained], environment: Mapping[str, str], own: Mapping[str, str]) -> str:
    rules = [rule_of(explained.command, explained.edits) for explained in trainings]
    inside = json.dumps({"rules": rules}, separators=(",", ":"))
    job = {name: value for name, value in environment.items() if name.startswith("RLDBG_")} | dict(own)
    # A driver's own env_vars must win over ours instead of failing the job, and then our hook adds itself to them.
    job |= {
        ARGUMENTS_VARIABLE: inside,
        "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
        "RAY_RUNTIME_ENV_HOOK": environment.get("RAY_RUNTIME_ENV_HOOK", ""),
    }
    whole = json.dumps({"rules": rules, "ray_job": job}, separators=(",", ":"))
    if len(whole) > _LARGEST_VARIABLE_BYTES:
        raise PrerequisiteError(
            "the training commands are too long to be passed through the environment",
            "start them one by one: rldbg run -- COMMAND",
        )
    return whole


def shell_functions(trainings: Sequence[Explained], request: Request, previous: str) -> str:
    """What bash reads before each script: what puts PYTHONPATH back, and what takes the place of commands left out."""
    lines = []
    lost = [explained for explained in trainings if explained.reach is not None and explained.reach.options == SHELL]
    path = f"{quote(STARTUP)}${{PYTHONPATH:+:$PYTHONPATH}}"
    if lost:
        # Before each command; in braces, so that a script's `set -x` does not show it.
        keep = f"[[ :$PYTHONPATH: == *:{quote(STARTUP)}:* ]] || export PYTHONPATH={path}"
        lines += ["set -T", f"trap '{{ {keep}; }} 2>/dev/null' DEBUG"]
    for program in sorted({explained.command.call.argv[0] for explained in lost if _sets_path_in_front(explained)}):
        lines.append(f'function {program} {{ PYTHONPATH={path} command {quote(program)} "$@"; }}')
    if request.skip_kills:
        for program in ("pkill", "killall"):
            for name in (program, *(f"{folder}/{program}" for folder in ("/bin", "/usr/bin", "/usr/local/bin"))):
                lines.append(f'function {name} {{ echo "rldbg: skipped: {program} $*" >&2; }}')
        lines.append(
            'ray() { if [[ $1 == stop ]]; then echo "rldbg: skipped: ray $*" >&2; else command ray "$@"; fi; }'
        )
    if not lines:
        return ""
    if previous:
        lines.insert(0, f". {quote(previous)}")
    return "\n".join(["# Written by rldbg run for this run alone.", *lines, ""])


def _sets_path_in_front(explained: Explained) -> bool:
    """`PYTHONPATH=x python ...`: set for this one command, where nothing that runs before it can help."""
    call = explained.command.call
    text = next((line.text for line in logical_lines(read_text(call.file)) if line.number == call.line), "")
    return bool(re.match(r"(?:\w+=\S*\s+)*PYTHONPATH=\S+\s+\S", text))


def _script_arguments(trainings: Sequence[Explained]) -> list[str]:
    """Changes that go in by the script's own arguments, where nothing else reaches."""
    words = []
    for explained in trainings:
        if explained.reach is not None and explained.reach.options == ARGUMENTS:
            words += as_words(explained.command, explained.edits)
    return words
