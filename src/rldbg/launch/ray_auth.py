"""Ray's token: on for some commands of a script and off for others unless one mode is set for all of them.

A local `ray.init()` leaves a token behind; from then on `ray start` demands it, while `ray job submit` and drivers that
join a cluster send it only in token mode: the job is refused with 401.
"""

from collections.abc import Mapping, Sequence

from rldbg.core import (
    Environment,
    PrerequisiteError,
    UnreachableError,
    dashboard_auth_mode,
    demands_token,
    ray_token,
)
from rldbg.launch.recognition import Command

VARIABLE = "RAY_AUTH_MODE"
_ANSWER_S = 5.0


def auth_mode(commands: Sequence[Command], environment: Mapping[str, str]) -> tuple[str, str]:
    """The mode to set for the whole run and why; empty when nothing needs to be set."""
    if environment.get(VARIABLE):
        return "", ""
    starts = any(_words(command)[:2] == ["ray", "start"] and "--head" in _words(command) for command in commands)
    if starts:
        if ray_token(Environment(environment)):
            return "token", "this machine has a Ray token: `ray start` requires it, so every other command must send it"
        return "", ""
    address = _address(commands, environment)
    mode = _ask(address)
    if mode == "token":
        return mode, f"the cluster at {address} requires its token"
    if mode == "disabled" and ray_token(Environment(environment)):
        return mode, f"the cluster at {address} does not use tokens"
    return "", ""


def _words(command: Command) -> list[str]:
    first, *rest = command.call.argv
    return [first.rsplit("/", 1)[-1], *rest]


def _address(commands: Sequence[Command], environment: Mapping[str, str]) -> str:
    """The cluster that is joined, by its dashboard or its own address, when the script says so."""
    for command in commands:
        words = _words(command)
        if words[:3] == ["ray", "job", "submit"]:
            for at, word in enumerate(words):
                if word.startswith("--address"):
                    return word.partition("=")[2] or words[at + 1]
            return environment.get("RAY_ADDRESS", "") or "http://127.0.0.1:8265"
    return environment.get("RAY_ADDRESS", "")


def _ask(address: str) -> str:
    """The cluster's own answer, which needs no token; empty when it does not give one."""
    if address.startswith(("http://", "https://")):
        return dashboard_auth_mode(address)
    if address in ("", "auto", "local"):
        return ""
    try:
        return "token" if demands_token(address, timeout_s=_ANSWER_S) else "disabled"
    except (PrerequisiteError, UnreachableError):
        return ""
