"""Why rollout and trainer give different log probs to the same tokens: shares per cause, and experiments."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.mismatch.attribution import MismatchCause, MismatchReport, explain_mismatch
    from rldbg.mismatch.experiments import EngineScores, ProbeReport, probe
    from rldbg.mismatch.factors import Factor
    from rldbg.mismatch.metrics import METRICS

__getattr__, __dir__ = lazy_names(__name__)
