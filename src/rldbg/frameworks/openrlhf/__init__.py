"""OpenRLHF: DeepSpeed and vLLM on Ray."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="openrlhf",
    title="OpenRLHF",
    package=__name__,
    modules=("openrlhf",),
    tested="real modules of OpenRLHF 0.11.2",
)
