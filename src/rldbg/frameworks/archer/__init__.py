"""ArcherCodeR: a fork of verl, started by its own DAPO program."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="archer",
    title="ArcherCodeR",
    package=__name__,
    modules=("dapo",),
    based_on="verl",
)
