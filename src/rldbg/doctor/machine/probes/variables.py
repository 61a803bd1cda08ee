"""Environment variables with wrong names, values that switch things off, and pairs that contradict each other."""

import re
import sys
from difflib import get_close_matches

from rldbg.doctor.machine.probes.machine import Machine, ProbeOutcome, check

_KNOWN = (
    "RAY_DEBUG",
    "RAY_DEBUG_POST_MORTEM",
    "RAY_ADDRESS",
    "RAY_DEDUP_LOGS",
    "RAY_TMPDIR",
    "RAY_memory_usage_threshold",
    "RAY_memory_monitor_refresh_ms",
    "RAY_CGRAPH_get_timeout",
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_CUMEM_ENABLE",
    "GLOO_SOCKET_IFNAME",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "VLLM_WORKER_MULTIPROC_METHOD",
    "VLLM_LOGGING_LEVEL",
)
_MISSPELT = {
    "RAY_DEBUG_POSTMORTEM": "RAY_DEBUG_POST_MORTEM",
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
}


@check("variables of Ray's debugger")
def debugger_variables(machine: Machine) -> ProbeOutcome:
    values = machine.variables
    if "RAY_DEBUG_POSTMORTEM" in values:
        fix = "export RAY_DEBUG_POST_MORTEM=1 in the workers' runtime_env"
        return "fail", "RAY_DEBUG_POSTMORTEM has no effect", fix
    mode = values.get("RAY_DEBUG")
    if mode not in (None, "1", "legacy"):
        return "fail", f"RAY_DEBUG={mode} disables breakpoints without a message", "unset RAY_DEBUG, or RAY_DEBUG=1"
    if values.get("RAY_DEBUG_POST_MORTEM") == "1":
        if mode == "legacy":
            fix = "unset RAY_DEBUG for the debugpy debugger"
            return "warn", "RAY_DEBUG=legacy selects the old post-mortem", fix
        if sys.version_info >= (3, 12) and values.get("PYDEVD_USE_SYS_MONITORING") != "0":
            fix = "PYDEVD_USE_SYS_MONITORING=0 in the workers, or rldbg run"
            return "warn", "on Python 3.12 and later Ray's post-mortem stops in the wrong frame", fix
    return "pass", "breakpoints work"


@check("names of variables")
def misspelt_variables(machine: Machine) -> ProbeOutcome:
    wrong = {
        name: _MISSPELT[name]
        for name in machine.variables
        if name in _MISSPELT and _MISSPELT[name] not in machine.variables
    }
    for name in machine.variables:
        if (
            name in _KNOWN
            or name in _MISSPELT
            or not re.match(r"RAY_DEBUG|NCCL_|GLOO_|TORCH_NCCL_|TORCH_FR_|PYTORCH_CUDA_A", name)
        ):
            continue
        near = get_close_matches(name, _KNOWN, n=1, cutoff=0.93)
        if near:
            wrong[name] = near[0]
    if not wrong:
        return "pass", "no misspelt names found"
    name, right = next(iter(wrong.items()))
    return "warn", f"{name} should be {right}", f"export {right}={machine.variables[name]}; unset {name}"


@check("variables of the CUDA allocator")
def allocator_variables(machine: Machine) -> ProbeOutcome:
    old, new = (machine.variables.get(name, "") for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"))
    if old and new and old != new:
        fix = "set both to the same value, or only one"
        return "warn", "PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF differ", fix
    if "expandable_segments:True" in old + new:
        fix = "remove it for engines that share the GPU with the trainer (sleep mode, CUDA IPC)"
        return "warn", "expandable_segments:True is set", fix
    return "pass", old or new or "not set"


@check("variables that select GPUs")
def visible_devices(machine: Machine) -> ProbeOutcome:
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    found = [name for name in names if machine.variables.get(name)]
    if "ROCR_VISIBLE_DEVICES" in found and len(found) > 1:
        fix = "unset ROCR_VISIBLE_DEVICES"
        return "fail", f"{' and '.join(found)} mask the same GPUs twice", fix
    if machine.variables.get("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES") == "1":
        fix = "unset it unless the framework selects devices itself"
        return "warn", "Ray does not select GPUs for its workers (NOSET)", fix
    return "pass", ", ".join(found) or "none is set"


@check("variables of NCCL")
def nccl_variables(machine: Machine) -> ProbeOutcome:
    values = machine.variables
    slow = [name for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE") if values.get(name) == "1"]
    if slow:
        return "warn", f"{', '.join(slow)} set", f"unset {' '.join(slow)} unless intended: transfers become slower"
    return "pass", "nothing is disabled"


@check("flight recorder of torch")
def flight_recorder(machine: Machine) -> ProbeOutcome:
    values = machine.variables
    size = values.get("TORCH_FR_BUFFER_SIZE") or values.get("TORCH_NCCL_TRACE_BUFFER_SIZE")
    if size and size != "0" and values.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "1") != "0":
        return "pass", f"records {size} collectives"
    return "pass", "off; TORCH_FR_BUFFER_SIZE=2000 identifies the rank at fault in the next timeout"
