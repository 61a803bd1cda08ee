"""prime-rl: trainer, orchestrator and inference as separate processes."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="prime_rl",
    title="prime-rl",
    package=__name__,
    modules=("prime_rl",),
    distributions=("prime-rl",),
    tested="a stub of the shape of prime-rl 559b447",
)
