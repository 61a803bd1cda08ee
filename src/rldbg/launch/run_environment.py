"""The environment of an armed run: the agent's own (`rldbg.agent.arming`), Ray's, the framework's and the user's.

The dry run sees it as far as a script can see or break it; the explanation names what is in it; the run gets all of it.
"""

from collections.abc import Sequence
from pathlib import Path

from rldbg.agent import HAND_DOWN, STARTUP, Arming, armed_environment
from rldbg.frameworks import RecordPlan, plan_for
from rldbg.launch.changes import LaunchChange
from rldbg.launch.reach import NONE, Reach
from rldbg.launch.recognition import Command
from rldbg.launch.request import Request
from rldbg.tripwire import WATCHED_KINDS


def dry_environment(request: Request, run_folder: Path) -> dict[str, str]:
    """The environment in which a script is run dry."""
    base = dict(request.environment) | ray_variables(request) | request.added_environment
    armed = armed_environment(run_folder, base=base)
    return base | {name: armed[name] for name in ("RLDBG_RUN", "PYTHONPATH")}


def run_environment(request: Request, run_folder: Path, arming: Arming, added: dict[str, str]) -> dict[str, str]:
    """The environment in which the command is started; workers of a running Ray cluster get `added` too."""
    base = dict(request.environment) | request.added_environment
    hooks = {"RLDBG_RECORD_HOOKS": _record_plan(request, run_folder).to_text()} if request.record else {}
    armed = armed_environment(run_folder, arming, base=base)
    return base | armed | hooks | added | {HAND_DOWN: ",".join(sorted(added))}


def _record_plan(request: Request, run_folder: Path) -> RecordPlan:
    if request.watch is None:
        return plan_for(run_folder, request.record_kinds)
    return plan_for(run_folder, request.record_kinds or WATCHED_KINDS, request.watch.keep)


def added_variables(commands: Sequence[Command], request: Request) -> dict[str, str]:
    """What is added beside the agent's own; a framework variable that the user has set is not changed."""
    pairs = [pair for command in commands for pair in command.profile.environment]
    if request.laptop:
        pairs += [pair for command in commands for pair in command.profile.laptop_environment]
    framework = {name: value for name, value in pairs if name not in request.environment}
    return ray_variables(request) | framework | request.added_environment


def ray_variables(request: Request) -> dict[str, str]:
    """Ray's own switches that the request asks for."""
    variables = {}
    if request.post_mortem:
        variables["RAY_DEBUG_POST_MORTEM"] = "1"
    if request.legacy:
        variables["RAY_DEBUG"] = "legacy"
    return variables


def environment_changes(command: Command, request: Request, reach: Reach) -> list[LaunchChange]:
    """The variables that a training command and its workers will find, beside the options."""
    reasons = {
        "RAY_DEBUG_POST_MORTEM": "an exception in a Ray worker can be inspected where it was raised",
        "RAY_DEBUG": "set by --legacy: Ray's old debugger, with driver breakpoints on the terminal",
    }
    method = f"environment; {reach.environment}; Ray's runtime-env hook for workers of a running cluster"
    if reach.environment == NONE:
        return []
    changes = [
        LaunchChange(name, value, method, reasons[name])
        for name, value in ray_variables(request).items()
        if command.call.environment.get(name) in (None, value)
    ]
    for name, value in command.profile.environment:
        if name not in request.environment:
            changes.append(LaunchChange(name, value, method, "the other ranks must not time out while one is stopped"))
    if request.laptop:
        for name, value in command.profile.laptop_environment:
            changes.append(LaunchChange(name, value, method, "this machine has no accelerator"))
    own = dict(request.set_environment)
    for name, value in request.added_environment.items():
        reason = "set by --env" if name in own else "set by rldbg doctor --fix"
        changes.append(LaunchChange(name, value, method, reason))
    if request.record:
        reason = "calls of the framework's own functions are recorded where they happen"
        changes.append(LaunchChange("RLDBG_RECORD_HOOKS", "modules with hooks", method, reason))
    changes.append(LaunchChange("PYTHONPATH", STARTUP, method, "each Python process loads the agent as it starts"))
    return changes
