"""Which user is at the other end of a loopback connection whose client cannot prove a token.

The kernel lists every connection with its owner. Only the row of this very connection counts (both addresses, both
ports), and only while both ends are open: a socket that its process has closed is listed with user 0, whoever it was.
"""

import ipaddress
import os
import socket
import struct
import sys
from pathlib import Path

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_ESTABLISHED = 1
_WHOLE_HOST = ["0", "0", "4294967295"]


def owner_of_peer(connection: socket.socket) -> int | None:
    """The user id behind an accepted connection of this host; None when it is not proved: nobody is listed, or the
    other end has been closed, if only for writing."""
    if connection.family == socket.AF_UNIX:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return _known(int.from_bytes(credentials[4:8], sys.byteorder))
    try:
        theirs, ours = _written(connection.getpeername()), _written(connection.getsockname())
    except OSError:
        # The other end has reset it.
        return None
    owner = _listed_owner(theirs, ours)
    # Looked at last: as long as our end is established, no other socket can have had the other end's addresses.
    return owner if owner is not None and _state(connection) == _ESTABLISHED else None


def _listed_owner(theirs: set[str], ours: set[str]) -> int | None:
    for table in _TABLES:
        try:
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        except OSError:
            continue
        for row in rows:
            # Both ends are listed: theirs is the one whose local address is theirs.
            if row[1] in theirs and row[2] in ours:
                is_open = int(row[3], 16) == _ESTABLISHED and int(row[9]) != 0
                return _known(int(row[7])) if is_open else None
    return None


def _state(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def _known(user: int) -> int | None:
    """None for the number that stands for all users of the host whom this user namespace does not know."""
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
        is_whole = Path("/proc/self/uid_map").read_text().split() == _WHOLE_HOST
    except OSError:
        return user
    return None if user == overflow and user != 0 and not is_whole else user


def _written(address: tuple[str, int]) -> set[str]:
    """An address and port as the kernel writes them: words in the host's byte order; IPv4 also mapped into IPv6."""
    ip, port = ipaddress.ip_address(address[0].partition("%")[0]), address[1]
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    plain = ip if mapped is None else mapped
    forms = {_hex(plain.packed)}
    if isinstance(plain, ipaddress.IPv4Address):
        forms.add(_hex(ipaddress.IPv6Address(f"::ffff:{plain}").packed))
    return {f"{form}:{port:04X}" for form in forms}


def _hex(packed: bytes) -> str:
    words = struct.unpack(f"!{len(packed) // 4}I", packed)
    return "".join(f"{struct.unpack('=I', struct.pack('!I', word))[0]:08X}" for word in words)


def is_trusted(user: int | None) -> bool:
    """This user, and root, who can do everything anyway."""
    return user is not None and user in (os.getuid(), 0)
