"""Addresses in messages about connections, and what is said to have happened to them."""

import re
from typing import NamedTuple

_ADDRESS = re.compile(
    r"\('(?P<host>[\w.:-]{2,80})', (?P<port>\d{2,5})(?:, \d+, \d+)?\)"
    r"|host='(?P<host2>[\w.:-]{2,80})', port=(?P<port2>\d{2,5})"
    r"|(?:https?://|to host |address |at |to )\[?(?P<host3>[\w.-]{2,80})\]?:(?P<port3>\d{2,5})\b"
)
_PATH = re.compile(r"(?:with url: |https?://[\w.\[\]:-]{2,90}(?=/))(?P<path>/[\w./-]{0,120})")
_THIS_NODE = ("127.0.0.1", "localhost", "0.0.0.0", "::1")
_REFUSED = re.compile(r"(?i)connection refused|connect call failed|cannot connect to host|connection attempts failed")
_NOBODY = re.compile(r"(?i)connection refused|connect call failed")


class Address(NamedTuple):
    """Where a program wanted to connect to."""

    host: str
    port: str

    @property
    def is_local(self) -> bool:
        """Whether it is the node of whoever asks, so another one on each node."""
        return self.host in _THIS_NODE

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def address_in(text: str) -> Address | None:
    """The first address that a message names with its port."""
    found = _ADDRESS.search(text)
    if found is None:
        return None
    host = found["host"] or found["host2"] or found["host3"]
    return Address(host, found["port"] or found["port2"] or found["port3"])


def path_in(text: str) -> str:
    """What was asked for at that address."""
    return found["path"] if (found := _PATH.search(text)) else ""


def says_nobody_listens(text: str) -> bool:
    """Whether the host answered that no program has the port open."""
    return bool(_NOBODY.search(text))


def told_refusal(said: str) -> str:
    """A sentence on the address that a message says was not to be connected to."""
    address = address_in(said) if _REFUSED.search(said) else None
    if address is None:
        return ""
    where = "this node itself" if address.is_local else f"host {address.host}"
    nobody = "nothing listened on" if says_nobody_listens(said) else "no connection was made to"
    return f"{nobody} port {address.port} of {where}."
