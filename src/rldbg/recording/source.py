"""What an open recording offers to those who look through it: `Recording` is one, and imports them."""

from typing import Any, Protocol, Self

from rldbg.core import Run
from rldbg.recording.layouts import Entry, Layout, Listing
from rldbg.recording.records import Record
from rldbg.recording.tree import Tree


class RecordSource(Protocol):
    tree: Tree
    layout: Layout
    run: Run | None

    @property
    def title(self) -> str: ...

    @property
    def listing(self) -> Listing: ...

    def read_entry(self, entry: Entry) -> Record: ...

    def count_rows(self, entry: Entry) -> int: ...

    def relisted(self) -> Self: ...

    def run_facts(self) -> dict[str, Any]: ...
