"""Stubs of packages that need a GPU and that a framework imports without using them here."""

import importlib.machinery
import sys
import types


class _Anything(types.ModuleType):
    """Has every name; nothing of it can be called."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder:
    def __init__(self, packages):
        self._packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self._packages:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Anything(spec.name)

    def exec_module(self, module):
        pass


def stub(*packages, without=()):
    """After transformers was imported, which asks whether they are installed. Modules in `without` are missing."""
    import transformers  # noqa: F401

    sys.meta_path.append(_Finder(packages))
    sys.modules.update(dict.fromkeys(without))
