"""miles: a fork of slime."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="miles",
    title="miles",
    package=__name__,
    modules=("miles",),
    based_on="slime",
    tested="a stub of the shape of miles 31f1ca9",
)
