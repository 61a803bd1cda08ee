"""Who this process is: role, rank, coordinates, host. Determined again each time, because a Ray worker gets its
identity only with an actor, and a rank exists only after torch.distributed was initialised.

Nothing is imported here that the process has not imported itself.
"""

import functools
import os
import re
import socket
import sys
import time
from pathlib import Path
from typing import Any

from .ray_process import RayFacts, is_ray_worker, ray_facts
from .settings import Settings

_AXIS = re.compile(r"\s*(\w+)\s*=\s*(\d+)\s*")
_ERRORS = Path("/proc/self/fd/2")
_MEGATRON_AXES = {
    "dp": "get_data_parallel_rank",
    "tp": "get_tensor_model_parallel_rank",
    "pp": "get_pipeline_model_parallel_rank",
    "cp": "get_context_parallel_rank",
    "ep": "get_expert_model_parallel_rank",
}


def describe_process(settings: Settings, chosen: dict[str, Any]) -> dict[str, Any]:
    """Everything `rldbg ps` shows about a process; `chosen` (from `rldbg.auto.identify`) wins over what is found."""
    ray = ray_facts()
    rank, world_size = _rank(ray)
    found: dict[str, Any] = {
        "role": settings.role or without_rank(ray.role, rank) or _program(),
        "rank": rank,
        "world_size": world_size,
        "coordinates": _coordinates(settings.coordinates),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "ancestors": list(ancestors(os.getppid())),
        "python": ".".join(map(str, sys.version_info[:3])),
        "program": _program(),
        "cwd": _cwd(),
        "agent_folder": str(Path(__file__).parent),
        "kind": ray.kind,
        "idle": ray.idle,
        "ray": ray.to_dict(),
        "settled": _is_settled(),
    }
    return found | {name: value for name, value in chosen.items() if value is not None}


def _is_settled() -> bool:
    """Whether the identity of this process is final. Otherwise changes are reported when they happen, so that hundreds
    of processes need not be asked on every `rldbg ps`."""
    named = (getattr(sys, "argv", None) or [""])[0] not in ("", "-c", "-m")
    return named and "ray._private.worker" not in sys.modules and not is_ray_worker() and _has_ranks_if_any()


def _has_ranks_if_any() -> bool:
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    parallel = sys.modules.get("megatron.core.parallel_state")
    return (distributed is None or getattr(distributed, "is_initialized", bool)()) and (
        parallel is None or getattr(parallel, "model_parallel_is_initialized", bool)()
    )


def without_rank(role: str, rank: int | None) -> str:
    """An actor that is called policy_1 and has rank 1 is policy/1."""
    return re.sub(rf"[-_.:/]{rank}$", "", role) if rank is not None else role


@functools.lru_cache(maxsize=4)
def ancestors(parent: int) -> tuple[int, ...]:
    """Process ids above this one, nearest first; only the parent where the system does not show more. Who is above the
    parent is read once: this is asked of hundreds of processes at a time."""
    found = [parent]
    while found[-1] > 1 and len(found) < 12:
        try:
            # The name, in parentheses, may itself hold spaces and parentheses; the parent is the second word after it.
            words = Path(f"/proc/{found[-1]}/stat").read_text().rpartition(")")[2].split()
            found.append(int(words[1]))
        except (OSError, ValueError, IndexError):
            break
    return tuple(found)


def is_read_by_its_starter() -> bool:
    """Whether the process of the run that started this one gave it its code and reads what it prints, and so handles
    its failure, as one that grades generated code does. A launcher that logs what a program prints starts a file that
    was there before it; one that starts ranks has another RANK, or none."""
    stream = _target(_ERRORS)
    return stream.startswith("pipe:") and any(
        _has_same_rank_in_run(pid) and _reads(pid, stream) and _has_given_the_code(pid)
        for pid in ancestors(os.getppid())
    )


def is_silenced_by_its_starter() -> bool:
    """Whether the process of the run that started this one lets it print nowhere: it does not expect to be told."""
    starter = os.getppid()
    silent = _target(_ERRORS) == os.devnull != _target(Path(f"/proc/{starter}/fd/2"))
    return silent and _has_same_rank_in_run(starter)


def _has_given_the_code(starter: int) -> bool:
    """Whether this program has no file (`python -c`), or one that is newer than the process that started it."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        words = Path(f"/proc/{starter}/stat").read_text().rpartition(")")[2].split()
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(words[19]) / os.sysconf("SC_CLK_TCK")
        return file is None or Path(file).stat().st_mtime > time.time() - age_s
    except (OSError, ValueError, IndexError):
        return file is None


def _reads(pid: int, stream: str) -> bool:
    try:
        numbers = [link.name for link in Path(f"/proc/{pid}/fd").iterdir() if _target(link) == stream]
        texts = [Path(f"/proc/{pid}/fdinfo/{number}").read_text() for number in numbers]
    except OSError:
        return False  # it has ended, or belongs to another user
    flags = (re.search(r"flags:\s*(\d+)", text) for text in texts)
    return any(each and int(each[1], 8) & os.O_ACCMODE == os.O_RDONLY for each in flags)


def _target(link: Path) -> str:
    """Empty when it was closed meanwhile."""
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _has_same_rank_in_run(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    given = dict(word.partition("=")[::2] for word in words)
    return "RLDBG_RUN" in given and given.get("RANK") == os.environ.get("RANK")


def _rank(ray: RayFacts) -> tuple[int | None, int | None]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and getattr(distributed, "is_initialized", bool)():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    for rank, world in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        text = os.environ.get(rank, "")
        # SLURM sets its variables for the batch script and single tasks too: alone is not a rank.
        if text.isdigit() and (rank == "RANK" or os.environ.get(world, "1") != "1"):
            size = os.environ.get(world, "")
            return int(text), int(size) if size.isdigit() else None
    return ray.rank, None


def _coordinates(text: str) -> dict[str, int]:
    if text:
        return {axis: int(place) for axis, place in _AXIS.findall(text)}
    parallel = sys.modules.get("megatron.core.parallel_state")
    if parallel is None or not getattr(parallel, "model_parallel_is_initialized", bool)():
        return {}
    return {axis: int(getattr(parallel, name)()) for axis, name in _MEGATRON_AXES.items() if hasattr(parallel, name)}


def _program() -> str:
    """What the user would call this process: the script's name, else the module's, else python."""
    # sys.argv does not exist yet while sitecustomize runs.
    argv = getattr(sys, "argv", None) or [""]
    if argv[0] == "-m":
        names = [name for name in sys.orig_argv if not name.startswith("-")][1:]
        return names[0] if names else "python"
    if argv[0] in ("", "-c"):
        return "python"
    path = Path(argv[0])
    return path.parent.name if path.name == "__main__.py" else path.stem


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""
