"""What the journals of a recording say about its files: one finding per problem."""

import os
from collections.abc import Iterable, Iterator

from rldbg.core import Finding, is_running
from rldbg.recording.formats.checksum import crc32_of
from rldbg.recording.journal import Done, Journals, Writer
from rldbg.recording.problems import problem
from rldbg.recording.records import RecordKey
from rldbg.recording.tree import Tree


def cheap_findings(tree: Tree, journals: Journals, found: Iterable[RecordKey]) -> Iterator[Finding]:
    """Everything that names, sizes and journals tell without reading a file. `found` are keys of unjournaled files."""
    sizes = {fact.name: fact.size for fact in tree.files}
    for name, done in journals.files.items():
        if name in journals.deleted:
            continue
        if name not in sizes:
            said = f"{done.journal} says it was completed with {done.size} bytes"
            yield problem("missing-file", tree.place(name), said, f"it held {_keys(done)}")
        elif sizes[name] != done.size:
            said = f"{sizes[name]} bytes instead of {done.size}"
            yield problem("truncated-file", tree.place(name), said, f"it should hold {_keys(done)}")
    unjournaled = set(found)
    alive = {writer.journal for writer in journals.writers if is_alive(writer)}
    for intent in journals.never_written:
        if intent.key not in unjournaled:
            name = "never-written:alive" if intent.journal in alive else "never-written"
            yield problem(name, str(intent.key), f"{intent.journal}: recorded, but neither written nor dropped")
    for drop in journals.drops:
        yield problem("dropped", str(drop.record.key), f"{drop.record.journal}: {drop.reason}")
    if journals.deleted:
        names = sorted(journals.deleted)
        counted = f"{len(names)} files, from {names[0]} to {names[-1]}"
        yield problem("deleted", tree.title, counted, f"reason: {', '.join(sorted(set(journals.deleted.values())))}")
    incomplete = {intent.journal for intent in journals.never_written}
    for writer in journals.writers:
        yield from _writer_findings(tree, writer, writer.journal in alive, writer.journal in incomplete)
    for error in journals.unreadable:
        yield problem("unreadable-file:journal", tree.title, error.message)


def checksum_findings(tree: Tree, journals: Journals) -> Iterator[Finding]:
    """Files of the right size whose bytes are not those that were written; reads every file."""
    sizes = {fact.name: fact.size for fact in tree.files}
    for name, done in journals.files.items():
        if sizes.get(name) == done.size:
            actual = crc32_of(tree.local(name))
            if actual != done.crc32:
                said = f"crc32 is {actual:08x}, the journal has {done.crc32:08x}"
                yield problem("corrupt-file", tree.place(name), said, f"it holds {_keys(done)}")


def is_alive(writer: Writer) -> bool:
    """Whether the process that wrote a journal still runs, which only its own machine can tell."""
    pid = writer.identity.get("pid")
    if writer.is_closed or writer.identity.get("host") != os.uname().nodename or not isinstance(pid, int):
        return False
    return is_running(pid, writer.started_s)


def _writer_findings(tree: Tree, writer: Writer, alive: bool, incomplete: bool) -> Iterator[Finding]:
    """A killed process is a failure only if something is missing: Ray kills its workers at the end of every run."""
    where = tree.place(writer.journal)
    who = ", ".join(
        f"{name} {writer.identity[name]}" for name in ("role", "rank", "host", "pid") if name in writer.identity
    )
    if writer.stopped is not None:
        yield problem("recorder-stopped", where, who, writer.stopped)
    if not writer.is_closed:
        state = ":alive" if alive else ":incomplete" if incomplete or writer.is_torn else ""
        yield problem(f"unfinished-writer{state}", where, who or "the journal does not name its writer")
    if writer.damaged_lines:
        lines = ", ".join(map(str, writer.damaged_lines[:8]))
        yield problem("corrupt-file:journal", where, f"lines {lines} are not journal lines")


def _keys(done: Done) -> str:
    keys = [str(intent.key) for intent in done.records]
    return ", ".join(keys[:4]) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "")
