"""RLinf: embodied and reasoning agents on Ray."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="rlinf",
    title="RLinf",
    package=__name__,
    modules=("rlinf",),
    tested="a stub of the shape of RLinf 0.3",
)
