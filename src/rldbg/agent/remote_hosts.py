"""RUN/remote_hosts: one line per host that does not reach the broker where it listens, its name and its addresses.

A broker that began on loopback reads it and then listens also where these hosts reach it. It is one file that both
sides open again each time: network file systems show changes of a file at once when it is opened, those of a folder
much later.
"""

import contextlib
import fcntl
import socket
import struct
from pathlib import Path

FILE = "remote_hosts"
_SIOCGIFADDR = 0x8915
# The scope of an address of IPv6, as the kernel lists it.
_EVERYWHERE = "00"


def ask_to_be_reached(run: Path) -> None:
    """Said once per host; where nothing can be written, only `--listen` helps."""
    name = socket.gethostname()
    with contextlib.suppress(OSError), open(run / FILE, "a+", encoding="utf-8") as file:
        file.seek(0)
        if name not in (line.partition(" ")[0] for line in file):
            file.write(f"{name} {' '.join(outward_addresses())}\n")


def addresses_for(run: Path) -> list[str]:
    """The addresses of this host on the way to those that have asked, in that order. With two networks in common
    both: which of them lets a connection through is not known here."""
    try:
        lines = (run / FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    own = set(outward_addresses())
    theirs = [address for line in lines for address in line.split(" ")[1:]]
    routes = (_address_towards(address) for address in theirs if address not in own)
    return list(dict.fromkeys(each for each in routes if each and not each.startswith("127.")))


def _address_towards(address: str, family: socket.AddressFamily = socket.AF_INET) -> str:
    """Ours, on the way to another one. Nothing is sent: this only asks the routing table."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 1))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def outward_addresses_v6() -> list[str]:
    """As `outward_addresses`, of IPv6."""
    found = [_address_towards("2001:db8::1", socket.AF_INET6)]
    with contextlib.suppress(OSError, ValueError):
        rows = (row.split() for row in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines())
        found += [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows if row[3] == _EVERYWHERE]
    # An interface's own address means nothing without its name.
    return list(dict.fromkeys(each for each in found if each not in ("", "::1") and not each.startswith("fe80:")))


def outward_addresses() -> list[str]:
    """The addresses of this host without loopback, that of the default route first, as Ray chooses it too."""
    found = [_address_towards("10.255.255.255")]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return list(dict.fromkeys(each for each in found if each and not each.startswith("127.")))
