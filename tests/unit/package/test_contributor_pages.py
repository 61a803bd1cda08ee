"""Pages for contributors name files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = ("CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_path_on_the_page_exists(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|tests|docs|\.ci|\.github)/[\w./-]+)`", text)
    assert [path for path in named if not (ROOT / path).exists() and "NAME" not in path] == []
    modules = re.findall(r"`(rldbg(?:\.\w+)+)`", text)
    missing = [name for name in modules if not _exists(name)]
    assert missing == []


def _exists(name):
    """A module or package, or a name that a package defines."""
    parts = name.split(".")
    for end in (len(parts), len(parts) - 1):
        path = ROOT / "src" / Path(*parts[:end])
        if path.is_dir() or path.with_suffix(".py").is_file():
            return True
    return False


def flows():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = text.split("## Five flows")[1].split("\n## ")[0]
    parts = [part.partition("**:") for part in re.split(r"\n\d\. \*\*", section)[1:]]
    return {title: re.findall(r"`([\w/]+)`", body) for title, _, body in parts}


def test_five_flows_name_existing_modules_and_none_twice():
    found = flows()
    assert len(found) == 5
    for title, modules in found.items():
        assert len(modules) >= 6, title
        assert len(modules) == len(set(modules)), title
        package = ROOT / "src/rldbg"
        missing = [name for name in modules if not (package / f"{name}.py").is_file() and not (package / name).is_dir()]
        assert missing == [], title
