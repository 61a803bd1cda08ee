"""The live plane: a broker that holds debug sessions, and its clients. Names are loaded when first used."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.live.client.breakpoints import break_place, breakpoint_warning, source_place
    from rldbg.live.client.broker_client import BrokerClient
    from rldbg.live.client.broker_process import broker_token, is_alive, start_broker, stop_broker
    from rldbg.live.client.editor_port import EditorPort, launch_configuration, write_launch_configuration
    from rldbg.live.client.target import connect_target, find_run, live_runs
    from rldbg.live.diagnosis.explanation import LOOKS_APART_S, explain, wait_of
    from rldbg.live.diagnosis.hang import HangDiagnosis, diagnose
    from rldbg.live.diagnosis.ranks.flight_recorder import Dumps, diagnose_dumps, read_dumps
    from rldbg.live.diagnosis.ranks.stack_groups import StackGroup, diagnose_stacks, group_stacks
    from rldbg.live.diagnosis.stuck_run import explain_job, explain_run
    from rldbg.live.diagnosis.waits import Mismatch, Pending, RankView, Waits
    from rldbg.live.prompt.broadcast import BroadcastResult, ProcessGroup, broadcast, execute_on, is_continue
    from rldbg.live.prompt.commands import CommandOutcome, Commands, OtherProcesses
    from rldbg.live.prompt.crash_file import CrashFile
    from rldbg.live.prompt.debuggee import BrokerDebuggee, last_recorded, members, source_lines
    from rldbg.live.prompt.grouping import AnswerGroup, RankAnswer, Spread, compress, group_answers
    from rldbg.live.prompt.pdb_commands import PdbCommands
    from rldbg.live.prompt.prompt import Prompt
    from rldbg.live.prompt.prompt_text import break_text
    from rldbg.live.prompt.selected_frame import CommandResult
    from rldbg.live.unarmed.job import UnarmedJob, UnarmedView, look_at_job
    from rldbg.live.unarmed.ray_cluster import dashboard_url, look_at_ray
    from rldbg.live.unarmed.ray_workers import ray_workers

__getattr__, __dir__ = lazy_names(__name__)
