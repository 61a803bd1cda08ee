"""For clusters whose workers do not inherit the environment of `rldbg run`: verl imports this module in each process.

By its plug-in group, where rldbg is installed, or by VERL_USE_EXTERNAL_MODULES. Nothing happens unless RLDBG_RECORD_DIR
(or the run's own RLDBG_RECORD_HOOKS) asks for a recording.
"""

from importlib import import_module

from rldbg.frameworks.record_plan import RecordPlan

if RecordPlan.from_environment() is not None:
    import_module("rldbg.frameworks.recorded").hook_imports()
