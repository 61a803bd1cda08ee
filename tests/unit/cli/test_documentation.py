"""Every block of commands is run or says why not, every test that a page names exists, every page is in the menu."""

import re

from documented_commands import ROOT, blocks, pages
from rldbg.doctor import Library


def test_every_block_of_commands_is_run_or_says_why_not():
    silent = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        # A reason before the first heading counts for the whole page.
        if "<!-- not run: " in text.partition("\n# ")[0]:
            continue
        silent += [str(each) for each in blocks(page) if each.language == "bash" and not each.mark]
    assert silent == []


def test_every_test_that_is_named_exists():
    for page in pages():
        for file, name in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text(encoding="utf-8")):
            assert (ROOT / file).is_file(), f"{page.name}: {file}"
            assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), (
                f"{page.name}: {file}::{name}"
            )


def test_every_failure_that_is_named_is_known():
    known = Library.load(()).entries
    for page in pages():
        named = re.findall(r"doctor --explain ([a-z0-9-]+)", page.read_text(encoding="utf-8"))
        assert [name for name in named if name not in known] == [], page.name


def test_every_page_is_in_the_menu_of_the_site():
    menu = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    missing = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    assert [name for name in missing if f'"{name}"' not in menu] == []
