"""For clusters whose workers do not inherit the environment of `rldbg run`: verl imports this module in each process,
by its plug-in group, where rldbg is installed, or by VERL_USE_EXTERNAL_MODULES."""

from rldbg.frameworks.plugin import register

register()
