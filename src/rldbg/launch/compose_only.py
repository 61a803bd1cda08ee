"""Run as a file by the training's own interpreter: `compose_only.py FUNCTION PROGRAM ARGS...`.

Starts PROGRAM as it would be started, and ends it once FUNCTION (dotted), which composes its configuration, has
returned. It needs nothing but the standard library and the framework.
"""

import importlib
import runpy
import sys
from pathlib import Path
from typing import Any, NoReturn


def main() -> None:
    _, name, *sys.argv = sys.argv
    # Before anything is imported: modules beside this file must not take the place of others.
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    place, _, function = name.rpartition(".")
    module = importlib.import_module(place)
    compose: Any = getattr(module, function)

    def compose_and_end(*args: Any, **kwargs: Any) -> NoReturn:
        compose(*args, **kwargs)
        raise SystemExit(0)

    setattr(module, function, compose_and_end)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
