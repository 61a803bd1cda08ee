"""AReaL: asynchronous training with inference servers."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="areal",
    title="AReaL",
    package=__name__,
    modules=("areal",),
    tested="the real FSDP actor of AReaL 1.0.4 on CPU",
)
