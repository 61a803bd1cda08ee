"""What runs inside the user's processes. Standard library only, and nothing of rldbg outside this directory.

The directory is loaded either as `rldbg.agent` or, where rldbg is not installed, by path as `rldbg_agent` (see
`startup/`); all imports in it are relative for that reason. Names are loaded when first used: clients need its
protocol and none of the rest.
"""

from typing import TYPE_CHECKING

from .lazy import lazy_names

if TYPE_CHECKING:
    from .arguments import (
        ARGUMENTS_VARIABLE,
        arm_this_process,
        choose_rule,
        digest,
        edit_value,
        edited,
        option_values,
        program_of,
        written,
    )
    from .arming import HAND_DOWN, STARTUP, Arming, armed_environment, disarmed
    from .code_lines import line_to_stop_at, lines_with_code
    from .collectives import PATIENCE_S
    from .framing import (
        FAREWELL,
        PEER_LIMIT_BYTES,
        PROTOCOL,
        STRANGER_LIMIT_BYTES,
        Decoder,
        Message,
        Refused,
        RequestFailed,
        Silent,
        WireError,
        encode,
        nonce,
        proof,
        proves,
    )
    from .hooks import start, stop_without_a_run
    from .imports import AfterImports
    from .peer import Connection, Peer, dial
    from .peer_owner import is_trusted, owner_of_peer
    from .process import Agent
    from .ray_process import snake_case
    from .remote_hosts import addresses_for, ask_to_be_reached, outward_addresses, outward_addresses_v6
    from .selection import Selection, SelectionError, Subject, parse_selection
    from .settings import BrokerAddress, Settings, say
    from .stacks import TOOL_FILES, mark_as_ours
    from .startup.rldbg_startup import NOT_THE_USERS

__getattr__, __dir__ = lazy_names(__name__)
