"""Which processes of this host a process is connected to, where a library keeps its sockets to itself."""

import os
import socket
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from ..reading.kernel import read_text
from ..reading.unix_sockets import unix_peer
from .open_files import addresses_of, listener

_LOCAL = ("127.0.0.1", "::1")


def connected_processes(pid: int, everyone: Iterable[int], library: str) -> list[int] | None:
    """Processes with a library at the other end of any connection; None when only other hosts, or
    processes that we may not inspect, can be there."""
    own = _sockets(pid)
    rows = [
        row
        for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6))
        for row in _rows(pid, table, family)
    ]
    ends = {(local, peer): inode for local, peer, inode in rows}
    mine = [(local, peer) for local, peer, inode in rows if inode in own and not peer.endswith(":0")]
    far = {ends.get((peer, local), "") for local, peer in mine}
    far |= {unix_peer(inode) for inode in own - {inode for _, _, inode in rows}}
    open_ends = far - {"", "0"}
    sockets = {each: found for each in everyone if each != pid and (found := _sockets(each) & open_ends)}
    others = [each for each in sockets if _uses(each, library)]
    # Sockets of no process that we may inspect belong to another user or container.
    hidden = open_ends - own - {inode for found in sockets.values() for inode in found}
    elsewhere = any(peer.rpartition(":")[0] not in (*_LOCAL, local.rpartition(":")[0]) for local, peer in mine)
    return None if (elsewhere or hidden) and not others else sorted(others)


def connection_to(pid: int, address: str) -> int | None:
    """The descriptor of a connection of a process to HOST:PORT; a host that has a name is any with that port."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    tables = (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6))
    rows = [row for table, family in tables for row in _rows(pid, table, family)]
    named = not host.replace(".", "").isdigit() and ":" not in host
    inodes = {
        inode for _, peer, inode in rows if peer.rpartition(":")[2] == port and (named or peer == f"{host}:{port}")
    }
    return next((number for number, inode in _descriptors(pid) if inode in inodes), None)


def is_listened(pid: int, address: str) -> bool | None:
    """Whether a process of its host listens at HOST:PORT; None for another host, or a name of one that is not known."""
    host, _, port = address.rpartition(":")
    local = _own_addresses(pid)
    if host in ("localhost", os.uname().nodename):
        return any(listener(pid, f"{each}:{port}") for each in (*local, "::1"))
    if host not in local:
        return None
    return bool(listener(pid, address))


def listening_at(pid: int) -> list[str]:
    """The addresses at which a process itself listens."""
    own = _sockets(pid)
    rows = [
        row
        for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6))
        for row in _rows(pid, table, family)
    ]
    return sorted({local for local, peer, inode in rows if inode in own and peer.endswith(":0")})


def _own_addresses(pid: int) -> set[str]:
    """Those of the host, or of the container, that a process runs in."""
    words = [line.split() for line in read_text(f"/proc/{pid}/net/fib_trie").splitlines()]
    return {*_LOCAL, *(before[-1] for before, line in pairwise(words) if line[-2:] == ["host", "LOCAL"])}


def _rows(pid: int, table: str, family: int) -> list[tuple[str, str, str]]:
    """Own address, the other one, and the socket, per connection."""
    lines = [line.split() for line in read_text(f"/proc/{pid}/net/{table}").splitlines()[1:]]
    return [(*addresses_of(words, family), words[9]) for words in lines if len(words) > 9]


def _sockets(pid: int) -> set[str]:
    return {inode for _, inode in _descriptors(pid)}


def _descriptors(pid: int) -> list[tuple[int, str]]:
    """The sockets of a process; empty if we may not inspect it."""
    try:
        found = [(int(each.name), _target(each)) for each in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []
    return [(number, target[8:-1]) for number, target in found if target.startswith("socket:[")]


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _uses(pid: int, library: str) -> bool:
    return library in read_text(f"/proc/{pid}/maps")
