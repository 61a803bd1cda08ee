"""What is installed beside rldbg: for `rldbg --version`, and so for reports of bugs."""

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from rldbg.version import __version__

_PACKAGES = ("torch", "ray", "transformers", "numpy", "debugpy", "py-spy", "mcp")


def version_lines() -> Iterator[str]:
    """The version alone on the first line, as scripts expect it; nothing is imported to find the others."""
    yield f"rldbg {__version__}"
    yield f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    from rldbg.frameworks import frameworks

    known = {name: _version_of(name) for name in _PACKAGES}
    # Where another project has a framework's name on the public index, the name says nothing.
    others = [each.distribution for each in frameworks() if each.modules and not each.only_from]
    found = known | {name: _version_of(name) for name in others if name != "rldbg"}
    yield ", ".join(f"{name} {number}" for name, number in found.items() if number)
    missing = [name for name, number in known.items() if not number]
    if missing:
        yield f"not installed: {', '.join(missing)}"


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
