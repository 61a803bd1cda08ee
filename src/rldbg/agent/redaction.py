"""Secrets leave this process only through `rldbg.core.redaction`, loaded from its file: the rules exist once.

The agent directory works without an installed rldbg, so the module is found by its place beside this package, or in
this package when the directory was shipped to another host. Where it is in neither place, no values are written at all.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PLACES = (Path(__file__).parent / "shipped_redaction.py", Path(__file__).parent.parent / "core" / "redaction.py")


def load_redact() -> Callable[[Any, str], Any] | None:
    """core.redaction.redact(value, name), or None when its file is not here."""
    file = next((place for place in _PLACES if place.is_file()), None)
    if file is None:
        return None
    spec = importlib.util.spec_from_file_location("rldbg_agent_redaction", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    redact: Callable[[Any, str], Any] = module.redact
    return redact
