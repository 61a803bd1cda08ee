"""check and compare: find the first stage, step, rank, sample and token that is wrong."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.analysis.checking import CheckReport, check
    from rldbg.analysis.checks import CHECKS
    from rldbg.analysis.comparison import compare
    from rldbg.analysis.explain import Explanation
    from rldbg.analysis.explain.contexts import NOISE, context_of, within
    from rldbg.analysis.explain.evidence import fit_factor, round_to
    from rldbg.analysis.explain.passes import SideStep
    from rldbg.analysis.explain.rollout import has_both_signs, trainer_name
    from rldbg.analysis.explain.subsets import Gap, confined_to, turn_of
    from rldbg.analysis.mismatch_measures import mismatch_metrics
    from rldbg.analysis.noise_recordings import noise_beside, noise_folder
    from rldbg.analysis.results import COMPARISON_FINDINGS, VERDICTS, Comparison, FieldResult, FirstDifference, Verdict
    from rldbg.analysis.routes import agreement_by_token, route_agreement
    from rldbg.analysis.run_metrics import reported_metrics
    from rldbg.analysis.samples import StepSamples, pair_samples
    from rldbg.analysis.side import Side
    from rldbg.analysis.stages import Stage, stage_of
    from rldbg.analysis.step_metrics import MetricRow, export_metrics, metric_names, metrics_by_step
    from rldbg.analysis.token_strips import Strip, Strips, Token, TokenDecoder, strips_of
    from rldbg.analysis.tokens import SampleTokens, Values, read_tokens
    from rldbg.analysis.tolerances import Tolerance, Tolerances

__getattr__, __dir__ = lazy_names(__name__)
