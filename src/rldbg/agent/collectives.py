"""What torch.distributed is doing in this process, and how to raise its timeouts while a rank is stopped."""

import os
import re
import sys
import time
from datetime import timedelta
from types import FrameType, ModuleType
from typing import Any

from .stacks import chain

PATIENCE_S = 24 * 3600.0
_FILES = ("torch/distributed/distributed_c10d.py", "torch/distributed/nn/functional.py")
_NAMES = re.compile(
    r"(all_reduce|all_gather|reduce|reduce_scatter|broadcast|barrier|monitored_barrier|all_to_all|gather|scatter|send|recv"
    r"|isend|irecv|batch_isend_irecv)(_single|_tensor|_into_tensor|_object|_object_list|_coalesced)?"
)


def raise_timeouts() -> dict[str, Any]:
    """Raises the timeout of every process group here. It counts for collectives entered from now on; one that this
    rank already waits in keeps the old timeout, and is reported."""
    c10d = _initialised()
    if c10d is None:
        return {"groups": 0, "waiting_in": "", "watchdogs": watchdogs()}
    groups = list(getattr(getattr(c10d, "_world", None), "pg_map", {}))
    failed = []
    for group in groups:
        try:
            c10d._set_pg_timeout(timedelta(seconds=PATIENCE_S), group)
        except (RuntimeError, ValueError, AttributeError, NotImplementedError) as error:
            failed.append(f"{type(error).__name__}: {error}")
    calls = [call for call in map(collective_of, sys._current_frames().values()) if call is not None]
    waiting = calls[0]["op"] if calls else ""
    return {"groups": len(groups), "failed": failed, "waiting_in": waiting, "watchdogs": watchdogs()}


def collective_of(frame: FrameType) -> dict[str, Any] | None:
    """The collective a thread is in: its name, its group, the shape of its tensor, the peer of a send or receive."""
    for each in reversed(chain(frame)):
        if each.f_code.co_filename.endswith(_FILES) and _NAMES.fullmatch(each.f_code.co_name):
            return {"op": each.f_code.co_name} | _call_facts(each)
    return None


def _call_facts(frame: FrameType) -> dict[str, Any]:
    values = frame.f_locals
    tensor = values.get("tensor", values.get("input_tensor", values.get("input")))
    shape = getattr(tensor, "shape", None)
    facts: dict[str, Any] = {"group": _group_name(values.get("group"))}
    if shape is not None:
        facts["shape"] = "x".join(map(str, shape))
    peer = values.get("dst", values.get("src"))
    # Of other collectives it is the one that sends to all or receives from all.
    name = "peer" if frame.f_code.co_name in ("send", "recv", "isend", "irecv") else "root"
    facts[name] = peer if type(peer) is int else None
    return facts


def _group_name(group: Any) -> str:
    c10d = _initialised()
    if c10d is None:
        return ""
    if group is None:
        group = c10d._get_default_group()
    return str(c10d._world.pg_names.get(group, ""))


def watchdogs() -> list[str]:
    """Active timers in this process that raising process-group timeouts does not affect."""
    found = []
    if "torch" in sys.modules and os.environ.get("TORCH_NCCL_ENABLE_MONITORING", "1") != "0" and _uses_nccl():
        limit = os.environ.get("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "480")
        found.append(f"NCCL heartbeat monitor ({limit} s, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC)")
    if "sglang.srt.server_args" in sys.modules:
        found.append("SGLang watchdog (300 s unless set by --watchdog-timeout)")
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    if end.isdigit():
        found.append(f"SLURM ends this job in {max(int(end) - int(time.time()), 0)} s")
    return found


def groups() -> list[dict[str, Any]]:
    """Each process group of this rank: name, backend, ranks and how many collectives it has begun."""
    c10d = _initialised()
    if c10d is None:
        return []
    world = c10d._world
    found = []
    for group, (backend, _) in list(world.pg_map.items()):
        found.append(
            {
                "name": str(world.pg_names.get(group, "")),
                "backend": str(backend),
                "ranks": list(c10d.get_process_group_ranks(group)),
                "sequence": _sequence(group),
            }
        )
    return found


def flight_record() -> bytes | None:
    """torch's flight recorder as pickled bytes, as a dump file would hold it; None when there is none."""
    binding = sys.modules.get("torch._C._distributed_c10d")
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        dump = getattr(binding, name, None)
        if dump is not None:
            # Symbolising the recorder's stack traces takes seconds, and the agent has better stacks.
            data = dump(includeCollectives=True, includeStackTraces=False)
            return data if isinstance(data, bytes) and data else None
    return None


def patient_groups(module: ModuleType, timeout_s: float) -> None:
    """Raises the timeout of process groups when they are created, so that no rank waits with the old timeout."""
    original = module._new_process_group_helper

    def create(*args: Any, **kwargs: Any) -> Any:
        patience = timedelta(seconds=timeout_s)
        timeout = kwargs.get("timeout")
        if timeout is not None and timeout < patience:
            kwargs["timeout"] = patience
        return original(*args, **kwargs)

    module._new_process_group_helper = create  # type: ignore[attr-defined]


def _initialised() -> Any:
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    return c10d if c10d is not None and getattr(c10d, "is_initialized", bool)() else None


def _uses_nccl() -> bool:
    return any("nccl" in group["backend"] for group in groups())


def _sequence(group: Any) -> int | None:
    try:
        return int(group._get_sequence_number_for_group())
    except (RuntimeError, AttributeError):
        return None
