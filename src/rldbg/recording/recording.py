"""A recording, ours or another framework's, as records: listed at once, read only when asked for."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rldbg.core import Finding, IncompleteDataError, Run, SampleId, UsageError
from rldbg.lazy import html_by
from rldbg.recording import index
from rldbg.recording.formats.malformed import reading
from rldbg.recording.layouts import (
    UNCOUNTED,
    Entry,
    Layout,
    Listing,
    named,
    only_recording_below,
    recognised,
    refuse_unrecognised,
)
from rldbg.recording.locating import locate
from rldbg.recording.records import Record, RecordKey
from rldbg.recording.samples import Sample, SampleRow, can_have_samples, causal_order, only_tokens, rows_of
from rldbg.recording.tree import LocalTree, Tree

if TYPE_CHECKING:
    from rldbg.recording.summary import Summary

_SAMPLES_NAMED = 4


def open(path: Path | str, layout: str | None = None) -> "Recording":
    """Opens a run folder, a dump folder, one kind's folder, one dump file or a URL.

    A folder that is none of these, but has one recording below it, means that one. The layout is recognised by names
    and first bytes unless it is named. Nothing is read yet.
    """
    place = locate(path)
    wanted = named(layout) if layout else None
    if isinstance(place.tree, LocalTree):
        cached = index.load(place.tree, wanted.name if wanted else None)
        if cached is not None:
            return Recording(place.tree, named(cached.layout), None, cached=cached, within=place.within, run=place.run)
    started = time.monotonic()
    found = wanted or recognised(place.tree)
    if found is None:
        below = only_recording_below(place.tree)
        if below:
            return open(below)
        refuse_unrecognised(place.tree)
    listing = found.survey(place.tree)
    _refuse_several(place.tree, listing.entries)
    if isinstance(place.tree, LocalTree):
        index.save(place.tree, found, listing, time.monotonic() - started, None)
    return Recording(place.tree, found, listing, within=place.within, run=place.run)


@html_by("recording", "recording_to_terminal")
class Recording:
    """What `open` gives. Listing methods answer from the index; `read` gives views of the files wherever possible."""

    def __init__(
        self,
        tree: Tree,
        layout: Layout,
        listing: Listing | None,
        *,
        cached: index.Cached | None = None,
        within: str = "",
        run: Run | None = None,
    ) -> None:
        self.tree = tree
        self.layout = layout
        self.within = within
        self.run = run
        self._cached = cached
        self._listing = _narrowed(listing, within) if listing is not None else None
        self._by_step: dict[int, list[Entry]] = {}
        self._contents: OrderedDict[str, Any] = OrderedDict()
        self.on_read: Callable[[], None] | None = None
        """Called after each record that was read, for progress."""
        self.files_kept = 4
        """How many of the files that were read last stay loaded; their tensors are mapped, not copied."""

    @property
    def listing(self) -> Listing:
        """Every record, problems met while listing, and files that are not part of the layout."""
        if self._listing is None:
            cached = self._cached.listing() if self._cached else None
            self._listing = _narrowed(cached or self.layout.survey(self.tree), self.within)
        return self._listing

    def __repr__(self) -> str:
        return f"<Recording {self.title}: {self.layout.name}, {len(self.listing.entries)} records>"

    @property
    def title(self) -> str:
        """The path or URL that was opened, for messages."""
        return f"{self.tree.title}/{self.within}".rstrip("/") if self.within else self.tree.title

    def kinds(self) -> tuple[str, ...]:
        """The kinds there are, in the order in which training makes them."""
        return tuple(sorted({entry.kind for entry in self.listing.entries}, key=causal_order))

    def steps(self, kind: str | None = None) -> tuple[int, ...]:
        return tuple(sorted({entry.step for entry in self.entries(kind)}))

    def ranks(self, kind: str | None = None, step: int | None = None) -> tuple[int, ...]:
        return tuple(sorted({entry.rank for entry in self.entries(kind, step)}))

    def micros(self, kind: str | None = None, step: int | None = None, rank: int | None = None) -> tuple[int, ...]:
        return tuple(sorted({entry.micro for entry in self.entries(kind, step, rank)}))

    def entries(
        self, kind: str | None = None, step: int | None = None, rank: int | None = None, micro: int | None = None
    ) -> Sequence[Entry]:
        """The listing, in the order of keys, narrowed to what is given."""
        wanted = (kind, step, rank, micro)
        if wanted == (None, None, None, None):
            return self.listing.entries
        return [
            entry
            for entry in (self.listing.entries if step is None else self._of_step(step))
            if all(value is None or value == part for value, part in zip(wanted, entry, strict=False))
        ]

    def _of_step(self, step: int) -> Sequence[Entry]:
        """Of long recordings, those who go from step to step ask for one step many times."""
        if not self._by_step:
            for entry in self.listing.entries:
                self._by_step.setdefault(entry.step, []).append(entry)
        return self._by_step.get(step, ())

    def keys(
        self, kind: str | None = None, step: int | None = None, rank: int | None = None, micro: int | None = None
    ) -> tuple[RecordKey, ...]:
        return tuple(entry.key for entry in self.entries(kind, step, rank, micro))

    def read(self, key: RecordKey) -> Record:
        """One record. Raises IncompleteDataError when there is none of this key, or its file is damaged."""
        for entry in self.entries(*key[:4]):
            if entry.key == key:
                return self.read_entry(entry)
        raise IncompleteDataError(f"{self.title} has no record of {key}", f"rldbg show {self.title} lists its records")

    def read_entry(self, entry: Entry, content: Any = None) -> Record:
        """A listed record. `content` is what its file holds, where that is known already."""
        if content is None:
            content = self.content(entry.file)
        if self.on_read is not None:
            self.on_read()
        with reading(self.tree.place(entry.file)):
            return self.layout.record(content, entry)

    def content(self, file: str) -> Any:
        """What a file holds, as its layout reads it; the files read last are kept, so that each costs one load."""
        if file in self._contents:
            self._contents.move_to_end(file)
        else:
            with reading(self.tree.place(file)):
                self._contents[file] = self.layout.load(self.tree, file)
            while len(self._contents) > self.files_kept:
                self._contents.popitem(last=False)
        return self._contents[file]

    def records(
        self, kind: str | None = None, step: int | None = None, rank: int | None = None, micro: int | None = None
    ) -> Iterator[Record]:
        """Records in the order of their keys, each read when its turn comes."""
        return (self.read_entry(entry) for entry in self.entries(kind, step, rank, micro))

    def _sample_records(self, kind: str | None, step: int | None) -> Iterator[Record]:
        return (self.read_entry(entry) for entry in self.entries(kind, step) if can_have_samples(entry.kind))

    def samples(self, step: int | None = None, kind: str | None = None) -> tuple[SampleId, ...]:
        """Every sample id, in the order of first appearance. Reads the records that can have samples."""
        seen: dict[SampleId, None] = {}
        for record in self._sample_records(kind, step):
            seen.update(dict.fromkeys(record.samples))
        return tuple(seen)

    def sample(self, id: SampleId, step: int | None = None, kind: str | None = None, rank: int | None = None) -> Sample:
        """Everything known about one sample, joined over kinds. Without a step, the sample must be in one only.

        Of records of other kinds and ranks than those asked for, only its tokens and their mask are kept.
        """
        rows: list[SampleRow] = []
        others: dict[SampleId, None] = {}
        prompt = ""
        for record in self._sample_records(None, step):
            is_asked_for = kind in (None, record.key.kind) and rank in (None, record.key.rank)
            if is_asked_for:
                others.update(dict.fromkeys(record.samples))
            for _, row in rows_of(record, [id]):
                rows += [row] if is_asked_for else only_tokens(row)
                prompt = prompt or (record.prompt_hashes[row.row] if record.prompt_hashes else "")
        steps = sorted({row.key.step for row in rows})
        if not rows or id not in others:
            raise _no_such_sample(self.title, id, {"step": step, "kind": kind, "rank": rank}, list(others))
        if len(steps) > 1:
            raise UsageError(f"sample {id} is in steps {', '.join(map(str, steps))}", "choose one with --step")
        rows.sort(key=lambda row: (causal_order(row.key.kind), row.key))
        return Sample(id, steps[0], prompt, tuple(rows))

    def samples_at(self, step: int, ids: Sequence[SampleId] | None = None) -> list[Sample]:
        """These samples of one step, all by default, joined over kinds; each record is read once."""
        rows: dict[SampleId, list[SampleRow]] = {}
        prompts: dict[SampleId, str] = {}
        for record in self._sample_records(None, step):
            for id, row in rows_of(record, record.samples if ids is None else ids):
                rows.setdefault(id, []).append(row)
                if record.prompt_hashes and id not in prompts:
                    prompts[id] = record.prompt_hashes[row.row]
        for found in rows.values():
            found.sort(key=lambda row: (causal_order(row.key.kind), row.key))
        return [Sample(id, step, prompts.get(id, ""), tuple(found)) for id, found in rows.items()]

    def relisted(self) -> "Recording":
        """The same recording, listed again: what changed since, and what the index may have hidden, is seen."""
        tree = replace(self.tree) if isinstance(self.tree, LocalTree) else self.tree
        again = Recording(tree, self.layout, self.layout.survey(tree), within=self.within, run=self.run)
        again.on_read, again.files_kept = self.on_read, self.files_kept
        return again

    def verify(self) -> list[Finding]:
        """What is wrong: reads every file, and never trusts the index."""
        from rldbg.recording.verification import verify

        return verify(self)

    def summary(self) -> "Summary":
        """What there is and whether it looks healthy, by cheap checks only."""
        from rldbg.recording.summary import Summary, summarise

        if self._cached and self._cached.summary and not self.within:
            known = Summary.from_dict(self.title, self._cached.summary)
            if known is not None:
                return known
        started = time.monotonic()
        summary, self._listing = summarise(self)
        self._by_step = {}
        if isinstance(self.tree, LocalTree) and not self.within:
            took_s = time.monotonic() - started
            index.save(self.tree, self.layout, self._listing, took_s, summary.to_dict())
        return summary

    def run_facts(self) -> dict[str, Any]:
        """run.json of the run this recording belongs to; empty when it belongs to none."""
        return self.run.read() if self.run else {}

    def count_rows(self, entry: Entry) -> int:
        """How many samples a record has; IncompleteDataError when its file cannot be read."""
        if entry.rows != UNCOUNTED:
            return entry.rows
        with reading(self.tree.place(entry.file)):
            return self.layout.count_rows(self.tree, entry)


def _no_such_sample(
    title: str, id: SampleId, asked: Mapping[str, object], others: Sequence[SampleId]
) -> IncompleteDataError:
    where = "".join(f", {name} {value}" for name, value in asked.items() if value is not None)
    near = get_close_matches(str(id), list(map(str, others)), _SAMPLES_NAMED, 0.0)
    hint = f"there are {len(others)} samples, among them {', '.join(near)}" if near else "no record there has samples"
    return IncompleteDataError(f"{title} has no sample {id}{where}", hint)


def _narrowed(listing: Listing, within: str) -> Listing:
    """The listing under a prefix, with the findings that name something under it."""
    if not within:
        return listing
    return Listing(
        tuple(entry for entry in listing.entries if entry.file.startswith(within)),
        tuple(finding for finding in listing.findings if within.rstrip("/") in finding.where),
        tuple(name for name in listing.unread if name.startswith(within)),
    )


def _refuse_several(tree: Tree, entries: Sequence[Entry]) -> None:
    """One path must mean one recording: equal keys in different folders are two of them."""
    first: dict[RecordKey, str] = {}
    for entry in entries:
        folder = entry.file.rpartition("/")[0]
        other = first.setdefault(entry.key, folder)
        if other != folder:
            raise UsageError(
                f"{tree.title} holds several recordings: {entry.key} is in {other or '.'} and in {folder or '.'}",
                f"open one of them, for example {tree.title}/{other or folder}",
            )
