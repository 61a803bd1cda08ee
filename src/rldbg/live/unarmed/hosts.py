"""Processes of other hosts: by ssh, or inside a SLURM job by `srun --overlap`. Nothing needs to be installed there."""

import json
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from rldbg.core import IncompleteDataError, PrerequisiteError, UnreachableError
from rldbg.live.unarmed.travelling import MARK, program

_LOOK_S = 120.0


def look_by_ssh(host: str, request: Mapping[str, Any], *, ssh: str, python: str) -> list[dict[str, Any]]:
    """Raises UnreachableError when the host cannot be reached or has no Python."""
    words = shlex.split(ssh)
    if not words or shutil.which(words[0]) is None:
        raise PrerequisiteError(f"{ssh!r} is not installed", "install an ssh client, or run rldbg on that host")
    # The shell of the other host splits the words once more.
    command = shlex.join([python, "-", json.dumps(dict(request))])
    done = _run(
        [*words, "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host, command], f"ssh {host}", f"{ssh} {host} true"
    )
    return _answers(done.stdout)


def look_by_srun(job: str, request: Mapping[str, Any], *, python: str) -> list[dict[str, Any]]:
    """One snapshot per node of a SLURM job, or of each running job of an array, by an additional step."""
    if shutil.which("srun") is None:
        raise PrerequisiteError("srun is not installed", "run rldbg on a login node of the cluster")
    found = []
    for number, nodes in _running(job):
        command = ["srun", f"--jobid={number}", "--overlap"]
        layout = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
        asked = json.dumps(dict(request) | {"slurm_job": number})
        # Standard input goes to every task; labels tell whose line is whose.
        words = [*command, *layout, "--label", "--input=all", python, "-", asked]
        found += _answers(_run(words, f"srun --jobid={number}", shlex.join([*command, "hostname"])).stdout)
    if not found:
        raise IncompleteDataError(f"no Python process of SLURM job {job} was found on its nodes", f"squeue --job {job}")
    return found


def _running(job: str) -> list[tuple[str, int]]:
    """The number and the nodes of each job that runs under this name: an array (`5`) has many, `5_1` is one of them,
    and srun only takes numbers."""
    what = f"squeue --job {job}"
    listed = _run(["squeue", "--noheader", "--job", job, "--format=%A %D %T %r"], what, "squeue").stdout
    rows = [line.split(maxsplit=3) for line in listed.splitlines() if line.strip()]
    running = [(number, int(nodes)) for number, nodes, state, _why in rows if state in ("RUNNING", "COMPLETING")]
    if not running:
        states = sorted({f"{state} ({why})" for _number, _nodes, state, why in rows})
        words = f": squeue shows it as {', '.join(states)}" if states else ""
        raise UnreachableError(f"SLURM job {job} is not running{words}", "squeue lists running jobs")
    return running


def _run(command: list[str], what: str, by_hand: str) -> "subprocess.CompletedProcess[str]":
    """`by_hand` is the short command that shows why a failed one fails."""
    hint = f"see what `{by_hand}` says"
    try:
        done = subprocess.run(command, input=program(), capture_output=True, text=True, timeout=_LOOK_S, check=False)
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"{what} did not answer within {_LOOK_S:g} s", hint) from None
    if done.returncode and not done.stdout.strip():
        words = done.stderr.strip().splitlines()
        raise UnreachableError(f"{what} failed: {words[-1] if words else done.returncode}", hint)
    return done


def _answers(text: str) -> list[dict[str, Any]]:
    """One JSON list per host, in lines that srun labels with the number of its task."""
    pieces: dict[str, str] = {}
    for line in text.splitlines():
        label, mark, piece = line.partition(MARK)
        if mark:
            pieces[label] = pieces.get(label, "") + piece
    return [row for answer in pieces.values() for row in json.loads(answer)]
