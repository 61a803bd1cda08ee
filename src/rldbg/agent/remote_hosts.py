"""RUN/remote_hosts: one line per host from which a broker on loopback was looked for, its name and its addresses.

The broker reads it and then listens also where these hosts reach it. It is one file that both sides open again each
time: network file systems show changes of a file at once when it is opened, those of a folder much later.
"""

import contextlib
import fcntl
import socket
import struct
from pathlib import Path

FILE = "remote_hosts"
_SIOCGIFADDR = 0x8915


def ask_to_be_reached(run: Path) -> None:
    """Said once per host; where nothing can be written, only `--listen` helps."""
    name = socket.gethostname()
    with contextlib.suppress(OSError), open(run / FILE, "a+", encoding="utf-8") as file:
        file.seek(0)
        if name not in (line.partition(" ")[0] for line in file):
            file.write(f"{name} {' '.join(_addresses())}\n")


def address_for(run: Path) -> str:
    """The address of this host at which the first of them that is on another host reaches it; empty for none."""
    try:
        lines = (run / FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    own = set(_addresses())
    theirs = [address for line in lines for address in line.split(" ")[1:]]
    routes = (_address_towards(address) for address in theirs if address not in own)
    return next((address for address in routes if address and not address.startswith("127.")), "")


def _address_towards(address: str) -> str:
    """Ours, on the way to another one. Nothing is sent: this only asks the routing table."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 1))
            return str(probe.getsockname()[0])
        except OSError:
            return ""


def outward_address() -> str:
    """That of the interface that leads outwards, as Ray chooses it too, else of the first that has one."""
    return next(iter(_addresses()), "")


def _addresses() -> list[str]:
    """The addresses of this host without loopback, that of the default route first."""
    found = [_address_towards("10.255.255.255")]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return list(dict.fromkeys(each for each in found if each and not each.startswith("127.")))
