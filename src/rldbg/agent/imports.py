"""Does something to a module when the user's program imports it, and never makes the program import anything."""

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .settings import say

AfterImport = Callable[[ModuleType], None]


class AfterImports:
    """A finder that finds nothing itself: it lets the others find a watched module and acts after it has run.

    No subclass of importlib.abc's: loading that takes as long as loading the whole agent.
    """

    def __init__(self, actions: dict[str, AfterImport]) -> None:
        self._actions = dict(actions)

    def install(self) -> None:
        for name in list(self._actions):
            if name in sys.modules:
                _act(self._actions.pop(name), sys.modules[name])
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        action = self._actions.pop(fullname, None)
        if action is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, action)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """The module's own loader, with one action more at the end."""

    def __init__(self, loader: Any, action: AfterImport) -> None:
        self._loader = loader
        self._action = action

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        _act(self._action, module)


def _act(action: AfterImport, module: ModuleType) -> None:
    try:
        action(module)
    except Exception as error:  # noqa: BLE001 - the user's import must succeed whatever we break
        say(f"could not prepare {module.__name__}: {type(error).__name__}: {error}")
