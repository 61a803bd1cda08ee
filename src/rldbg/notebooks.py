"""`rldbg.view`, for notebooks: the application of `rldbg ui` in a frame."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rldbg.recording import Recording


def view(*runs: "Path | str | Recording", height: int = 640, tokenizer: str | None = None) -> Any:
    """Open runs, recordings or folders of them in a frame of a notebook; several runs can be compared there.

    The result has `url`, which opens the page elsewhere, and `close()`, which ends its server.
    """
    # By name: the application stands above every other package, and this module below all of them.
    return importlib.import_module("rldbg.ui").View(runs, height=height, tokenizer=tokenizer)
