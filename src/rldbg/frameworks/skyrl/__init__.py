"""SkyRL: FSDP or Megatron policies on Ray."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="skyrl",
    title="SkyRL",
    package=__name__,
    modules=("skyrl", "skyrl_train"),
    distributions=("skyrl", "skyrl-train"),
    tested="the real trainer and policy worker of SkyRL 0.3.0",
)
