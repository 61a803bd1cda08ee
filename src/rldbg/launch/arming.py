"""The environment of an armed run: what carries the agent, the changed options and Ray's switches to every process."""

import os
from pathlib import Path

from rldbg.agent.arguments import STARTUP
from rldbg.launch.changes import Change
from rldbg.launch.reach import NONE, Reach
from rldbg.launch.recognition import Command
from rldbg.launch.request import Request


def dry_environment(request: Request, run_folder: Path) -> dict[str, str]:
    """The environment in which a script is run dry: the armed one, as far as a script can see or break it."""
    environment = dict(request.environment) | ray_variables(request) | request.added_environment
    environment["RLDBG_RUN"] = str(run_folder)
    environment["PYTHONPATH"] = with_startup(environment.get("PYTHONPATH", ""))
    return environment


def with_startup(path: str) -> str:
    """PYTHONPATH with the start-up folder in front; what was there stays."""
    others = [folder for folder in path.split(os.pathsep) if folder and folder != STARTUP]
    return os.pathsep.join([STARTUP, *others])


def ray_variables(request: Request) -> dict[str, str]:
    """Ray's own switches that the request asks for."""
    variables = {}
    if request.post_mortem:
        variables["RAY_DEBUG_POST_MORTEM"] = "1"
    if request.legacy:
        variables["RAY_DEBUG"] = "legacy"
    return variables


def environment_changes(command: Command, request: Request, reach: Reach) -> list[Change]:
    """The variables that a training command and its workers will find, beside the options."""
    reasons = {
        "RAY_DEBUG_POST_MORTEM": "an exception in a Ray worker can be looked at where it was raised",
        "RAY_DEBUG": "asked for with --legacy: Ray's old debugger, with driver breakpoints on the terminal",
    }
    method = f"environment; {reach.environment}; Ray's runtime-env hook for workers of a running cluster"
    if reach.environment == NONE:
        return []
    changes = [
        Change(name, value, method, reasons[name])
        for name, value in ray_variables(request).items()
        if command.call.environment.get(name) in (None, value)
    ]
    for name, value in command.profile.environment:
        if name not in request.environment:
            changes.append(Change(name, value, method, "a stopped rank must not make the others give up"))
    own = dict(request.set_environment)
    for name, value in request.added_environment.items():
        reason = "asked for with --env" if name in own else "noted by rldbg doctor --fix"
        changes.append(Change(name, value, method, reason))
    changes.append(Change("PYTHONPATH", STARTUP, method, "each Python process loads the agent as it starts"))
    return changes
