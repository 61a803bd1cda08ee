"""Which user is at the other end of a loopback connection whose client cannot prove a token."""

import socket
import sys
from pathlib import Path


def owner_of_peer(connection: socket.socket) -> int | None:
    """The user id behind an accepted connection of this host; None when it cannot be found."""
    if connection.family == socket.AF_UNIX:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int.from_bytes(credentials[4:8], sys.byteorder)
    theirs, ours = _port(connection.getpeername()[1]), _port(connection.getsockname()[1])
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        except OSError:
            continue
        for row in rows:
            # Both ends are listed: theirs is the one whose local port is theirs.
            if row[1].endswith(theirs) and row[2].endswith(ours) and _is_loopback(row[1]) and _is_loopback(row[2]):
                return int(row[7])
    return None


def _port(number: int) -> str:
    return f":{number:04X}"


def _is_loopback(address: str) -> bool:
    """Whether an address, as the kernel writes it, is loopback: 127.0.0.1 in the host's byte order, alone or mapped
    into IPv6."""
    loopback = int.from_bytes(bytes([127, 0, 0, 1]), sys.byteorder)
    return address.partition(":")[0].endswith(f"{loopback:08X}")
