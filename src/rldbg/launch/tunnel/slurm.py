"""The user's Slurm jobs, asked for in a format of our own: squeue's default one cuts names and mixes columns."""

import re
from dataclasses import dataclass, replace

from rldbg.core import PrerequisiteError, UnreachableError, UsageError
from rldbg.launch.nodelist import expand
from rldbg.launch.tunnel.remote import CommandFailed, Host

_SEPARATOR = "\x1f"
_FIELDS = ("%i", "%T", "%N", "%B", "%j", "%R")
_RUNNING = ("RUNNING", "SUSPENDED")


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as Slurm tells of it. A pending one has no nodes."""

    id: str
    state: str
    nodes: tuple[str, ...]
    batch_host: str
    name: str
    reason: str = ""
    work_dir: str = ""
    output: str = ""

    @property
    def is_running(self) -> bool:
        return self.state in _RUNNING and bool(self.nodes)

    def __str__(self) -> str:
        where = f"{len(self.nodes)} nodes" if self.nodes else self.reason
        return f"{self.id} {self.name} ({self.state}, {where})"


def parse_jobs(text: str) -> list[SlurmJob]:
    jobs = []
    for line in text.splitlines():
        if not line.strip():
            continue
        parts = line.split(_SEPARATOR)
        if len(parts) != len(_FIELDS):
            raise UnreachableError(f"unexpected output of squeue: {line!r}", "is it Slurm's own squeue?")
        number, state, nodes, batch_host, name, reason = (part.strip() for part in parts)
        jobs.append(SlurmJob(number, state, tuple(expand(nodes)), batch_host, name, reason.strip("()")))
    return jobs


def parse_facts(text: str) -> dict[str, str]:
    """`scontrol show job -o`: KEY=VALUE words; values may hold spaces, keys never do."""
    marks = list(re.finditer(r"(?:^|\s)([A-Z][A-Za-z/:]*)=", text))
    if not marks:
        return {}
    ends = [match.start() for match in marks[1:]] + [len(text)]
    return {match[1]: text[match.end() : end].strip() for match, end in zip(marks, ends, strict=True)}


class Slurm:
    """Slurm as seen from a host where its commands are."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def jobs(self) -> list[SlurmJob]:
        """All of the user's jobs that are queued or running."""
        return parse_jobs(self._squeue("--me"))

    def find(self, wanted: str) -> SlurmJob:
        """The job with this id or name; an error tells what is there instead."""
        jobs = self.jobs()
        matches = [job for job in jobs if wanted in (job.id, job.name)]
        if not matches and re.fullmatch(r"\d+(?:_\d+)?", wanted):
            matches = self._by_id(wanted)
        if len(matches) > 1:
            raise UsageError(
                f"ambiguous: {wanted!r} matches {len(matches)} jobs",
                f"give the id of one: {', '.join(job.id for job in matches)}",
            )
        if not matches:
            there = "; ".join(map(str, jobs)) or "you have no job in the queue"
            raise UnreachableError(f"no such job: {wanted!r}", there)
        return self.check(matches[0])

    def check(self, job: SlurmJob) -> SlurmJob:
        """The job with what else is known of it; an error when it has no nodes to go to."""
        if job.is_running:
            facts = parse_facts(self._try(["scontrol", "show", "job", "-o", job.id]))
            return replace(job, work_dir=facts.get("WorkDir", ""), output=facts.get("StdOut", ""))
        if job.state in ("PENDING", "CONFIGURING", "REQUEUED", "RESIZING"):
            raise UnreachableError(
                f"job {job.id} is {job.state} ({job.reason or 'no reason given'}): it has no nodes yet",
                f"squeue -j {job.id.split('_')[0]} --start",
            )
        raise UnreachableError(
            f"job {job.id} has ended: {job.state}", "submit it again, or diagnose its log with rldbg doctor"
        )

    def is_running(self, job_id: str) -> bool:
        """Whether the job still has its nodes; a controller that briefly does not answer does not end it."""
        try:
            return any(job.is_running for job in self._by_id(job_id))
        except CommandFailed:
            return False
        except UnreachableError:
            return True

    def _by_id(self, job_id: str) -> list[SlurmJob]:
        try:
            queued = parse_jobs(self._squeue("-j", job_id))
        except CommandFailed:
            queued = []  # squeue calls an id it has forgotten an error
        if queued:
            return queued
        facts = parse_facts(self._try(["scontrol", "show", "job", "-o", job_id]))
        if not facts:
            return []
        nodes = facts.get("NodeList", "")
        return [
            SlurmJob(
                job_id,
                facts.get("JobState", "UNKNOWN").split(" ")[0],
                tuple(expand(nodes)) if nodes not in ("", "(null)") else (),
                facts.get("BatchHost", ""),
                facts.get("JobName", ""),
                facts.get("Reason", ""),
            )
        ]

    def _squeue(self, *choice: str) -> str:
        try:
            return self.host.run(["squeue", "-h", *choice, "-o", _SEPARATOR.join(_FIELDS)])
        except PrerequisiteError:
            raise _no_slurm(self.host) from None
        except CommandFailed as error:
            if "not found" in str(error):
                raise _no_slurm(self.host) from None
            raise

    def _try(self, argv: list[str]) -> str:
        try:
            return self.host.run(argv)
        except (CommandFailed, PrerequisiteError):
            return ""


def _no_slurm(host: Host) -> PrerequisiteError:
    where = f"on {host.name}" if host.name else "on this machine"
    return PrerequisiteError(
        f"Slurm is not installed {where}: squeue was not found",
        "run this on the login node, or give it: rldbg tunnel --login HOST; for Kubernetes: --k8s NAMESPACE/RAYCLUSTER",
    )
