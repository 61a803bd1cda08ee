"""The reference pages are what the code says; `make docs` writes them."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CLICK = re.search(r"^click==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


@pytest.mark.skipif(
    CLICK is None or version("click") != CLICK[1], reason="other versions of click word usage otherwise"
)
def test_reference_pages_are_up_to_date():
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_link_of_the_readme_and_docs_leads_somewhere():
    broken = []
    for page in [*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []
