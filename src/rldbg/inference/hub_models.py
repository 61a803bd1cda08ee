"""Models by their names on the Hugging Face hub, where the local cache has them; nothing is fetched."""

import re
from pathlib import Path

from rldbg.core import Environment, UsageError

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def model_path(model: str) -> Path:
    """The folder of a model: a path, or a hub id whose snapshot is in the cache (HF_HOME, HF_HUB_CACHE)."""
    folder = Path(model).expanduser().absolute()
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or not _HUB_ID.fullmatch(model):
        raise UsageError(f"no model at {model!r}: config.json is missing", "--model tiny, or a Hugging Face folder")
    found = cached_snapshot(model)
    if found is None:
        raise UsageError(
            f"no model {model!r}: neither a folder nor in the cache {hub_cache()}",
            f"download it on a machine with network access: hf download {model}",
        )
    return found


def hub_cache() -> Path:
    environment = Environment()
    chosen = environment.text("HF_HUB_CACHE")
    home = environment.text("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    return Path(chosen) if chosen else Path(home) / "hub"


def cached_snapshot(model: str) -> Path | None:
    """The snapshot that `main` names, else the newest one with a configuration and weights."""
    folder = hub_cache() / f"models--{model.replace('/', '--')}"
    snapshots = folder / "snapshots"
    if not snapshots.is_dir():
        return None
    main = folder / "refs" / "main"
    named = snapshots / main.read_text(encoding="utf-8").strip() if main.is_file() else None
    newest = sorted(snapshots.iterdir(), key=lambda item: item.stat().st_mtime, reverse=True)
    for snapshot in ([named] if named else []) + newest:
        if (snapshot / "config.json").is_file():
            return snapshot
    return None
