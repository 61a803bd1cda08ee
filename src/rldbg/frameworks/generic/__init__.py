"""Programs of no framework: options that many scripts share, and the functions of torch."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="generic",
    title="any other program",
    package=__name__,
    modules=("torch",),
)
