"""Our own recordings, as docs/recording.md specifies them: kinds in folders, journals beside them.

Which records a file holds comes from the journal; a file that no journal knows is asked itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rldbg.core import Finding, IncompleteDataError, Severity
from rldbg.recording.formats import native
from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.journal import FOLDER as JOURNAL
from rldbg.recording.journal import Done, read_journals
from rldbg.recording.journal_findings import cheap_findings, checksum_findings
from rldbg.recording.layouts import step_files
from rldbg.recording.layouts.base import Entry, Layout, Listing, listing_of
from rldbg.recording.problems import problem
from rldbg.recording.records import Record
from rldbg.recording.tree import FileFact, Tree, head


class RldbgLayout(Layout):
    name = "rldbg"
    looks_for = "journal/*.jsonl, or <kind>/step_<N>.safetensors written by rldbg"
    is_regular = True

    def recognises(self, tree: Tree) -> bool:
        names = [fact.name for fact in tree.files]
        if any(_is_journal(tree, name) for name in names):
            return True
        return any(step_files.parse(tree.folder, name) is not None and _is_ours(tree, name) for name in names)

    def survey(self, tree: Tree) -> Listing:
        journals = read_journals(tree)
        entries: list[Entry] = []
        findings: list[Finding] = []
        found = []
        for fact in tree.files:
            parsed = step_files.parse(tree.folder, fact.name)
            if parsed is None or fact.name.startswith(JOURNAL):
                continue
            done = journals.files.get(fact.name)
            if done is not None and done.records:
                entries += _journaled(fact, done)
                continue
            if journals.writers:
                findings.append(problem("unjournaled-file", tree.place(fact.name), "no journal lists it as complete"))
            try:
                unknown = _asked(tree, fact, parsed)
            except IncompleteDataError as error:
                findings.append(_unreadable(tree, fact.name, error))
                continue
            entries += unknown
            found += [entry.key for entry in unknown]
        findings += cheap_findings(tree, journals, found)
        return listing_of(tree, entries, findings, ignored=rf"^({JOURNAL}|tokenizer/)")

    def load(self, tree: Tree, file: str) -> Any:
        if file.endswith(".safetensors"):
            return native.decode(tree.local(file))
        # Our default format needs none of the readers of the others.
        if file.endswith(".parquet"):
            from rldbg.recording.layouts.table_files import read_table_file

            return read_table_file(tree.local(file))
        from rldbg.recording.layouts.dictionary_files import load_content

        return load_content(tree, file)

    def record(self, content: Any, entry: Entry) -> Record:
        if isinstance(content, native.NativeFile):
            return replace(content.read(_place_in(content.keys, entry)), source=entry.file)
        from rldbg.recording.layouts.dictionary_files import content_record
        from rldbg.recording.layouts.table_files import TableFile

        if isinstance(content, TableFile):
            return replace(content.read(), source=entry.file)
        return content_record(content, entry)

    def verify(self, tree: Tree, listing: Listing) -> Sequence[Finding]:
        return list(checksum_findings(tree, read_journals(tree)))


def _journaled(fact: FileFact, done: Done) -> list[Entry]:
    return [
        Entry(*intent.key, fact.name, fact.size, part, max(intent.rows, -1)) for part, intent in enumerate(done.records)
    ]


def _asked(tree: Tree, fact: FileFact, parsed: step_files.StepFile) -> list[Entry]:
    """The records of a file that no journal knows: by its header where it has one, else by its name."""
    if parsed.format != "safetensors":
        return [Entry(*parsed[:6], fact.name, fact.size)]
    file = native.decode(tree.local(fact.name))
    rows = file.metadata["rows"]
    return [Entry(*key, fact.name, fact.size, part, rows[part]) for part, key in enumerate(file.keys)]


def _place_in(keys: Sequence[Any], entry: Entry) -> int:
    """Where a record is in its file: where the journal had it, or wherever it is."""
    if entry.part < len(keys) and keys[entry.part] == entry.key:
        return entry.part
    try:
        return list(keys).index(entry.key)
    except ValueError:
        raise Malformed(f"does not hold {entry.key}, as its journal says") from None


def _is_journal(tree: Tree, name: str) -> bool:
    return name.startswith(JOURNAL) and name.endswith(".jsonl") and b'"event"' in head(tree, name, 1 << 12)


def _is_ours(tree: Tree, name: str) -> bool:
    if not name.endswith((".safetensors", ".parquet")):
        return False
    if name.endswith(".safetensors"):
        return f'"{native.METADATA_KEY}"'.encode() in head(tree, name)
    try:
        with tree.local(name).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - (1 << 20)))
            return b"rldbg" in file.read()  # parquet keeps its metadata at the end
    except (OSError, IncompleteDataError):
        return False


def _unreadable(tree: Tree, name: str, error: IncompleteDataError) -> Finding:
    return Finding(
        "unreadable-file",
        Severity.ERROR,
        tree.place(name),
        (error.message,),
        "the file is damaged, and no journal says what it should hold",
        (error.hint,),
    )
