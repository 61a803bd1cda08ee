"""The live plane: a broker that holds debug sessions, and the clients that use it. Names are loaded when first used."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.live.casting import CastResult, Crowd, cast, execute_on, is_continue
    from rldbg.live.client import BrokerClient
    from rldbg.live.commands import Commands, Neighbours, Outcome
    from rldbg.live.crash_file import CrashFile
    from rldbg.live.debuggee import BrokerDebuggee
    from rldbg.live.flight_recorder import read_dumps
    from rldbg.live.folding import Fold, RankAnswer, Spread, compress, fold
    from rldbg.live.hang import Diagnosis, Pending, RankView, diagnose
    from rldbg.live.ide import EditorPort, launch_configuration, write_launch_configuration
    from rldbg.live.launcher import start_broker, stop_broker
    from rldbg.live.pdb_words import Answer, PdbWords
    from rldbg.live.prompt import Prompt
    from rldbg.live.prompt_text import break_text
    from rldbg.live.source_file import lines_with_code
    from rldbg.live.stack_groups import StackGroup, diagnose_stacks, group_stacks
    from rldbg.live.target import connect_target, find_run, is_alive

__all__ = [
    "Answer",
    "BrokerClient",
    "BrokerDebuggee",
    "CastResult",
    "Commands",
    "CrashFile",
    "Crowd",
    "Diagnosis",
    "EditorPort",
    "Fold",
    "Neighbours",
    "Outcome",
    "PdbWords",
    "Pending",
    "Prompt",
    "RankAnswer",
    "RankView",
    "Spread",
    "StackGroup",
    "break_text",
    "cast",
    "compress",
    "connect_target",
    "diagnose",
    "diagnose_stacks",
    "execute_on",
    "find_run",
    "fold",
    "group_stacks",
    "is_alive",
    "is_continue",
    "launch_configuration",
    "lines_with_code",
    "read_dumps",
    "start_broker",
    "stop_broker",
    "write_launch_configuration",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CastResult": "casting",
        "Crowd": "casting",
        "cast": "casting",
        "execute_on": "casting",
        "is_continue": "casting",
        "BrokerClient": "client",
        "Commands": "commands",
        "Neighbours": "commands",
        "Outcome": "commands",
        "CrashFile": "crash_file",
        "BrokerDebuggee": "debuggee",
        "Fold": "folding",
        "RankAnswer": "folding",
        "Spread": "folding",
        "compress": "folding",
        "fold": "folding",
        "connect_target": "target",
        "find_run": "target",
        "is_alive": "target",
        "start_broker": "launcher",
        "stop_broker": "launcher",
        "Answer": "pdb_words",
        "PdbWords": "pdb_words",
        "break_text": "prompt_text",
        "Prompt": "prompt",
        "EditorPort": "ide",
        "launch_configuration": "ide",
        "write_launch_configuration": "ide",
        "read_dumps": "flight_recorder",
        "Diagnosis": "hang",
        "Pending": "hang",
        "RankView": "hang",
        "diagnose": "hang",
        "lines_with_code": "source_file",
        "StackGroup": "stack_groups",
        "diagnose_stacks": "stack_groups",
        "group_stacks": "stack_groups",
    },
)
