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


def test_both_readmes_show_the_same_commands_pictures_and_links_in_under_200_lines():
    def facts(name):
        text = (ROOT / name).read_text(encoding="utf-8")
        code = [
            (
                each.language,
                each.mark,
                [line.split("  #")[0].split(" # ")[0].rstrip() for line in each.text.splitlines()],
            )
            for each in blocks(ROOT / name)
        ]
        return code, re.findall(r"\]\((docs/[^)]+)\)", text), text.count("\n## "), text.count("\n")

    english, chinese = facts("README.md"), facts("README.zh.md")
    assert english[0] == chinese[0]
    assert english[1:3] == chinese[1:3]
    assert max(english[3], chinese[3]) < 200


def test_pictures_fetch_nothing_and_are_small():
    for file in (ROOT / "docs" / "images").iterdir():
        assert file.stat().st_size < 120_000, file.name
        if file.suffix == ".svg":
            found = re.findall(r"https?://[^\s\"')]+", file.read_text(encoding="utf-8"))
            assert set(found) <= {"http://www.w3.org/2000/svg"}, file.name


def test_help_shows_pages_without_their_remarks_in_the_order_of_names(capsys):
    from rldbg.cli.application import run
    from rldbg.cli.help import title_of, topics

    assert run(["help", "hangs"]) == 0
    assert "<!--" not in capsys.readouterr().out
    assert list(topics()) == sorted(topics())
    assert [name for name, page in topics().items() if "`" in title_of(page) and "/" not in name] == ["serve_fields"]
