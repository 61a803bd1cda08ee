"""What runs inside the user's processes. Standard library only, and nothing of rldbg outside this directory.

The directory is loaded either as `rldbg.agent` or, where rldbg is not installed, by path as `rldbg_agent` (see
`startup/`); all imports in it are relative for that reason. Names are loaded when first used: clients need its
protocol and none of the rest.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arguments import (
        ARGUMENTS_VARIABLE,
        choose_rule,
        digest,
        edit_value,
        edited,
        option_values,
        program_of,
        written,
    )
    from .arming import HAND_DOWN, STARTUP, Arming, armed_environment, disarmed
    from .collectives import PATIENCE_S
    from .framing import (
        PEER_LIMIT_BYTES,
        PROTOCOL,
        STRANGER_LIMIT_BYTES,
        Decoder,
        Message,
        Refused,
        RequestFailed,
        WireError,
        encode,
        nonce,
        proof,
        proves,
    )
    from .hooks import find_agent, start, stop_without_a_run
    from .imports import AfterImports
    from .peer import Connection, Peer, dial
    from .process import Agent
    from .ray_process import snake_case
    from .selection import Selection, SelectionError, Subject, parse_selection
    from .settings import BrokerAddress, Settings, say
    from .startup.rldbg_startup import NOT_THE_USERS

_MODULES = {
    "arguments": (
        *("ARGUMENTS_VARIABLE", "choose_rule", "digest", "edit_value", "edited"),
        *("option_values", "program_of", "written"),
    ),
    "arming": ("HAND_DOWN", "STARTUP", "Arming", "armed_environment", "disarmed"),
    "collectives": ("PATIENCE_S",),
    "framing": (
        *("PEER_LIMIT_BYTES", "PROTOCOL", "STRANGER_LIMIT_BYTES", "Decoder", "Message", "Refused"),
        *("RequestFailed", "WireError", "encode", "nonce", "proof", "proves"),
    ),
    "hooks": ("find_agent", "start", "stop_without_a_run"),
    "imports": ("AfterImports",),
    "peer": ("Connection", "Peer", "dial"),
    "process": ("Agent",),
    "ray_process": ("snake_case",),
    "selection": ("Selection", "SelectionError", "Subject", "parse_selection"),
    "settings": ("BrokerAddress", "Settings", "say"),
    "startup.rldbg_startup": ("NOT_THE_USERS",),
}


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
