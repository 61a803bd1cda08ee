"""Which processes of this host are selected, and the identity of each, from command lines and environments."""

import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .kernel import Facts, all_processes, children_of, descendants, environment_of, process_facts
from .objects import Object

_MOST = 256
_TORCHRUN = re.compile(r"\btorchrun\b|torch\.distributed\.(run|launch)|torch/distributed/run\.py")
_DEFAULT_NAME = re.compile(r"MainProcess|\w*(Process|PoolWorker)-[\d:]+|SyncManager-[\d:]+")
# The rldbg command and its brokers; not a program that is only in a folder of that name.
OURS = re.compile(r"\S+\s+(?:\S*/rldbg(?:\s|$)|-m\s+rldbg\b)")
# Of these, what stands beside the programs of a run; `rldbg train` and `rldbg serve` may be the programs.
_BESIDE = re.compile(
    r"\S+\s+(?:(?:\S*/rldbg|-m\s+rldbg)\s+(?:run|profile|watch)\b|-m\s+rldbg\.(?:live|launch|profiling)\b)"
)


def chosen_processes(
    pids: Sequence[int], *, torchrun: bool, slurm_job: str, everything: bool, children: bool
) -> list[int]:
    """The named processes, those that torchrun or SLURM started, and their descendants."""
    everyone = all_processes()
    wanted = list(pids)
    if torchrun or everything:
        wanted += _torchrun_workers(everyone)
    if everything and not wanted:
        wanted += _own_pythons(everyone)
    if slurm_job:
        wanted += [pid for pid in everyone if environment_of(pid).get("SLURM_JOB_ID") == slurm_job and _is_python(pid)]
    if children:
        wanted += [child for pid in list(wanted) for child in descendants(pid, everyone) if _is_python(child)]
    above = _above(everyone)
    beside = {pid for pid, facts in everyone.items() if _BESIDE.match(facts["command"])}
    found = [pid for pid in dict.fromkeys(wanted) if pid not in beside and (pid in pids or pid not in above)]
    # One that is named alone is meant itself.
    return (found or list(pids))[:_MOST]


def _torchrun_workers(everyone: Mapping[int, Facts]) -> list[int]:
    """Ranks that a launcher of this host started, and any other process that was given a rank."""
    launchers = {pid for pid, facts in everyone.items() if _TORCHRUN.search(facts["command"])}
    ranked = [pid for pid in _pythons(everyone) if "RANK" in (env := environment_of(pid)) and "WORLD_SIZE" in env]
    # A rank's own helpers inherit its rank.
    workers = [pid for pid in ranked if everyone[pid]["parent"] not in ranked]
    below = [pid for pid in workers if everyone[pid]["parent"] in launchers]
    return below or workers


def _above(everyone: Mapping[int, Facts]) -> set[int]:
    """This process and those that started it."""
    found, pid = set(), os.getpid()
    while pid in everyone and pid not in found:
        found.add(pid)
        pid = everyone[pid]["parent"]
    return found


def _own_pythons(everyone: Mapping[int, Facts]) -> list[int]:
    """All Python processes of this user, without this one and those above it."""
    above = _above(everyone)
    own = [pid for pid in _pythons(everyone) if pid not in above and _is_own(pid)]
    return [pid for pid in own if not OURS.match(everyone[pid]["command"])]


def _is_own(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.geteuid()
    except OSError:
        # It has ended.
        return False


def _pythons(everyone: Iterable[int]) -> list[int]:
    return [pid for pid in everyone if _is_python(pid)]


def _is_python(pid: int) -> bool:
    try:
        return "python" in Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return False


def describe(pid: int) -> Facts:
    """Who a process is, from its command line and environment, in the form of a line of `rldbg ps`."""
    facts = process_facts(pid)
    environment = environment_of(pid)
    role = program(str(facts.get("command") or ""))
    rank = environment.get("RANK", "")
    number = int(rank) if rank.isdigit() else None
    gone = not facts or facts["state"] in ("zombie", "dead")
    return {
        "who": f"{role}/{number}" if number is not None else f"{role}@{pid}",
        "role": role,
        "rank": number,
        "world_size": int(environment["WORLD_SIZE"]) if environment.get("WORLD_SIZE", "").isdigit() else None,
        "job": _job(environment),
        "state": "exited" if gone else "running",
        "host": socket.gethostname(),
        "pid": pid,
        "command": facts.get("command", ""),
        "suspended": facts.get("state") == "stopped",
        "exit": facts.get("exit", ""),
        "parent": facts.get("parent"),
        "ended_ranks": _ended_ranks(int(facts.get("parent") or 0), environment) if not gone else [],
        "threads": [],
        "unanswered": f"process {pid} has ended" if gone else "",
    }


def _ended_ranks(launcher: int, environment: Mapping[str, str]) -> list[int]:
    """The ranks of this host that torchrun has started beside a process, and that have ended without a failure: after
    one it ends all of them."""
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    command = str(process_facts(launcher).get("command") or "")
    if not all(_is_number(environment, name) for name in names) or not _TORCHRUN.search(command):
        return []
    rank, place, count = (int(environment[name]) for name in names)
    beside = children_of(launcher)
    if any(each["state"] == "zombie" for each in beside):
        # It has not been told how that one ended.
        return []
    alive = {environment_of(each["pid"]).get("RANK", "") for each in beside}
    return [each for each in range(rank - place, rank - place + count) if str(each) not in alive]


def _job(environment: Mapping[str, str]) -> str:
    """What the ranks of one job have in common: where they meet."""
    return ":".join(filter(None, (environment.get(name) for name in ("MASTER_ADDR", "MASTER_PORT"))))


def told_rank(entry: Facts, modules: Mapping[str, Object]) -> Facts:
    """The rank that a process was given after it had started: a forked one changes its own environment."""
    module = modules.get("os")
    environment = module.get("environ") if module is not None else None
    data = environment.get("_data") if environment is not None else None
    told = {name: value.text() or "" for name, value in data.items()} if data is not None else {}
    found = {
        name: int(told[key]) for name, key in (("rank", "RANK"), ("world_size", "WORLD_SIZE")) if _is_number(told, key)
    }
    return found | ({"who": f"{entry['role']}/{found['rank']}"} if "rank" in found else {})


def given_name(modules: Mapping[str, Object]) -> str:
    """The name that the user gave a process of multiprocessing; those that it is given otherwise say nothing."""
    module = modules.get("multiprocessing.process")
    current = module.get("_current_process") if module is not None else None
    value = current.get("_name") if current is not None else None
    name = (value.text() if value is not None else "") or ""
    return "" if _DEFAULT_NAME.fullmatch(name) else name


def with_given_names(found: list[Facts]) -> list[Facts]:
    for entry in found:
        if entry.get("rank") is None and (name := entry.pop("process_name", "")):
            entry |= {"role": name, "who": f"{name}@{entry['pid']}"}
    return found


def with_said_ranks(found: list[Facts]) -> list[Facts]:
    """Ranks of processes that one parent has started, where each says another number, and together all of a group."""
    siblings: dict[tuple[object, int], list[Facts]] = {}
    for entry in found:
        said = entry.pop("said_ranks", {})
        if entry.get("rank") is None and said:
            siblings.setdefault((entry["parent"], entry["distributed"]), []).append(entry | {"said": said})
    for (parent, size), alike in siblings.items():
        names = [name for name in alike[0]["said"] if all(name in each["said"] for each in alike)]
        whole = (name for name in names if sorted(each["said"][name] for each in alike) == list(range(size)))
        if name := next(whole, ""):
            ranks = {each["pid"]: each["said"][name] for each in alike}
            for entry in (entry for entry in found if entry["pid"] in ranks):
                entry |= {"rank": ranks[entry["pid"]], "world_size": size, "job": f"ranks of process {parent}"}
    return found


def without_inherited_ranks(found: list[Facts]) -> list[Facts]:
    """A helper that a rank started has its environment, and is not that rank."""
    ranks = {entry["pid"]: entry.get("rank") for entry in found}
    for entry in found:
        if entry["rank"] is not None and ranks.get(entry["parent"]) == entry["rank"]:
            entry |= {"rank": None, "who": f"{entry['role']}.child@{entry['pid']}"}
    return found


def _is_number(told: Mapping[str, str], name: str) -> bool:
    return told.get(name, "").isdigit()


def program(command: str) -> str:
    """What people call a process: the stem of its script, its module, or the title that Ray gave it."""
    if command.startswith("ray::"):
        return command.split()[0].removeprefix("ray::").partition("(")[0].partition(".")[0] or "worker"
    words = command.split()
    for number, word in enumerate(words):
        if word.endswith(".py"):
            return Path(word).stem
        if word == "-m" and number + 1 < len(words):
            return words[number + 1]
        if word == "-c":
            break
    return Path(words[0]).name if words else "process"
