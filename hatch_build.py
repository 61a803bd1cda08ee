"""Puts the pages of docs/ into the wheel, where `rldbg help` reads them."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Documentation(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # it reads those of the checkout
            return
        docs = Path(self.root) / "docs"
        for page in docs.rglob("*.md"):
            build_data["force_include"][str(page)] = f"rldbg/documentation/{page.relative_to(docs)}"
