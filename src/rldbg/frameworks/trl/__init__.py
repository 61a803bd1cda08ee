"""TRL: trainers of Hugging Face, plain processes."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="trl",
    title="TRL",
    package=__name__,
    modules=("trl",),
    rerun="command",
    tested="runs of TRL 1.16.0",
)
