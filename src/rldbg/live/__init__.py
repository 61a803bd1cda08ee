"""The live plane: a broker that holds debug sessions, and its clients. Names are loaded when first used."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.live.client.breakpoint_warning import breakpoint_warning
    from rldbg.live.client.broker_client import BrokerClient
    from rldbg.live.client.broker_process import is_alive, start_broker, stop_broker
    from rldbg.live.client.editor_port import EditorPort, launch_configuration, write_launch_configuration
    from rldbg.live.client.target import connect_target, find_run
    from rldbg.live.diagnosis.flight_recorder import Dumps, diagnose_dumps, read_dumps
    from rldbg.live.diagnosis.hang import Diagnosis, diagnose
    from rldbg.live.diagnosis.stack_groups import StackGroup, diagnose_stacks, group_stacks
    from rldbg.live.diagnosis.waits import Mismatch, Pending, RankView, Waits
    from rldbg.live.prompt.broadcast import BroadcastResult, ProcessGroup, broadcast, execute_on, is_continue
    from rldbg.live.prompt.commands import Commands, OtherProcesses, Outcome
    from rldbg.live.prompt.crash_file import CrashFile
    from rldbg.live.prompt.debuggee import BrokerDebuggee
    from rldbg.live.prompt.grouping import AnswerGroup, RankAnswer, Spread, compress, group_answers
    from rldbg.live.prompt.pdb_commands import CommandResult, PdbCommands
    from rldbg.live.prompt.prompt import Prompt
    from rldbg.live.prompt.prompt_text import break_text

__all__ = [
    "AnswerGroup",
    "BroadcastResult",
    "BrokerClient",
    "BrokerDebuggee",
    "CommandResult",
    "Commands",
    "CrashFile",
    "Diagnosis",
    "Dumps",
    "EditorPort",
    "Mismatch",
    "OtherProcesses",
    "Outcome",
    "PdbCommands",
    "Pending",
    "ProcessGroup",
    "Prompt",
    "RankAnswer",
    "RankView",
    "Spread",
    "StackGroup",
    "Waits",
    "break_text",
    "breakpoint_warning",
    "broadcast",
    "compress",
    "connect_target",
    "diagnose",
    "diagnose_dumps",
    "diagnose_stacks",
    "execute_on",
    "find_run",
    "group_answers",
    "group_stacks",
    "is_alive",
    "is_continue",
    "launch_configuration",
    "read_dumps",
    "start_broker",
    "stop_broker",
    "write_launch_configuration",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "breakpoint_warning": "client.breakpoint_warning",
        "BrokerClient": "client.broker_client",
        "is_alive": "client.broker_process",
        "start_broker": "client.broker_process",
        "stop_broker": "client.broker_process",
        "EditorPort": "client.editor_port",
        "launch_configuration": "client.editor_port",
        "write_launch_configuration": "client.editor_port",
        "connect_target": "client.target",
        "find_run": "client.target",
        "Dumps": "diagnosis.flight_recorder",
        "read_dumps": "diagnosis.flight_recorder",
        "diagnose_dumps": "diagnosis.flight_recorder",
        "Diagnosis": "diagnosis.hang",
        "Pending": "diagnosis.waits",
        "RankView": "diagnosis.waits",
        "Mismatch": "diagnosis.waits",
        "Waits": "diagnosis.waits",
        "diagnose": "diagnosis.hang",
        "StackGroup": "diagnosis.stack_groups",
        "diagnose_stacks": "diagnosis.stack_groups",
        "group_stacks": "diagnosis.stack_groups",
        "BroadcastResult": "prompt.broadcast",
        "ProcessGroup": "prompt.broadcast",
        "broadcast": "prompt.broadcast",
        "execute_on": "prompt.broadcast",
        "is_continue": "prompt.broadcast",
        "Commands": "prompt.commands",
        "OtherProcesses": "prompt.commands",
        "Outcome": "prompt.commands",
        "CrashFile": "prompt.crash_file",
        "BrokerDebuggee": "prompt.debuggee",
        "AnswerGroup": "prompt.grouping",
        "RankAnswer": "prompt.grouping",
        "Spread": "prompt.grouping",
        "compress": "prompt.grouping",
        "group_answers": "prompt.grouping",
        "CommandResult": "prompt.pdb_commands",
        "PdbCommands": "prompt.pdb_commands",
        "Prompt": "prompt.prompt",
        "break_text": "prompt.prompt_text",
    },
)
