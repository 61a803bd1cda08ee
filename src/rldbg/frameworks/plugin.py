"""Entry point for processes outside an armed run: engines and frameworks load it through their own plug-in groups.

Nothing happens unless RLDBG_RECORD_DIR, or a run's own RLDBG_RECORD_HOOKS, asks for a recording.
"""

from rldbg.frameworks.record_plan import RecordPlan


def register() -> None:
    """Hooks what is imported from now on."""
    if RecordPlan.from_environment() is not None:
        from rldbg.frameworks.recorded import hook_imports

        hook_imports()
