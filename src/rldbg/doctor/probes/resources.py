"""Memory, disks, /dev/shm, limits of processes and files, and what containers restrict."""

import os
import resource
from pathlib import Path

from rldbg.doctor.diagnosis import ProbeResult
from rldbg.doctor.probes.machine import GIB, Machine, Status, gib, result

_SHM_FIX = "docker run --shm-size=16g or --ipc=host; on Kubernetes an emptyDir with medium: Memory at /dev/shm"


def shm_size(machine: Machine) -> ProbeResult:
    space = machine.space("/dev/shm")
    if space is None or not machine.path("/dev/shm").is_dir():
        return result("shm-size", "/dev/shm", "fail", "/dev/shm does not exist", _SHM_FIX)
    total, free = space
    reason = f"{gib(total)}, {gib(free)} free"
    if free < 1 << 26:
        return result("shm-size", "/dev/shm", "fail", reason, _SHM_FIX, "delete what crashed runs left in /dev/shm")
    status: Status = "warn" if total < GIB else "pass"
    return result("shm-size", "/dev/shm", status, reason, _SHM_FIX)


def shm_leftovers(machine: Machine) -> ProbeResult:
    folder = machine.path("/dev/shm")
    names = (
        [path for path in folder.iterdir() if path.name.startswith(("nccl-", "torch_", "sem.mp-", "plasma"))]
        if folder.is_dir()
        else []
    )
    size = sum(path.stat().st_size for path in names if path.is_file())
    title = "left-overs in /dev/shm"
    if size < GIB:
        return result("shm-leftovers", title, "pass", f"{len(names)} files, {gib(size)}")
    fix = "with no job running: rm /dev/shm/nccl-* /dev/shm/torch_*"
    return result("shm-leftovers", title, "warn", f"{len(names)} files hold {gib(size)}", fix)


def files_limit(machine: Machine) -> ProbeResult:
    limit = machine.limit(resource.RLIMIT_NOFILE)
    if limit is None or limit >= 65535:
        return result("files-limit", "open files", "pass", f"ulimit -n is {limit or 'unlimited'}")
    status: Status = "fail" if limit < 4096 else "warn"
    return result("files-limit", "open files", status, f"ulimit -n is {limit}", "ulimit -n 65535 before ray start")


def processes_limit(machine: Machine) -> ProbeResult:
    limit = machine.limit(resource.RLIMIT_NPROC)
    if limit is None or limit >= 8192:
        return result("processes-limit", "processes and threads", "pass", f"ulimit -u is {limit or 'unlimited'}")
    fix = "ulimit -u unlimited before ray start; export OMP_NUM_THREADS=1"
    return result("processes-limit", "processes and threads", "warn", f"ulimit -u is {limit}", fix)


def pids_limit(machine: Machine) -> ProbeResult:
    limit, current = machine.number("/sys/fs/cgroup/pids.max"), machine.number("/sys/fs/cgroup/pids.current") or 0
    if limit is None:
        return result("pids-limit", "container's limit of processes", "pass", "none")
    reason = f"{current} of {limit}"
    status: Status = "fail" if current > 0.9 * limit else "warn" if limit < 4096 else "pass"
    return result("pids-limit", "container's limit of processes", status, reason, "docker run --pids-limit=-1")


def memlock_limit(machine: Machine) -> ProbeResult:
    limit = machine.limit(resource.RLIMIT_MEMLOCK)
    if limit is None:
        return result("memlock-limit", "locked memory", "pass", "unlimited")
    if not machine.path("/sys/class/infiniband").is_dir():
        return result("memlock-limit", "locked memory", "pass", f"{gib(limit)}, and no InfiniBand here")
    fix = "docker run --ulimit memlock=-1 --cap-add=IPC_LOCK: RDMA needs it"
    return result("memlock-limit", "locked memory", "warn", f"ulimit -l is {gib(limit)}", fix)


def memory(machine: Machine) -> ProbeResult:
    facts = dict(line.split(":", 1) for line in (machine.text("/proc/meminfo") or "").splitlines() if ":" in line)
    if "MemTotal" not in facts or "MemAvailable" not in facts:
        return result("memory", "memory", "skip", "/proc/meminfo cannot be read")
    total, free = (int(facts[key].split()[0]) << 10 for key in ("MemTotal", "MemAvailable"))
    used = 1 - free / total
    reason = f"{gib(free)} of {gib(total)} free"
    fix = "ps -eo rss,pid,args --sort=-rss | head shows what uses it; Ray kills workers above 95 %"
    return result("memory", "memory", "fail" if used > 0.95 else "warn" if used > 0.9 else "pass", reason, fix)


def cgroup_memory(machine: Machine) -> ProbeResult:
    limit = machine.number("/sys/fs/cgroup/memory.max") or machine.number("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    current = machine.number("/sys/fs/cgroup/memory.current") or 0
    events = dict(line.split() for line in (machine.text("/sys/fs/cgroup/memory.events") or "").splitlines())
    kills = int(events.get("oom_kill", "0"))
    title = "container's limit of memory"
    fix = "raise the container's or the SLURM job's memory (docker --memory, #SBATCH --mem=0)"
    if kills:
        return result(
            "cgroup-memory", title, "fail", f"{kills} processes of this container were killed for memory", fix
        )
    if limit is None or limit > 1 << 60:
        return result("cgroup-memory", title, "pass", "none")
    status: Status = "warn" if current > 0.9 * limit else "pass"
    return result("cgroup-memory", title, status, f"{gib(current)} of {gib(limit)} used", fix)


def _disk(machine: Machine, id: str, title: str, path: str, least: int) -> ProbeResult:
    space = machine.space(path)
    if space is None:
        return result(id, title, "skip", f"{path} cannot be read")
    total, free = space
    reason = f"{gib(free)} of {gib(total)} free at {path}"
    status: Status = "fail" if free < least // 10 else "warn" if free < least or free < 0.05 * total else "pass"
    return result(id, title, status, reason, f"du -xh {path} | sort -h | tail shows what fills it")


def disk_cwd(machine: Machine) -> ProbeResult:
    return _disk(machine, "disk-cwd", "disk of the working folder", str(Path.cwd()), 20 * GIB)


def disk_tmp(machine: Machine) -> ProbeResult:
    return _disk(machine, "disk-tmp", "disk for temporary files", machine.variables.get("TMPDIR") or "/tmp", 10 * GIB)


def disk_ray(machine: Machine) -> ProbeResult:
    folder = machine.variables.get("RAY_TMPDIR") or "/tmp/ray"
    return _disk(machine, "disk-ray", "disk of Ray's sessions", folder, 10 * GIB)


def cpu_affinity(machine: Machine) -> ProbeResult:
    allowed, total = machine.cpus_allowed()
    quota = (machine.text("/sys/fs/cgroup/cpu.max") or "max").split()
    if quota[0] != "max" and len(quota) == 2:
        allowed = min(allowed, max(1, int(quota[0]) // int(quota[1])))
    granted = machine.variables.get("SLURM_CPUS_PER_TASK", "")
    reason = f"{allowed} of {total} cores may be used"
    if granted.isdigit() and int(granted) < total:
        fix = f"ray.init(num_cpus={granted}): Ray counts the machine's cores, SLURM granted fewer"
        return result("cpu-affinity", "cores", "warn", f"SLURM granted {granted} of {total} cores", fix)
    fix = f"ray.init(num_cpus={allowed}), OMP_NUM_THREADS={max(1, allowed // 2)}"
    return result("cpu-affinity", "cores", "warn" if allowed < total else "pass", reason, fix)


def ptrace_scope(machine: Machine) -> ProbeResult:
    scope = machine.number("/proc/sys/kernel/yama/ptrace_scope")
    if scope in (None, 0) or os.geteuid() == 0:
        return result("ptrace-scope", "tracing of processes", "pass", "py-spy may trace processes of this user")
    fix = "docker run --cap-add=SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0"
    return result("ptrace-scope", "tracing of processes", "warn", f"ptrace_scope is {scope}: py-spy needs root", fix)


CHECKS = (
    shm_size,
    shm_leftovers,
    files_limit,
    processes_limit,
    pids_limit,
    memlock_limit,
    memory,
    cgroup_memory,
    disk_cwd,
    disk_tmp,
    disk_ray,
    cpu_affinity,
    ptrace_scope,
)
