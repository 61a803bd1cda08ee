"""Ray's token: on for some commands of a script and off for others unless one mode is set for all of them.

A local `ray.init()` leaves a token behind; from then on `ray start` demands it, while `ray job submit` and drivers that
join a cluster send it only in token mode: the job is refused with 401.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rldbg.launch.recognition import Command

VARIABLE = "RAY_AUTH_MODE"
_PROBE_S = 2.0


def auth_mode(commands: Sequence[Command], environment: Mapping[str, str]) -> tuple[str, str]:
    """The mode to set for the whole run and why; empty when nothing needs to be set."""
    if environment.get(VARIABLE):
        return "", ""
    starts = any(_words(command)[:2] == ["ray", "start"] and "--head" in _words(command) for command in commands)
    if starts:
        if _has_token(environment):
            return "token", "this machine has a Ray token: `ray start` demands it, so every other command must send it"
        return "", ""
    address = _dashboard(commands, environment)
    mode = _ask(address) if address else ""
    if mode == "token":
        return mode, f"the cluster at {address} demands its token"
    if mode == "disabled" and _has_token(environment):
        return mode, f"the cluster at {address} knows no token"
    return "", ""


def _words(command: Command) -> list[str]:
    first, *rest = command.call.argv
    return [first.rsplit("/", 1)[-1], *rest]


def _has_token(environment: Mapping[str, str]) -> bool:
    if environment.get("RAY_AUTH_TOKEN") or environment.get("RAY_AUTH_TOKEN_PATH"):
        return True
    home = environment.get("HOME", "")
    return bool(home) and (Path(home) / ".ray" / "auth_token").is_file()


def _dashboard(commands: Sequence[Command], environment: Mapping[str, str]) -> str:
    """Where the cluster that is joined has its dashboard, when the script says so."""
    for command in commands:
        words = _words(command)
        if words[:3] == ["ray", "job", "submit"]:
            for at, word in enumerate(words):
                if word.startswith("--address"):
                    return word.partition("=")[2] or words[at + 1]
            return environment.get("RAY_ADDRESS", "") or "http://127.0.0.1:8265"
    address = environment.get("RAY_ADDRESS", "")
    if not address:
        return ""
    return address if address.startswith("http") else f"http://{address.rpartition(':')[0] or '127.0.0.1'}:8265"


def _ask(address: str) -> str:
    """The cluster's own answer, which needs no token; empty when it does not give one."""
    if not address.startswith(("http://", "https://")):
        return ""
    # Only a script that talks to a running cluster needs these, and they are slow to load.
    import urllib.request
    from urllib.error import URLError

    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/api/authentication_mode", timeout=_PROBE_S) as answer:
            mode = json.load(answer).get("authentication_mode")
    except (URLError, OSError, ValueError, AttributeError):
        return ""
    return str(mode) if mode in ("token", "disabled") else ""
