"""verl: PPO, GRPO and related algorithms on Ray."""

from importlib import import_module

from rldbg.core import Environment
from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="verl",
    title="verl",
    package=__name__,
    modules=("verl",),
    rerun="program",
    tested="runs of verl 0.9.1 on CPU",
)

# VERL_USE_EXTERNAL_MODULES=rldbg.frameworks.verl: verl imports this package to be extended by it.
if __name__ in Environment().everything().get("VERL_USE_EXTERNAL_MODULES", "").split(","):
    import_module(f"{__name__}.plugin")
