"""DebugMode of PyTorch: a log of every operator that ran, with hashes of its outputs."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="debug_mode",
    title="torch DebugMode",
    package=__name__,
)
