"""What an armed process hands down to the Ray workers it asks for."""

import importlib
import os
from pathlib import Path
from typing import Any

STARTUP = str(Path(__file__).parent / "startup")
# Ray shows runtime environments in its dashboard and logs: paths and switches only, never the token.
HANDED_DOWN = (
    "RLDBG_RUN",
    "RLDBG_POST_MORTEM",
    "RLDBG_RAY_BREAKPOINTS",
    "RLDBG_REDACT",
    "RLDBG_COLLECTIVE_TIMEOUT_S",
    "RLDBG_DEBUGPY",
    "RLDBG_PROFILING_PLAN",
)


def armed_runtime_env(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """A Ray runtime environment whose workers load the agent too; what the user put there stays and wins."""
    runtime_env = dict(_next_hook(runtime_env) or {})
    variables = dict(runtime_env.get("env_vars") or {})
    for name in (*HANDED_DOWN, *os.environ.get("RLDBG_HAND_DOWN", "").split(",")):
        if name in os.environ:
            variables.setdefault(name, os.environ[name])
    path = variables.get("PYTHONPATH", "${PYTHONPATH}")
    if STARTUP not in path.split(os.pathsep):
        variables["PYTHONPATH"] = f"{STARTUP}{os.pathsep}{path}"
    runtime_env["env_vars"] = variables
    return runtime_env


def _next_hook(runtime_env: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the user's own RAY_RUNTIME_ENV_HOOK makes of it, when there was one before the run was armed."""
    module, _, name = os.environ.get("RLDBG_NEXT_RAY_HOOK", "").rpartition(".")
    if not module:
        return runtime_env
    answer: dict[str, Any] | None = getattr(importlib.import_module(module), name)(runtime_env)
    return answer
