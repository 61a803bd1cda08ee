"""OpenRLHF: DeepSpeed and vLLM on Ray."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="openrlhf",
    title="OpenRLHF",
    package=__name__,
    modules=("openrlhf",),
)
