"""NexRL: training against self-hosted or remote training services."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="nexrl",
    title="NexRL",
    package=__name__,
    modules=("nexrl",),
    replay="rollout_worker.type=mock with the files that rldbg convert --to nexrl-pt writes",
    tested="a stub of the shape of NexRL 1.4.0",
)
