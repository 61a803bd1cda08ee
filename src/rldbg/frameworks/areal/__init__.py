"""AReaL: asynchronous training beside inference servers."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="areal",
    title="AReaL",
    package=__name__,
    modules=("areal",),
)
