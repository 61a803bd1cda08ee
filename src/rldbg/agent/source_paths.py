"""Under which path this process knows a file that somebody else names."""

import sys
from pathlib import Path


def resolve_file(name: str) -> str:
    """As a loaded module has it, as given, under the working directory, or as a loaded module whose path ends alike (a
    copy in a Ray working directory, a container's mount); also a module's own name. Empty when nothing fits yet."""
    loaded = {str(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    if "/" not in name and not name.endswith(".py"):
        return getattr(sys.modules.get(name), "__file__", None) or ""
    if Path(name).exists():
        # The same file by another way, a link for instance: debuggers compare names.
        return name if name in loaded else next((file for file in loaded if _is_same(file, name)), name)
    parts = Path(name).parts
    for start in range(1, len(parts)):
        candidate = Path.cwd().joinpath(*parts[start:])
        if candidate.exists():
            return str(candidate)
    for start in range(1, len(parts)):
        suffix = f"/{Path(*parts[start:])}"
        matches = [file for file in loaded if file.endswith(suffix)]
        if len(matches) == 1:
            return matches[0]
    return ""


def _is_same(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return False
