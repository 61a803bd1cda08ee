"""The only places that name a framework's classes and functions."""

from rldbg.integrations.phases import profile_hooks

__all__ = ["profile_hooks"]
