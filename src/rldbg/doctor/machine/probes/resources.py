"""Memory, disks, /dev/shm, limits of processes and files, and what containers restrict."""

import os
import resource
from pathlib import Path

from rldbg.doctor.machine.probes.machine import GIB, Machine, ProbeOutcome, Status, check, gib

_SHM_FIX = "docker run --shm-size=16g or --ipc=host; on Kubernetes an emptyDir with medium: Memory at /dev/shm"


@check("/dev/shm")
def shm_size(machine: Machine) -> ProbeOutcome:
    space = machine.space("/dev/shm")
    if space is None or not machine.path("/dev/shm").is_dir():
        return "fail", "/dev/shm does not exist", _SHM_FIX
    total, free = space
    reason = f"{gib(total)}, {gib(free)} free"
    if free < 1 << 26:
        return "fail", reason, _SHM_FIX, "delete what crashed runs left in /dev/shm"
    status: Status = "warn" if total < GIB else "pass"
    return status, reason, _SHM_FIX


@check("left-overs in /dev/shm")
def shm_leftovers(machine: Machine) -> ProbeOutcome:
    folder = machine.path("/dev/shm")
    names = (
        [path for path in folder.iterdir() if path.name.startswith(("nccl-", "torch_", "sem.mp-", "plasma"))]
        if folder.is_dir()
        else []
    )
    size = sum(path.stat().st_size for path in names if path.is_file())
    if size < GIB:
        return "pass", f"{len(names)} files, {gib(size)}"
    return "warn", f"{len(names)} files hold {gib(size)}", "with no job running: rm /dev/shm/nccl-* /dev/shm/torch_*"


@check("open files")
def files_limit(machine: Machine) -> ProbeOutcome:
    limit = machine.limit(resource.RLIMIT_NOFILE)
    if limit is None or limit >= 65535:
        return "pass", f"ulimit -n is {limit or 'unlimited'}"
    status: Status = "fail" if limit < 4096 else "warn"
    return status, f"ulimit -n is {limit}", "ulimit -n 65535 before ray start"


@check("processes and threads")
def processes_limit(machine: Machine) -> ProbeOutcome:
    limit = machine.limit(resource.RLIMIT_NPROC)
    if limit is None or limit >= 8192:
        return "pass", f"ulimit -u is {limit or 'unlimited'}"
    return "warn", f"ulimit -u is {limit}", "ulimit -u unlimited before ray start; export OMP_NUM_THREADS=1"


@check("container's limit of processes")
def pids_limit(machine: Machine) -> ProbeOutcome:
    limit, current = machine.number("/sys/fs/cgroup/pids.max"), machine.number("/sys/fs/cgroup/pids.current") or 0
    if limit is None:
        return "pass", "none"
    reason = f"{current} of {limit}"
    status: Status = "fail" if current > 0.9 * limit else "warn" if limit < 4096 else "pass"
    return status, reason, "docker run --pids-limit=-1"


@check("locked memory")
def memlock_limit(machine: Machine) -> ProbeOutcome:
    limit = machine.limit(resource.RLIMIT_MEMLOCK)
    if limit is None:
        return "pass", "unlimited"
    if not machine.path("/sys/class/infiniband").is_dir():
        return "pass", f"{gib(limit)}, and no InfiniBand here"
    return "warn", f"ulimit -l is {gib(limit)}", "docker run --ulimit memlock=-1 --cap-add=IPC_LOCK: RDMA needs it"


@check("memory")
def memory(machine: Machine) -> ProbeOutcome:
    facts = dict(line.split(":", 1) for line in (machine.text("/proc/meminfo") or "").splitlines() if ":" in line)
    if "MemTotal" not in facts or "MemAvailable" not in facts:
        return "skip", "/proc/meminfo cannot be read"
    total, free = (int(facts[key].split()[0]) << 10 for key in ("MemTotal", "MemAvailable"))
    used = 1 - free / total
    reason = f"{gib(free)} of {gib(total)} free"
    fix = "ps -eo rss,pid,args --sort=-rss | head shows what uses it; Ray kills workers above 95 %"
    return "fail" if used > 0.95 else "warn" if used > 0.9 else "pass", reason, fix


@check("container's limit of memory")
def cgroup_memory(machine: Machine) -> ProbeOutcome:
    limit = machine.number("/sys/fs/cgroup/memory.max") or machine.number("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    current = machine.number("/sys/fs/cgroup/memory.current") or 0
    events = dict(line.split() for line in (machine.text("/sys/fs/cgroup/memory.events") or "").splitlines())
    kills = int(events.get("oom_kill", "0"))
    fix = "raise the container's or the SLURM job's memory (docker --memory, #SBATCH --mem=0)"
    if kills:
        return "fail", f"{kills} processes of this container were killed because memory ran out", fix
    if limit is None or limit > 1 << 60:
        return "pass", "none"
    status: Status = "warn" if current > 0.9 * limit else "pass"
    return status, f"{gib(current)} of {gib(limit)} used", fix


def _disk(machine: Machine, path: str, least: int) -> ProbeOutcome:
    space = machine.space(path)
    if space is None:
        return "skip", f"{path} cannot be read"
    total, free = space
    reason = f"{gib(free)} of {gib(total)} free at {path}"
    status: Status = "fail" if free < least // 10 else "warn" if free < least or free < 0.05 * total else "pass"
    return status, reason, f"du -xh {path} | sort -h | tail shows what fills it"


@check("disk of the working folder")
def disk_cwd(machine: Machine) -> ProbeOutcome:
    return _disk(machine, str(Path.cwd()), 20 * GIB)


@check("disk for temporary files")
def disk_tmp(machine: Machine) -> ProbeOutcome:
    return _disk(machine, machine.variables.get("TMPDIR") or "/tmp", 10 * GIB)


@check("disk of Ray's sessions")
def disk_ray(machine: Machine) -> ProbeOutcome:
    folder = machine.variables.get("RAY_TMPDIR") or "/tmp/ray"
    return _disk(machine, folder, 10 * GIB)


@check("cores")
def cpu_affinity(machine: Machine) -> ProbeOutcome:
    allowed, total = machine.cpus_allowed()
    quota = (machine.text("/sys/fs/cgroup/cpu.max") or "max").split()
    if quota[0] != "max" and len(quota) == 2:
        allowed = min(allowed, max(1, int(quota[0]) // int(quota[1])))
    granted = machine.variables.get("SLURM_CPUS_PER_TASK", "")
    reason = f"{allowed} of {total} cores may be used"
    if granted.isdigit() and int(granted) < total:
        fix = f"ray.init(num_cpus={granted}): Ray counts the machine's cores, SLURM granted fewer"
        return "warn", f"SLURM granted {granted} of {total} cores", fix
    fix = f"ray.init(num_cpus={allowed}), OMP_NUM_THREADS={max(1, allowed // 2)}"
    return "warn" if allowed < total else "pass", reason, fix


@check("tracing of processes")
def ptrace_scope(machine: Machine) -> ProbeOutcome:
    scope = machine.number("/proc/sys/kernel/yama/ptrace_scope")
    if scope in (None, 0) or os.geteuid() == 0:
        return "pass", "py-spy may trace processes of this user"
    fix = "docker run --cap-add=SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0"
    return "warn", f"ptrace_scope is {scope}: py-spy needs root", fix
