"""Which addresses a machine listens on, from the text of its /proc/net/tcp and tcp6: needs no tool there but `cat`."""

import ipaddress
from collections.abc import Iterator

_LISTEN = "0A"


def listening(text: str) -> dict[int, list[str]]:
    """Port -> addresses. 0.0.0.0 and :: mean every address of the machine."""
    found: dict[int, list[str]] = {}
    for address, port in _sockets(text):
        found.setdefault(port, [])
        if address not in found[port]:
            found[port].append(address)
    return found


def _sockets(text: str) -> Iterator[tuple[str, int]]:
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4 or words[3] != _LISTEN or ":" not in words[1]:
            continue
        address, _, port = words[1].partition(":")
        try:
            yield _readable(bytes.fromhex(address)), int(port, 16)
        except ValueError:
            continue


def _readable(raw: bytes) -> str:
    """The kernel writes each 32-bit word in the machine's own order, which is little-endian wherever Ray runs."""
    swapped = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    address = ipaddress.ip_address(swapped)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def target_of(addresses: list[str]) -> str:
    """What to forward to from the machine itself: its loopback when that is served, else the address that is."""
    for address in addresses:
        if ipaddress.ip_address(address).is_unspecified or ipaddress.ip_address(address).is_loopback:
            return "localhost"
    return addresses[0]
