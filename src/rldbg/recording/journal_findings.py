"""What the journals of a recording say about its files: one finding for each thing that is not as it should be."""

import os
from collections.abc import Iterable, Iterator, Mapping

from rldbg.core import Finding, Severity
from rldbg.recording.formats.checksum import crc32_of
from rldbg.recording.journal import Done, Intent, Journals, Writer
from rldbg.recording.records import RecordKey
from rldbg.recording.tree import Tree

_COPY_AGAIN = "copy the file again from where it was written, or record the step again"


def cheap_findings(tree: Tree, journals: Journals, found: Iterable[RecordKey]) -> Iterator[Finding]:
    """Everything that names, sizes and journals tell without reading a file. `found` are keys of unjournaled files."""
    sizes = {fact.name: fact.size for fact in tree.files}
    for name, done in journals.files.items():
        if name in journals.deleted:
            continue
        if name not in sizes:
            yield _missing(tree, name, done)
        elif sizes[name] != done.size:
            yield _truncated(tree, name, done, sizes[name])
    unjournaled = set(found)
    alive = {writer.journal for writer in journals.writers if is_alive(writer)}
    for intent in journals.never_written:
        if intent.key not in unjournaled:
            yield _never_written(intent, intent.journal in alive)
    for drop in journals.drops:
        yield _dropped(drop.record, drop.reason)
    if journals.deleted:
        yield _deleted(tree, journals.deleted)
    incomplete = {intent.journal for intent in journals.never_written}
    for writer in journals.writers:
        yield from _writer_findings(tree, writer, writer.journal in alive, writer.journal in incomplete)
    for error in journals.unreadable:
        yield Finding("unreadable-file", Severity.ERROR, tree.title, (error.message,), "a journal cannot be read")


def checksum_findings(tree: Tree, journals: Journals) -> Iterator[Finding]:
    """Files of the right size whose bytes are not those that were written; reads every file."""
    sizes = {fact.name: fact.size for fact in tree.files}
    for name, done in journals.files.items():
        if sizes.get(name) == done.size:
            actual = crc32_of(tree.local(name))
            if actual != done.crc32:
                yield Finding(
                    "corrupt-file",
                    Severity.ERROR,
                    tree.place(name),
                    (f"crc32 is {actual:08x}, the journal says {done.crc32:08x}", f"it holds {_keys(done)}"),
                    "the bytes changed after they were written: a bad disk, a bad copy, or an edit",
                    (_COPY_AGAIN,),
                )


def unjournaled(tree: Tree, name: str) -> Finding:
    return Finding(
        "unjournaled-file",
        Severity.WARNING,
        tree.place(name),
        ("no journal says that it was completed",),
        "its writer was killed between naming the file and noting it, or its journal was not copied along",
        ("copy the journal folder too; a file that reads is whole all the same, as it is named only when complete",),
    )


def is_alive(writer: Writer) -> bool:
    """Whether the process that wrote a journal still runs, which only its own machine can tell."""
    if writer.is_closed or writer.identity.get("host") != os.uname().nodename:
        return False
    import psutil

    try:
        return psutil.Process(int(writer.identity.get("pid", -1))).create_time() <= writer.started_s + 1
    except (psutil.Error, ValueError, TypeError, OverflowError):
        return False


def _missing(tree: Tree, name: str, done: Done) -> Finding:
    return Finding(
        "missing-file",
        Severity.ERROR,
        tree.place(name),
        (f"{done.journal} says it was completed with {done.size} bytes", f"it held {_keys(done)}"),
        "the file was written and is gone: removed, or left out when the recording was copied",
        (_COPY_AGAIN,),
    )


def _truncated(tree: Tree, name: str, done: Done, size: int) -> Finding:
    return Finding(
        "truncated-file",
        Severity.ERROR,
        tree.place(name),
        (f"{size} bytes instead of {done.size}", f"it should hold {_keys(done)}"),
        "the copy stopped early or the file was changed: it was whole when it got its name",
        (_COPY_AGAIN,),
    )


def _never_written(intent: Intent, is_alive: bool) -> Finding:
    return Finding(
        "never-written",
        Severity.INFO if is_alive else Severity.ERROR,
        str(intent.key),
        (f"{intent.journal}: recorded, but neither written nor dropped",),
        "its writer is still running and has not written it yet"
        if is_alive
        else "the process ended before its buffer was on disk (killed, crashed, or out of time at exit)",
        ("run rldbg verify again when the run has ended",)
        if is_alive
        else ("close the recorder before the process ends; after a crash the step must be recorded again",),
    )


def _dropped(record: Intent, reason: str) -> Finding:
    return Finding(
        "dropped",
        Severity.WARNING,
        str(record.key),
        (f"{record.journal}: {reason}",),
        "the recorder dropped this record instead of blocking or harming training",
        ("raise buffer_bytes, record fewer kinds or steps, or use when_full='block'",),
    )


def _deleted(tree: Tree, deleted: Mapping[str, str]) -> Finding:
    reasons = sorted(set(deleted.values()))
    names = sorted(deleted)
    return Finding(
        "deleted",
        Severity.INFO,
        tree.title,
        (f"{len(names)} files, from {names[0]} to {names[-1]}", f"reason: {', '.join(reasons)}"),
        "removed on purpose by the recorder",
        ("raise keep_last, or pin the steps that must stay",),
    )


def _writer_findings(tree: Tree, writer: Writer, alive: bool, incomplete: bool) -> Iterator[Finding]:
    who = ", ".join(
        f"{name} {writer.identity[name]}" for name in ("role", "rank", "host", "pid") if name in writer.identity
    )
    if writer.stopped is not None:
        yield Finding(
            "recorder-stopped",
            Severity.ERROR,
            tree.place(writer.journal),
            (who, writer.stopped),
            "the recorder stopped itself; this process recorded nothing after that",
            ("fix what the reason names (disk space, permissions, budget) and record again",),
        )
    if not writer.is_closed:
        yield _unfinished(tree.place(writer.journal), who, alive, incomplete or writer.is_torn)
    if writer.damaged_lines:
        lines = ", ".join(map(str, writer.damaged_lines[:8]))
        yield Finding(
            "corrupt-file",
            Severity.ERROR,
            tree.place(writer.journal),
            (f"lines {lines} are not journal lines",),
            "the journal was damaged after it was written; what these lines said is lost",
            (_COPY_AGAIN,),
        )


def _unfinished(where: str, who: str, alive: bool, incomplete: bool) -> Finding:
    """A killed process is a failure only if something is missing: Ray kills its workers at the end of every run."""
    fix: tuple[str, ...] = ()
    if alive:
        cause, fix = "the process is still running", ("wait for the run to end",)
    elif incomplete:
        cause, fix = "the process was killed or crashed before everything was written", ("see `never-written` above",)
    else:
        cause = "the process was killed after everything it had recorded was written; nothing is missing"
    return Finding(
        "unfinished-writer",
        Severity.WARNING if incomplete and not alive else Severity.INFO,
        where,
        (who or "the journal does not say who wrote it",),
        cause,
        fix,
    )


def _keys(done: Done) -> str:
    keys = [str(intent.key) for intent in done.records]
    return ", ".join(keys[:4]) + (f" and {len(keys) - 4} more" if len(keys) > 4 else "")
