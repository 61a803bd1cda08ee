"""slime: Megatron and SGLang on Ray."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="slime",
    title="slime",
    package=__name__,
    modules=("slime",),
    replay="--load-debug-rollout-data with its own dumps",
    only_from="THUDM/slime",
    tested="a stub of the shape of slime 0.3.1",
)
