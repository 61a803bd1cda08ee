"""What runs inside the user's processes. Standard library only, and nothing of rldbg outside this directory.

The directory is loaded either as `rldbg.agent` or, where rldbg is not installed, by path as `rldbg_agent` (see
`startup/`); all imports in it are relative for that reason.
"""

from .collectives import PATIENCE_S
from .hooks import find_agent, start, stop_without_a_run
from .process import Agent
from .ray_process import snake_case
from .selection import Selection, SelectionError, Subject, parse_selection
from .settings import BrokerAddress, Settings
from .wire import (
    PEER_LIMIT_BYTES,
    PROTOCOL,
    STRANGER_LIMIT_BYTES,
    Connection,
    Decoder,
    Message,
    Refused,
    WireError,
    dial,
    encode,
    nonce,
    proof,
    proves,
)

__all__ = [
    "PATIENCE_S",
    "PEER_LIMIT_BYTES",
    "PROTOCOL",
    "STRANGER_LIMIT_BYTES",
    "Agent",
    "BrokerAddress",
    "Connection",
    "Decoder",
    "Message",
    "Refused",
    "Selection",
    "SelectionError",
    "Settings",
    "Subject",
    "WireError",
    "dial",
    "encode",
    "find_agent",
    "nonce",
    "parse_selection",
    "proof",
    "proves",
    "snake_case",
    "start",
    "stop_without_a_run",
]
