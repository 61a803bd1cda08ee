"""The documentation site is built without a warning, and its pages fetch nothing from elsewhere."""

import re
import shutil
import subprocess
import sys

import pytest

from documented_commands import ROOT

# A link that a reader may follow is no request; these are.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'> ]+"
    r"|<link\b[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|dns-prefetch|icon|manifest)[^>]*\bhref=[\"']?(?:https?:)?//[^>]+"
    r"|<link\b[^>]*\bhref=[\"']?(?:https?:)?//[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|icon)[^>]*"
    r"|@import\s+(?:url\()?[\"']?(?:https?:)?//[^;]+|url\([\"']?(?:https?:)?//[^)]+"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    shutil.copy(ROOT / "zensical.toml", folder)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_every_page_is_built_and_has_its_title(site):
    for page in (ROOT / "docs").rglob("*.md"):
        built = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        assert built.is_file() and "<h1" in built.read_text(encoding="utf-8"), built


def test_no_page_or_style_fetches_anything_from_elsewhere(site):
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(files) > 80
    fetched = {f"{file.name}: {hit[0][:120]}" for file in files for hit in FETCHED.finditer(file.read_text("utf-8"))}
    assert fetched == set()


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://unpkg.com/x"></script>',
        '<link rel="stylesheet" href="//fonts.googleapis.com/css">',
        "@import url(https://a.b/c.css);",
        "p { background: url('http://a.b/c.png') }",
    ],
)
def test_what_would_fetch_is_recognised(page):
    assert FETCHED.search(page)
