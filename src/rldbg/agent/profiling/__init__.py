"""Profiling inside a process of a profiled run: which workers and steps, the tools, the phases, and what was written.

`process` is the entry point: the start-up hook and the agent load it. Names are loaded when first used, because the
nsys supervisor and `rldbg profile` need few of them.
"""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .actors import CLUSTER, WORKERS
    from .framework_hooks import file_of, installed_version, is_expected, module_is_in
    from .memory import SLEEPS, Held, during, held
    from .nsys import INSTALL, find_nsys, nsys_options
    from .phases import BEFORE_STEPS, PHASES, HookedFunction, Phases
    from .plan import OPEN_END, OWN_VARIABLES, PLAN_VARIABLE, TEXT_VARIABLE, Hook, Plan, fresh_path
    from .process import answer, begin, join
    from .status_file import OPEN_STATES, STATUS_FILES, read_status_files
    from .window import never_began

__getattr__, __dir__ = lazy_names(__name__)
