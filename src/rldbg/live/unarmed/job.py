"""A job without agents, as the user names it: process ids, ranks of torchrun, a SLURM job, a host, a Ray cluster."""

from dataclasses import dataclass, field
from typing import Any

from rldbg.agent import Message
from rldbg.agent.waits import look
from rldbg.core import IncompleteDataError, UsageError
from rldbg.live.diagnosis.graph.entries import all_entries
from rldbg.live.diagnosis.ray.view import name_workers
from rldbg.live.unarmed.hosts import look_by_srun, look_by_ssh
from rldbg.live.unarmed.ray_cluster import look_at_ray


@dataclass(frozen=True, slots=True)
class UnarmedJob:
    """Where to look, and the ssh command and Python to use on other hosts. False when the user named nothing."""

    ray: str = ""
    pids: tuple[int, ...] = ()
    torchrun: bool = False
    slurm_job: str = ""
    host: str = ""
    ssh: str = "ssh"
    python: str = "python3"

    def __bool__(self) -> bool:
        return bool(self.ray or self.pids or self.torchrun or self.slurm_job or self.host)


@dataclass(frozen=True, slots=True)
class UnarmedView:
    """What was seen: one stack entry per process, Ray's own view where there is one, and what could not be seen;
    `choice` says which cluster was taken of several."""

    stacks: list[Message]
    ray: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    choice: str = ""


def look_at_job(
    job: UnarmedJob, *, native: bool = False, with_locals: bool = False, apart_s: float = 0.0
) -> UnarmedView:
    """Raises UsageError when sources contradict each other, IncompleteDataError when nothing is found."""
    if sum(map(bool, (job.ray, job.slurm_job, job.host))) > 1 or (job.ray and (job.pids or job.torchrun)):
        raise UsageError("--ray, --slurm and --host are mutually exclusive, and --ray finds its processes itself")
    if job.ray:
        view = look_at_ray(job.ray, native=native, with_locals=with_locals, apart_s=apart_s)
        stacks = view.pop("stacks")
        return UnarmedView(name_workers(stacks, view), view, [*view["notes"], *_notes(stacks)], view["choice"])
    request: dict[str, Any] = {"native": native, "with_locals": with_locals, "apart_s": apart_s}
    request |= {"pids": list(job.pids), "torchrun": job.torchrun}
    if job.slurm_job:
        stacks = look_by_srun(job.slurm_job, request, python=job.python)
        _point_at_clusters(stacks)
        return UnarmedView(stacks, notes=_notes(stacks))
    if job.host:
        request["everything"] = not job.pids and not job.torchrun
        found = look_by_ssh(job.host, request, ssh=job.ssh, python=job.python)
    else:
        found = look(**request)
    if not found:
        what = "process of torchrun" if job.torchrun else "Python process of this user"
        where = f" on {job.host}" if job.host else ""
        other = "; of another user: --host USER@HOST" if job.host else ""
        raise IncompleteDataError(f"no {what} was found{where}", f"give process ids: rldbg stacks --pid PID{other}")
    gone = [stack for stack in found if stack["state"] == "exited" and stack["pid"] in job.pids]
    if gone and len(gone) == len(found):
        raise IncompleteDataError(f"process {gone[0]['pid']} does not exist", "ps aux lists the processes of this host")
    _point_at_clusters(found)
    return UnarmedView(found, notes=_notes(found))


def _point_at_clusters(stacks: list[Message]) -> None:
    """Who waits for something of Ray waits for processes that were not looked at, as all healthy drivers do."""
    for stack in stacks:
        cluster = (stack.get("ray_keeps") or {}).get("cluster") or "auto"
        why = f"its cluster was not looked at: rldbg stacks --ray {cluster} --diagnose"
        for wait in [entry.get("wait") or {} for entry in all_entries(stack)]:
            if wait.get("kind") == "ray_get" or wait.get("between") == "ray":
                wait |= {"lost": why, "unclear": "unknown"}


def _notes(stacks: list[Message]) -> list[str]:
    """What NCCL and torch say by themselves, from each host."""
    return [note for stack in stacks for note in stack.get("notes") or []]
