"""verl: PPO, GRPO and their relatives on Ray."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="verl",
    title="verl",
    package=__name__,
    modules=("verl",),
    tested="runs of verl 0.9.1 on CPU",
)
