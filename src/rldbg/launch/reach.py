"""How arming reaches a command's options and environment, judged by the dry run.

The dry run starts the script in the very environment that the real run will have. So a command whose noted
environment still holds our start-up folder will load the start-up hook; one that has lost it will not.
"""

import os
from dataclasses import dataclass, field

from rldbg.launch.command_line import understand
from rldbg.launch.known_launchers import Peeled
from rldbg.launch.recognition import Command

HOOK = "start-up hook on PYTHONPATH"
SHELL = "start-up hook; bash restores the PYTHONPATH that the script replaces"
ARGUMENTS = "arguments of the script, which it appends to the command"
RAY_JOB = "runtime environment of `ray job submit`"
NONE = "none"
SENTINEL = "RLDBG_RUN"
"""A variable of every armed run that no script has a reason to touch."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The method for options, the method for variables, and obstacles."""

    options: str
    environment: str
    reasons: tuple[str, ...] = field(default=())


def reach_of(command: Command, startup: str, *, lands_last: bool = False) -> Reach:
    """`startup` is the folder that arming puts on PYTHONPATH; `lands_last` is the dry run's proof for `$@`."""
    launchers = [
        *command.program.launchers,
        *(peeled for call in command.via for peeled in understand(call.argv).launchers),
    ]
    barriers = [reason for launcher in launchers if (reason := _barrier(launcher))]
    if command.call.environment and SENTINEL not in command.call.environment:
        barriers.append("its environment is cleared before it starts")
    if barriers:
        return Reach(NONE, NONE, tuple(barriers))
    if command.program.kind == "none":
        return Reach(NONE, HOOK, ("what it starts is not on the command line",))
    kept = startup in command.call.environment.get("PYTHONPATH", "").split(os.pathsep) or not command.call.environment
    flag = command.program.ignores_start_up
    if flag:
        options = ARGUMENTS if lands_last else NONE
        reason = f"the interpreter is started with {flag}, which ignores PYTHONPATH: the agent is not loaded"
        return Reach(options, "environment of the process", (reason,))
    if any(peeled.launcher.place == "cluster" for peeled in launchers):
        return Reach(RAY_JOB, RAY_JOB) if kept else Reach(SHELL, SHELL)
    if not kept and not command.via:
        return Reach(SHELL, SHELL)
    if not kept:
        return Reach(NONE, NONE, ("the script replaces PYTHONPATH before it starts",))
    return Reach(HOOK, HOOK)


def _barrier(peeled: Peeled) -> str:
    """Why a launcher does not pass our variables on; empty if it does."""
    place, head = peeled.launcher.place, peeled.head
    name = peeled.launcher.name
    if place == "host":
        return f"`{name}` starts it on another host, without this environment"
    if place == "session":
        return f"`{name}` starts it in a server that may already run: use `rldbg run` inside the session"
    if name.startswith(("docker", "podman", "nerdctl", "kubectl")):
        return f"`{name}` starts it in a container without this environment: pass it in (-e, -v), or run rldbg inside"
    if name.startswith(("apptainer", "singularity")):
        closed = {"-e", "--cleanenv", "-C", "--containall", "-c", "--contain"}.intersection(head)
        return f"`{name} {min(closed)}` does not pass this environment into the container" if closed else ""
    if place in ("allocation", "batch"):
        exported = next((word.partition("=")[2] for word in head if word.startswith("--export=")), "ALL")
        if "ALL" not in exported.split(","):
            return f"`{name} --export={exported}` does not pass this environment to the job: add ALL"
    if name == "sudo" and not {"-E", "--preserve-env"}.intersection(head):
        return "`sudo` without -E drops this environment"
    return ""
