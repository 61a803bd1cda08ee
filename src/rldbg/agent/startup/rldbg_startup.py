"""Loads the agent by path in a process that may not have rldbg installed.

This directory is on PYTHONPATH of an armed run. It holds `sitecustomize` and this module, and no other name that could
hide one of the user's.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

_PACKAGE = "rldbg_agent"
# Third-party helper processes that run Python but none of the user's code: no agent is needed there.
NOT_THE_USERS = (
    "/ray/dashboard/",
    "/ray/_private/log_monitor.py",
    "/ray/_private/runtime_env/agent/",
    "/ray/_private/workers/setup_worker.py",
    "/ray/autoscaler/",
    "/debugpy/adapter",
    "multiprocessing.resource_tracker",
    "multiprocessing.semaphore_tracker",
)
# A file or folder of the package itself, for each that is named by its path.
_MARKS = ("_raylet.so", "_raylet.pyd", "_raylet.pyx", "_vendored")
_NOT_THE_USERS_PROGRAMS = frozenset({"rldbg", "ray", "pip", "pip3", "uv", "py-spy"})


def begin() -> None:
    """Starts the agent when this process is part of a run and runs the user's code."""
    if os.environ.get("RLDBG_ARM_ARGUMENTS"):
        load_agent()
        importlib.import_module(f"{_PACKAGE}.arguments").arm_this_process()
    if not os.environ.get("RLDBG_RUN") or _is_a_helper(sys.orig_argv):
        if any(_leads_into(word, "/ray/dashboard/") for word in sys.orig_argv[1:4]):
            # The processes that it starts are Ray's own, and do not look like it.
            os.environ.pop("RLDBG_RUN", None)
        return
    agent = load_agent()
    if os.environ.get("RLDBG_RECORD_HOOKS"):
        importlib.import_module(f"{_PACKAGE}.recording").begin()
    elif os.environ.get("RLDBG_LAPTOP_SERVER"):
        importlib.import_module(f"{_PACKAGE}.recording").offer_rldbg()
    if not os.environ.get("RLDBG_PROFILING"):
        agent.start()
        return
    profiling = importlib.import_module(f"{_PACKAGE}.profiling")
    # First, and before there are threads: under nsys this process starts itself again.
    profiling.begin()
    profiling.join(agent.start())


def runtime_env_hook(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """Ray calls this by name (RAY_RUNTIME_ENV_HOOK) in the driver, before it starts any worker."""
    load_agent()
    hook = importlib.import_module(f"{_PACKAGE}.arming")
    armed: dict[str, Any] = hook.armed_runtime_env(runtime_env)
    return armed


def load_agent() -> Any:
    """The agent package under a name of its own, so that it never meets an installed rldbg of another version."""
    if _PACKAGE in sys.modules:
        return sys.modules[_PACKAGE]
    folder = Path(__file__).parent.parent
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = module
    spec.loader.exec_module(module)
    return module


def _is_a_helper(argv: list[str]) -> bool:
    words = argv[1:4]
    names = {Path(word).name for word in words[:1]}
    if len(words) > 1 and words[0] == "-m":
        names = {words[1]}
    if names == {"rldbg"} and "train" in words:
        return False
    is_theirs = any(_leads_into(word, part) for word in words for part in NOT_THE_USERS)
    return is_theirs or bool(names & _NOT_THE_USERS_PROGRAMS)


def _leads_into(word: str, part: str) -> bool:
    """Whether a path leads into that package: the user's own folders may be called `ray` or `debugpy` too."""
    before, found, _ = word.partition(part)
    package = part.split("/")[1] if part.startswith("/") else ""
    return bool(found) and (not package or any(Path(before, package, mark).exists() for mark in _MARKS))
