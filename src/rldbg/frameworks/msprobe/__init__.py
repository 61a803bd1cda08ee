"""msprobe (mindstudio-probe): dumps of the tensors of modules and functions."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="msprobe",
    title="msprobe",
    package=__name__,
    modules=("msprobe",),
    distributions=("mindstudio-probe",),
)
