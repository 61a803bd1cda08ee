"""The embedded trainer, as a framework like the others."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="rldbg",
    title="rldbg train",
    package=__name__,
    modules=("rldbg.trainer",),
    distributions=("rldbg",),
    replay="rollout_worker.type=mock with rollout_worker.trajectory_load_path=RECORDING",
)
