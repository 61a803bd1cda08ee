"""NeMo RL: DTensor and Megatron policies on Ray."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="nemo_rl",
    title="NeMo RL",
    package=__name__,
    modules=("nemo_rl",),
    distributions=("nemo-rl",),
    only_from="NVIDIA-NeMo/RL",
    tested="a stub of the shape of NeMo RL 0.7.0",
)
