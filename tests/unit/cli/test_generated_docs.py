"""The reference pages are what the code says; `make docs` writes them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_reference_pages_are_up_to_date():
    done = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_link_of_the_readme_and_docs_leads_somewhere():
    import re

    broken = []
    for page in [*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []
