"""Arms and starts training scripts and commands; tunnels to clusters."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.launch.armed_run import RunOutcome, run_armed
    from rldbg.launch.explanation import Explained, LaunchExplanation, explain
    from rldbg.launch.framework_rerun import framework_of, rerun_step
    from rldbg.launch.laptop import in_one_process
    from rldbg.launch.profile import profiles
    from rldbg.launch.request import Request, resolve_command

__getattr__, __dir__ = lazy_names(__name__)
