"""Whether a stage differs given what came in: how much of an upstream difference each stage may pass on."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.analysis.noise.certain import judge_by_rules
    from rldbg.analysis.noise.judging import judge_with_noise
    from rldbg.analysis.noise.levels import NoiseLevel
    from rldbg.analysis.noise.repetition import judge_by_repetitions

__getattr__, __dir__ = lazy_names(__name__)

__all__ = ["NoiseLevel", "judge_by_repetitions", "judge_by_rules", "judge_with_noise"]
