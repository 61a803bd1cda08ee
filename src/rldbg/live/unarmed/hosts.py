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
    done = _run([*words, "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", host, command], f"ssh {host}")
    return _answers(done.stdout)


def look_by_srun(job: str, request: Mapping[str, Any], *, python: str) -> list[dict[str, Any]]:
    """One snapshot per node of a SLURM job, by an additional step."""
    if shutil.which("srun") is None:
        raise PrerequisiteError("srun is not installed", "run rldbg on a login node of the cluster")
    nodes = _nodes_of(job)
    command = [
        "srun",
        f"--jobid={job}",
        "--overlap",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--label",
    ]
    asked = json.dumps(dict(request) | {"slurm_job": job})
    # Standard input goes to every task; labels tell whose line is whose.
    done = _run([*command, "--label", "--input=all", python, "-", asked], f"srun --jobid={job}")
    found = _answers(done.stdout)
    if not found:
        raise IncompleteDataError(f"no Python process of SLURM job {job} was found on its nodes", f"squeue --job {job}")
    return found


def _nodes_of(job: str) -> int:
    done = _run(["squeue", "--noheader", "--job", job, "--format=%D"], f"squeue --job {job}")
    words = done.stdout.split()
    if not words or not words[0].isdigit():
        raise UnreachableError(f"SLURM job {job} is not running", "squeue lists running jobs")
    return int(words[0])


def _run(command: list[str], what: str) -> "subprocess.CompletedProcess[str]":
    try:
        done = subprocess.run(command, input=program(), capture_output=True, text=True, timeout=_LOOK_S, check=False)
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"{what} did not answer within {_LOOK_S:g} s", "try the command by hand") from None
    if done.returncode and not done.stdout.strip():
        words = done.stderr.strip().splitlines()
        raise UnreachableError(f"{what} failed: {words[-1] if words else done.returncode}", "try the command by hand")
    return done


def _answers(text: str) -> list[dict[str, Any]]:
    """One JSON list per host, in lines that srun labels with the number of its task."""
    pieces: dict[str, str] = {}
    for line in text.splitlines():
        label, mark, piece = line.partition(MARK)
        if mark:
            pieces[label] = pieces.get(label, "") + piece
    return [row for answer in pieces.values() for row in json.loads(answer)]
