"""Whether a stage differs given what came in: how much of an upstream difference each stage may pass on."""

from rldbg.analysis.noise.judging import judge_with_noise
from rldbg.analysis.noise.levels import NoiseLevel

__all__ = ["NoiseLevel", "judge_with_noise"]
