"""Who is behind what is waited for: at the other end of a pipe or connection, the holder of a file lock, a process."""

from collections.abc import Mapping, Sequence

from ..calls.lock_files import lock_file
from ..calls.looking import Looking, Wait
from ..calls.system_calls import kernel_wait
from ..code.source import Sources
from ..processes.connected import connected_processes, connection_to, is_listened, listening_at
from ..processes.ended import ended_process
from ..processes.kernel_threads import POLLING, thread_facts
from ..processes.open_files import ends_of, file_facts, listener, other_end
from ..reading.chosen import OURS
from ..reading.file_locks import contested_file, file_lock_holders
from ..reading.kernel import Facts, children_of, hidden_relatives, process_facts
from ..reading.unix_sockets import unix_peer

# Waits that are followed through processes which are not inspected otherwise, and through how many.
_FOLLOWED = ("child", "pipe", "stdin", "file_lock")
_MOST_BEHIND = 4
_READING = ("queue_get", "stream", "stdin")


def _any_process(pid: int, everyone: Mapping[int, Facts], seen: frozenset[int]) -> Facts:
    """A process of any language: its facts, what its first thread waits for as the kernel sees it, and for whom."""
    facts = process_facts(pid)
    if not facts or OURS.match(facts["command"]):
        return {}
    if facts["state"] != "sleeping":
        return facts
    wait = kernel_wait(Looking((), thread_facts(pid, pid), Sources(pid), ended_process))
    below = children_of(pid) if wait is not None and wait["kind"] == "child" else []
    if wait is not None and wait["kind"] in _FOLLOWED and len(seen) < _MOST_BEHIND:
        look_behind(wait, pid, everyone, seen | {pid}, [child["pid"] for child in below])
    return facts | {"wait": wait, "children": below}


def leads_elsewhere(wait: Wait) -> bool:
    told = wait.get("file") or wait.get("files") or wait["kind"] == "message"
    return (
        bool(told or wait.get("address") or wait.get("asks_at") or "rpc" in wait) or wait.get("descriptor") is not None
    )


def _known_ends(pid: int, ends: set[int], everyone: Mapping[int, Facts]) -> list[int] | None:
    """None if a process that we may not inspect may have it."""
    return sorted(ends) if ends - {pid} or not hidden_relatives(pid, everyone) else None


def _listening(pid: int, address: str, everyone: Mapping[int, Facts]) -> list[int] | None:
    """The processes of this host that listen at HOST:PORT; None for another host, or if we may not inspect them."""
    listened = is_listened(pid, address)
    if not listened:
        return [] if listened is False else None
    host, _, port = address.rpartition(":")
    # Only a host's own names are listened at under another name.
    hosts = (host,) if host.replace(".", "").isdigit() or ":" in host else ("127.0.0.1", "::1")
    found = [listener(pid, f"{each}:{port}") for each in hosts]
    ends = [end for inode in found if inode for end in ends_of(inode, dict(everyone))]
    return sorted({end["pid"] for end in ends}) or None


def _look_at_lock_file(wait: Wait, pid: int, path: str) -> None:
    """Adds the file whose removal is waited for; where it names a process, that process is waited for."""
    wait["lock_file"] = file = lock_file(pid, path)
    if "ended" in file:
        wait |= {"kind": "lock_file", "polls": "", "path": path, "holders": [] if file["ended"] else [file["pid"]]}


def look_behind(
    wait: Wait,
    pid: int,
    everyone: Mapping[int, Facts],
    seen: frozenset[int] = frozenset(),
    children: Sequence[int] = (),
) -> None:
    """Who is at the other end of a pipe, holds a file lock, or is the process that is waited for; and so on for
    processes that are not inspected otherwise, without those `seen`."""
    if wait.get("address") and wait.get("descriptor") is None:
        wait["descriptor"] = connection_to(pid, str(wait["address"]))
    if wait.get("descriptor") is not None:
        wait["file"] = file_facts(pid, int(wait["descriptor"]))
    file = wait.get("file") or {}
    if file.get("kind") == "pipe":
        reads = wait["kind"] in _READING and not wait.get("sends")
        wants_writer = reads or wait.get("call") in ("read", "readv", *POLLING)
        every = ends_of(str(file.get("inode")), dict(everyone))
        ends = [end for end in every if end["writes"] == wants_writer]
        wait["openers"] = sorted({end["pid"] for end in every})
        wait["ends"] = _known_ends(pid, {end["pid"] for end in ends}, everyone)
        wait["sockets"] = [[end["pid"], end["descriptor"]] for end in ends]
    if file.get("peer") and (other := other_end(pid, file)) is not None:
        if other == "0" or file.get("connection") == "connecting":
            wait["accepted"] = False
            other = listener(pid, str(file["peer"]))
        ends = ends_of(other, dict(everyone)) if other else []
        # An end that no inspectable process has is another user's, or in another container.
        wait["ends"] = sorted({end["pid"] for end in ends}) if ends or not other else None
        wait["sockets"] = [[end["pid"], end["descriptor"]] for end in ends]
    elif file.get("kind") == "socket" and not file.get("local") and (peer := unix_peer(str(file["inode"]))):
        # No process has it open before the connection is accepted: who will accept it is unknown.
        ends = ends_of(peer, dict(everyone))
        wait["ends"] = sorted({end["pid"] for end in ends}) or None
        wait["sockets"] = [[end["pid"], end["descriptor"]] for end in ends]
    pipes = [str(each["inode"]) for each in wait.get("files") or [] if each.get("kind") == "pipe"]
    if pipes:
        wait["ends"] = sorted({end["pid"] for each in pipes for end in ends_of(each, dict(everyone)) if end["writes"]})
    inside, database = wait.pop("inside", False), wait.pop("database", False)
    if inside and (path := contested_file(pid) or (contested_file(pid, own=True) if database else "")):
        # Libraries in C (databases, HDF5) sleep and retry while another process has locked their file, or this one by
        # another connection.
        wait |= {"kind": "file_lock", "path": path, "polls": ""}
    if wait["kind"] == "message":
        wait["ends"] = connected_processes(pid, everyone, "zmq")
    if "rpc" in wait and not file:
        # Calls of asyncio keep their address in C: a single process at the other end of a connection is meant.
        others = connected_processes(pid, everyone, "cygrpc") or []
        wait["ends"] = others if len(others) == 1 else None
    if wait.get("meets_at"):
        wait["listened"] = is_listened(pid, str(wait["meets_at"]))
        wait["listens"] = listening_at(pid)
    if wait.get("asks_at"):
        wait["served_by"] = _listening(pid, str(wait["asks_at"]), everyone)
    if wait["kind"] == "file_lock":
        wait["holders"] = file_lock_holders(pid, str(wait.get("path") or ""))
    if absence := wait.pop("absence_of", ""):
        _look_at_lock_file(wait, pid, str(absence))
    if wait["kind"] == "child" and wait.get("pid"):
        wait["child"] = process_facts(int(wait["pid"]))
    concerned = [*(wait.get("ends") or []), *(wait.get("holders") or []), *([wait["pid"]] if wait.get("child") else [])]
    others = [each for each in (*concerned, *children) if each != pid and each not in seen]
    wait["processes"] = [facts for each in others if (facts := _any_process(each, everyone, seen | {pid}))]
