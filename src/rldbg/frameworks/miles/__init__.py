"""miles: a fork of slime."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="miles",
    title="miles",
    package=__name__,
    modules=("miles",),
    based_on="slime",
    tested="the real losses of miles-rl 0.0.2, and a stub of the shape of miles 31f1ca9",
)
