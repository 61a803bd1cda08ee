"""What is wrong with a recording: every file is read, nothing cached is trusted.

Three passes: the layout's own bookkeeping (journal, markers), decoding every record, and gaps in an otherwise regular
grid of steps, ranks and micro-batches.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from rldbg.core import Finding, IncompleteDataError, Severity
from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.pt_reader import verify_pt
from rldbg.recording.kinds import KINDS
from rldbg.recording.layouts import Entry, Listing, recognised
from rldbg.recording.problems import problem
from rldbg.recording.records import OTHER_MODEL, Record, RecordKey
from rldbg.recording.samples import causal_order
from rldbg.recording.source import RecordSource

_SHOWN = 8
_BROKEN = frozenset({"unreadable-file", "hostile-file", "missing-file", "truncated-file", "corrupt-file"})


def verify(recording: RecordSource) -> list[Finding]:
    """Every finding, in the order the passes make them."""
    fresh = recording.relisted()
    findings = [*fresh.listing.findings, *fresh.layout.verify(fresh.tree, fresh.listing)]
    known = {finding.where for finding in findings}
    damaged, unnamed = _read_all(fresh)
    findings += [finding for finding in damaged if finding.where not in known]
    findings += unnamed
    findings += _bad_checksums(fresh, {finding.where for finding in findings})
    if fresh.layout.is_regular:
        findings += holes(fresh.listing.entries)
    findings += duplicates(fresh.listing.entries)
    findings += unread_files(fresh.title, fresh.listing)
    if not fresh.listing.entries:
        findings.append(empty_recording(fresh))
    return findings


def is_unreadable_whole(recording: RecordSource, findings: Iterable[Finding]) -> bool:
    """Whether no record can be read: then there is nothing to work on."""
    broken = {finding.where for finding in findings if finding.id in _BROKEN}
    return {recording.tree.place(entry.file) for entry in recording.listing.entries} <= broken


def _read_all(recording: RecordSource) -> tuple[list[Finding], list[Finding]]:
    damaged: dict[str, Finding] = {}
    unnamed: dict[str, list[RecordKey]] = defaultdict(list)
    empty: dict[str, list[RecordKey]] = defaultdict(list)
    foreign: set[str] = set()
    for entry in sorted(recording.listing.entries, key=lambda entry: (entry.file, entry.part)):
        if entry.file in damaged:
            continue
        try:
            record = recording.read_entry(entry)
        except IncompleteDataError as error:
            damaged[entry.file] = damage(recording.tree.place(entry.file), error)
            continue
        if _lacks_ids(record):
            if record.role:  # a recorder wrote it, and its caller could have named the samples
                unnamed[entry.kind].append(entry.key)
            else:
                foreign.add(entry.kind)
        elif entry.kind in KINDS and KINDS[entry.kind].has_samples and not record.samples and not _has_rows(record):
            empty[entry.kind].append(entry.key)
    findings = [
        problem(name, f"{recording.title}: {kind}", f"{_counted(keys, 'record')}: {_some(keys)}")
        for name, found in (("empty-sample-ids", unnamed), ("empty-record", empty))
        for kind, keys in found.items()
    ]
    if foreign:
        kinds = ", ".join(sorted(foreign, key=causal_order))
        findings.append(problem("empty-sample-ids:framework", recording.title, f"kinds: {kinds}"))
    return list(damaged.values()), findings


def _bad_checksums(recording: RecordSource, known: set[str]) -> Iterator[Finding]:
    """torch.save files carry a checksum of every member, which reading a view of them does not look at."""
    for file in sorted({entry.file for entry in recording.listing.entries if entry.file.endswith(".pt")}):
        where = recording.tree.place(file)
        if where in known:
            continue
        try:
            members = verify_pt(recording.tree.local(file))
        except IncompleteDataError as error:
            yield damage(where, error)
            continue
        if members:
            yield problem("corrupt-file", where, f"the checksum of {_some(members)} does not match its bytes")


def damage(where: str, error: IncompleteDataError) -> Finding:
    """A file that cannot be read, and whether it is hostile."""
    cause = error.__cause__
    hostile = isinstance(cause, Malformed) and cause.reason.startswith("hostile")
    return Finding(
        "hostile-file" if hostile else "unreadable-file",
        Severity.ERROR,
        where,
        (error.message.removeprefix(f"{where}: "),),
        "the file would run code when it is loaded; nothing was run"
        if hostile
        else "the file is damaged, unfinished, or not what its name says",
        (error.hint,),
    )


def _lacks_ids(record: Record) -> bool:
    """Rows without ids: they can only be aligned by their content.

    What `record_loop` sees by itself, ids that a model is given and losses, is aligned by these ids and by the pass.
    """
    kind = KINDS.get(record.key.kind)
    if kind is None or not kind.has_samples or record.samples or kind.name in ("batch_inputs", "loss"):
        return False
    return _has_rows(record)


def _has_rows(record: Record) -> bool:
    kind = KINDS[record.key.kind]
    return any(kind.field(name) and _rows(value) for name, value in record.fields.items())


def _rows(value: object) -> int:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    return len(value) if isinstance(value, list) or hasattr(value, "offsets") else int(value is not None)  # type: ignore[arg-type]


def holes(entries: Iterable[Entry]) -> Iterator[Finding]:
    """Missing ranks, which other steps of a kind have, and missing micro-batches between others."""
    grid: dict[tuple[str, int, int], set[int]] = defaultdict(set)
    for kind, step, rank, micro, *_ in entries:
        if step >= 0:  # NexRL files its pass before the first step under -1, with one micro-batch only
            grid[kind, step, rank].add(micro)
    ranks: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for kind, step, rank in grid:
        ranks[kind][step].add(rank)
    for kind, steps in ranks.items():
        usual = _usual_ranks(steps)
        for step, present in steps.items():
            missing = sorted(usual - present)
            if missing:
                said = f"rank {_some(missing)} missing; other steps have {len(usual)} ranks"
                yield problem("missing-rank", f"{kind} step {step}", said)
    for (kind, step, rank), found in grid.items():
        # A policy's parameters; those of another model beside it are numbered from OTHER_MODEL on, as many as it has.
        micros = {micro for micro in found if micro < OTHER_MODEL}
        highest = max(micros, default=-1)
        # Of weights, the number says whose they are: an engine's workers use their own.
        if len(micros) <= highest and kind not in ("weights", "weight_values"):
            gaps = sorted(set(range(highest)) - micros)
            said = f"micro {_some(gaps)} missing; there is a micro-batch {highest}"
            yield problem("missing-micro", f"{kind} step {step} rank {rank}", said)


def _usual_ranks(steps: dict[int, set[int]]) -> set[int]:
    """Ranks that at least half of the steps have, and those below the highest of them."""
    counts = Counter(rank for ranks in steps.values() for rank in ranks)
    usual = {rank for rank, count in counts.items() if 2 * count >= len(steps)}
    return set(range(max(usual) + 1)) if len(usual) > 1 else usual


def duplicates(entries: Iterable[Entry]) -> Iterator[Finding]:
    files: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for entry in entries:
        files[entry[:6]].append(entry.file)
    for key, names in files.items():
        # A loop that calls its model several times per micro-batch has its inputs as often, in one file.
        is_called_often = key[0] == "batch_inputs" and len(set(names)) == 1
        if len(names) > 1 and not is_called_often:
            yield problem("duplicate-record", str(RecordKey._make(key)), *names[:_SHOWN])


def unread_files(title: str, listing: Listing) -> Iterator[Finding]:
    if listing.unread:
        yield problem("unread-files", title, f"{_counted(listing.unread, 'file')}: {_some(listing.unread)}")


def empty_recording(recording: RecordSource) -> Finding:
    cause = "nothing was recorded, everything was dropped, or this is not the folder that was recorded to"
    fix = "check that recording was enabled and the step, rank and kind filters let something through"
    other = recognised(recording.tree)
    if other is not None and other.name != recording.layout.name:
        cause = f"these files are not in the layout {recording.layout.name}, but in {other.name}"
        fix = f"omit --layout, or give --layout {other.name}"
    return Finding("empty-recording", Severity.ERROR, recording.title, ("it has no records",), cause, (fix,))


def _counted(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}" + ("" if len(things) == 1 else "s")


def _some(items: Iterable[object]) -> str:
    texts = [str(item) for item in items]
    return ", ".join(texts[:_SHOWN]) + (f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")
