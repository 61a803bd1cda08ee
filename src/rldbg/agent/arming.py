"""The environment of an armed run: the one place that knows which variables make a process load the agent.

`armed_environment` is for the command that is started, `armed_runtime_env` and `merged_runtime_env` carry the same to
Ray workers, and `disarmed` takes it away again from processes of ours. PYTHONPATH gets one entry in front: a folder
that holds only the start-up hook.
"""

import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .collectives import PATIENCE_S

STARTUP = str(Path(__file__).parent / "startup")
"""The folder that arming puts on PYTHONPATH."""
HAND_DOWN = "RLDBG_HAND_DOWN"
"""Names of further variables, comma separated, that Ray workers get from the driver."""
_RAY_HOOK = "rldbg_startup.runtime_env_hook"
# Ray shows runtime environments in its dashboard and logs: paths and switches only, never the token.
_HANDED_DOWN = (
    "RLDBG_RUN",
    "RLDBG_POST_MORTEM",
    "RLDBG_RAY_BREAKPOINTS",
    "RLDBG_REDACT",
    "RLDBG_COLLECTIVE_TIMEOUT_S",
    "RLDBG_DEBUGPY",
    "RLDBG_PASS_EXCEPTIONS",
    "RLDBG_BROKER_WAIT_S",
    "RLDBG_PROFILING_PLAN",
    "RLDBG_RECORD_HOOKS",
    "RLDBG_LAPTOP_SERVER",
)


@dataclass(frozen=True)
class Arming:
    """Options of an armed run for its processes."""

    post_mortem_wait_s: float = 0.0
    ray_breakpoints: bool = False
    redact: bool = True
    collective_timeout_s: float = PATIENCE_S
    pass_exceptions: tuple[str, ...] = ()


def armed_environment(
    run: Path, arming: Arming | None = None, *, base: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The variables that make every Python process below it load the agent of this run; merge them over `base`.

    Ray's runtime-env hook carries the same into workers of a cluster that runs already; a hook of the user's is called
    first.
    """
    arming = arming or Arming()
    armed = {
        "PYTHONPATH": with_startup(base.get("PYTHONPATH", "")),
        "RLDBG_RUN": str(run.resolve()),
        "RLDBG_REDACT": "1" if arming.redact else "0",
        "RLDBG_DEBUGPY": _own_debugpy(),
        "RAY_RUNTIME_ENV_HOOK": _RAY_HOOK,
    }
    previous = base.get("RAY_RUNTIME_ENV_HOOK", "")
    if previous and previous != _RAY_HOOK:
        armed["RLDBG_NEXT_RAY_HOOK"] = previous
    if arming.post_mortem_wait_s:
        armed["RLDBG_POST_MORTEM"] = f"{arming.post_mortem_wait_s:g}"
    if arming.pass_exceptions:
        armed["RLDBG_PASS_EXCEPTIONS"] = ",".join(arming.pass_exceptions)
    if arming.ray_breakpoints:
        armed["RLDBG_RAY_BREAKPOINTS"] = "1"
    if arming.collective_timeout_s:
        armed["RLDBG_COLLECTIVE_TIMEOUT_S"] = f"{arming.collective_timeout_s:g}"
        armed["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = f"{arming.collective_timeout_s:.0f}"
    return armed


def disarmed(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for rldbg's own processes, which are not debugged even if started from an armed run."""
    clean = {name: value for name, value in environment.items() if name not in ("RLDBG_RUN", "PYTHONPATH")}
    others = _other_entries(environment.get("PYTHONPATH", ""))
    return clean | ({"PYTHONPATH": os.pathsep.join(others)} if others else {})


def with_startup(path: str) -> str:
    """PYTHONPATH with the start-up folder in front; what was there stays."""
    return os.pathsep.join([STARTUP, *_other_entries(path)])


def _other_entries(path: str) -> list[str]:
    """An empty entry stays: Python reads it as the working directory."""
    return [entry for entry in path.split(os.pathsep) if entry != STARTUP] if path else []


def armed_runtime_env(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """A Ray runtime environment whose workers load the agent too; what the user put there stays and wins."""
    names = (*_HANDED_DOWN, *os.environ.get(HAND_DOWN, "").split(","))
    variables = {name: os.environ[name] for name in names if name in os.environ}
    return merged_runtime_env(_after_the_users_hook(runtime_env) or {}, variables)


def merged_runtime_env(runtime_env: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """A Ray runtime environment with our variables added to the user's; on PYTHONPATH ours goes first."""
    own = dict(variables) | dict(runtime_env.get("env_vars") or {})
    # Ray replaces the reference by what the worker's node has.
    own["PYTHONPATH"] = with_startup(own.get("PYTHONPATH", "${PYTHONPATH}"))
    return dict(runtime_env) | {"env_vars": own}


def _after_the_users_hook(runtime_env: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the user's own RAY_RUNTIME_ENV_HOOK makes of it, when there was one before the run was armed."""
    module, _, name = os.environ.get("RLDBG_NEXT_RAY_HOOK", "").rpartition(".")
    if not module:
        return runtime_env
    answer: dict[str, Any] | None = getattr(importlib.import_module(module), name)(runtime_env)
    return answer


def _own_debugpy() -> str:
    spec = importlib.util.find_spec("debugpy")
    return str(Path(spec.origin).parent) if spec is not None and spec.origin else ""
