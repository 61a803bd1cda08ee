"""What is installed beside rldbg: for `rldbg --version`, and so for reports of bugs."""

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from rldbg.version import __version__

_PACKAGES = ("torch", "ray", "transformers", "vllm", "sglang", "verl", "trl", "numpy", "debugpy", "py-spy", "mcp")


def version_lines() -> Iterator[str]:
    """The version alone on the first line, as scripts expect it; nothing is imported to find the others."""
    yield f"rldbg {__version__}"
    yield f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    found = {name: _version_of(name) for name in _PACKAGES}
    yield ", ".join(f"{name} {number}" for name, number in found.items() if number)
    missing = [name for name, number in found.items() if not number]
    if missing:
        yield f"not installed: {', '.join(missing)}"


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
