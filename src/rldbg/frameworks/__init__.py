"""The registry of frameworks: the only place that names one.

Each framework is a folder here, or a package of another distribution that declares it in its metadata:

    [project.entry-points."rldbg.frameworks"]
    my_rl = "my_rl.rldbg_support:FRAMEWORK"

The registry imports nothing of rldbg but the core; a framework's parts may import the packages that use them (a layout
needs the formats of `recording`) and are loaded by name on request.
"""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.frameworks.base import Framework
    from rldbg.frameworks.hook_findings import nothing_hooked, read_hooks, recorded_config, recording_findings
    from rldbg.frameworks.loss_form import LossForm
    from rldbg.frameworks.parameter_selection import parameter_patterns
    from rldbg.frameworks.record_plan import RecordPlan, plan_for
    from rldbg.frameworks.registry import (
        ENTRY_POINTS,
        GENERIC,
        all_hooks,
        find_framework,
        frameworks,
        lineage,
        recorded_hooks,
    )
    from rldbg.frameworks.support import CAPABILITIES, HookState, Support, support_of

__getattr__, __dir__ = lazy_names(__name__)
