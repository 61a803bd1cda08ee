"""Local (unix) sockets: where one listens, and its other end, which the kernel tells only over a netlink socket."""

import socket
import struct

_NETLINK_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
_SHOW_PEER, _PEER, _NO_COOKIE = 4, 2, 0xFFFFFFFF
_HEADER, _MESSAGE = 16, 16
_LISTENS = 1 << 16


def unix_peer(inode: str) -> str:
    """The inode of the socket that a local socket is connected to; empty when there is none, or it is not told."""
    asked = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0, int(inode), _SHOW_PEER, _NO_COOKIE, _NO_COOKIE)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as link:
            link.settimeout(1.0)
            link.send(struct.pack("=IHHII", _HEADER + len(asked), _BY_FAMILY, _REQUEST, 1, 0) + asked)
            answer = link.recv(4096)
    except (OSError, AttributeError):
        return ""
    at = _HEADER + _MESSAGE
    if len(answer) < at or struct.unpack_from("=H", answer, 4)[0] != _BY_FAMILY:
        return ""
    while at + 8 <= len(answer):
        size, kind = struct.unpack_from("=HH", answer, at)
        if kind == _PEER:
            return str(struct.unpack_from("=I", answer, at + 4)[0])
        at += max((size + 3) & ~3, 4)
    return ""


def listening_path(table: str, inode: str) -> str:
    """Where a local socket listens, by the kernel's table of them; empty when it does not."""
    rows = (line.split() for line in table.splitlines()[1:])
    own = next((row for row in rows if len(row) > 6 and row[6] == inode and int(row[3], 16) & _LISTENS), None)
    return "" if own is None else own[7] if len(own) > 7 else "a local socket"
