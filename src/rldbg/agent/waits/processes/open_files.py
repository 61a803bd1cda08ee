"""What is behind the file descriptors of a process: files, pipes, sockets, and who has their other ends; what was
written into files and is still in their buffers."""

import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..code.places import is_users
from ..code.source import Sources
from ..reading.kernel import Facts, read_text
from ..reading.objects import Frame, Object
from ..reading.unix_sockets import listening_path

_STANDARD = {"stdout": "its standard output", "stderr": "its standard error"}
_TCP = {"01": "established", "02": "connecting", "08": "closed by its peer", "0A": "listening", "04": "closing"}


def file_facts(pid: int, descriptor: int) -> Facts:
    """What is behind a descriptor: kind, path, and for sockets and pipes the other end."""
    try:
        target = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:
        return {"descriptor": descriptor, "kind": "unknown"}
    facts: Facts = {"descriptor": descriptor, "path": target}
    if target.startswith("pipe:"):
        return facts | {"kind": "pipe", "inode": target[6:-1]}
    if _is_named_pipe(pid, descriptor):
        return facts | {"kind": "pipe", "inode": target}
    if target.startswith("socket:["):
        return facts | {"kind": "socket", "inode": target[8:-1]} | _socket_facts(pid, target[8:-1])
    if target.startswith("anon_inode:"):
        return facts | {"kind": "events"}
    if target.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return facts | {"kind": "terminal"}
    return facts | {"kind": "file"}


def _is_named_pipe(pid: int, descriptor: int) -> bool:
    """Its ends are known by its path, where others are known by a number."""
    try:
        return stat.S_ISFIFO(Path(f"/proc/{pid}/fd/{descriptor}").stat().st_mode)
    except OSError:
        return False


def _socket_facts(pid: int, inode: str) -> Facts:
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in read_text(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[9] == inode:
                listens = words[3] == "0A"
                return {
                    "local": _address(words[1], family),
                    "peer": "" if listens else _address(words[2], family),
                    "connection": _TCP.get(words[3], words[3]),
                    "unanswered_bytes": int(words[4].split(":")[0], 16),
                }
    path = listening_path(read_text(f"/proc/{pid}/net/unix"), inode)
    return {"local": path} if path else {}


def any_listens(pid: int, descriptors: list[int]) -> bool:
    """Whether one of them is a socket that accepts connections."""
    tables = [read_text(f"/proc/{pid}/net/{table}") for table in ("tcp", "tcp6")] if descriptors else []
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    listening = {f"socket:[{row[9]}]" for row in rows if len(row) > 9 and row[3] == "0A"}
    local = read_text(f"/proc/{pid}/net/unix") if descriptors else ""
    for descriptor in descriptors:
        try:
            target = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
        except OSError:
            continue
        if target in listening or (target.startswith("socket:[") and listening_path(local, target[8:-1])):
            return True
    return False


def other_end(pid: int, file: Facts) -> str | None:
    """The inode of the other end of a connection within this host: "" when it is closed, "0" when it was not accepted
    yet. None for connections to other hosts."""
    if str(file["peer"]).rpartition(":")[0] not in ("127.0.0.1", "::1", str(file["local"]).rpartition(":")[0]):
        return None
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in read_text(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            words = line.split()
            if _address(words[1], family) == file["peer"] and _address(words[2], family) == file["local"]:
                return words[9]
    return ""


def listener(pid: int, address: str) -> str:
    """The inode of the socket of this host that listens at an address, on it alone or on all; empty when none does."""
    port = address.rpartition(":")[2]
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in read_text(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and _address(words[1], family) in (address, f"0.0.0.0:{port}", f":::{port}"):
                return words[9]
    return ""


def addresses_of(words: list[str], family: int) -> tuple[str, str]:
    """Own and other address in a line of the kernel's table of connections."""
    return _address(words[1], family), _address(words[2], family)


def _address(text: str, family: int) -> str:
    host, _, port = text.partition(":")
    raw = bytes.fromhex(host)
    # Each group of four bytes is in the order of this machine.
    swapped = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    name = socket.inet_ntop(family, swapped)
    return f"{name.removeprefix('::ffff:')}:{int(port, 16)}"


def ends_of(inode: str, everyone: dict[int, Facts]) -> list[Facts]:
    """Who holds a pipe or socket open: process, descriptor, and whether it can read or write there."""
    found = []
    wanted = (f"pipe:[{inode}]", f"socket:[{inode}]", inode)
    for pid in everyone:
        try:
            descriptors = [each.name for each in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                if str(Path(f"/proc/{pid}/fd/{descriptor}").readlink()) in wanted:
                    flags = int(read_text(f"/proc/{pid}/fdinfo/{descriptor}").partition("flags:")[2].split()[0], 8)
                    found.append({"pid": pid, "descriptor": int(descriptor), "writes": flags & 3 > 0})
            except (OSError, ValueError, IndexError):
                continue
    return found


def unflushed(modules: Mapping[str, Object], frames: Iterable[Frame], sources: Sources) -> list[Facts]:
    """Files whose buffer still has what was written into them: the descriptor of each, what it is called, and how many
    bytes; of standard files, and of those that the current functions of the user can reach."""
    found: dict[int, Facts] = {}
    for value, name in (*_standard(modules), *_reached(frames, sources)):
        size = value.unwritten()
        number = value.descriptor() if size else None
        # A file of text comes before the one of bytes that it has.
        if number is not None and found.get(number, {"size": 0})["size"] < size:
            found[number] = {"descriptor": number, "name": name, "size": size}
    return list(found.values())


def _standard(modules: Mapping[str, Object]) -> Iterator[tuple[Object, str]]:
    module = modules.get("sys")
    for name, called in _STANDARD.items() if module is not None else ():
        if module is not None and (value := module.get(name)) is not None:
            yield value, called


def _reached(frames: Iterable[Frame], sources: Sources) -> Iterator[tuple[Object, str]]:
    for frame in (frame for frame in frames if is_users(frame.file)):
        yield from ((value, f"`{name}`") for value, name in sources.names(frame))
        for name, value in frame.locals().items():
            yield value, f"`{name}`"
            yield from ((each, f"`{name}.{inner}`") for inner, each in value.attributes().items())
