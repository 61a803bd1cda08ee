"""torch's flight recorder: dump files of all ranks, or the records that agents send, as views of the ranks.

A dump is a pickle of plain containers (version 2.x: pg_config, pg_status, entries); it is read without running code.
"""

import io
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from rldbg.core import IncompleteDataError
from rldbg.live.diagnosis.hang import HangDiagnosis, diagnose
from rldbg.live.diagnosis.waits import Pending, RankView, Waits

FlightRecord = Mapping[str, Any]
_RANK = re.compile(r"(\d+)$")
_TRANSFER = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
# What torch calls them inside.
_PLAIN = {
    "_all_gather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "all_reduce_barrier": "barrier",
}
_MAX_BYTES = 256 << 20
_DAMAGE = (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError, IndexError)
"""The exceptions that a damaged or unexpected pickle may raise."""


class _PlainUnpickler(pickle.Unpickler):
    """Reads containers, numbers and strings only."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"a flight record holds plain data, not {module}.{name}")


@dataclass(frozen=True)
class Dumps:
    """The dumps of one job; `unreadable` says why a file could not be read."""

    folder: Path
    waits: Waits
    unreadable: Mapping[Path, str]


def read_dumps(folder: Path) -> Dumps:
    """Every dump in a folder; files end with their rank. A rank whose dump cannot be read counts as one without."""
    records: dict[int, FlightRecord] = {}
    unreadable: dict[Path, str] = {}
    for file in sorted(folder.iterdir()):
        match = _RANK.search(file.name)
        if match is None or not file.is_file() or file.stat().st_size > _MAX_BYTES:
            continue
        try:
            records[int(match[1])] = read_record(file.read_bytes())
        except (OSError, ValueError) as error:
            unreadable[file] = str(error)
    return Dumps(folder, waits_of(records), unreadable)


def diagnose_dumps(folder: Path) -> HangDiagnosis:
    """What the dumps of a folder say together. Raises IncompleteDataError when none can be read."""
    found = read_dumps(folder)
    if found.waits.views:
        diagnosis = diagnose(found.waits)
        unread = tuple(f"{file} could not be read: {reason}" for file, reason in found.unreadable.items())
        return replace(diagnosis, evidence=diagnosis.evidence + unread)
    if found.unreadable:
        file, reason = next(iter(found.unreadable.items()))
        raise IncompleteDataError(f"{file}: {reason}", "give the folder that holds one dump per rank")
    raise IncompleteDataError(
        f"no flight recorder dump in {folder}",
        "they are named like nccl_trace_rank_0; TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 make them",
    )


def read_record(data: bytes) -> FlightRecord:
    """One rank's record, with the fields that a view needs checked. Raises ValueError."""
    try:
        record = _PlainUnpickler(io.BytesIO(data)).load()
        _view(0, record, {})
    except _DAMAGE as error:
        raise ValueError(f"not a complete flight record: {type(error).__name__}: {error}") from error
    checked: FlightRecord = record
    return checked


def waits_of(records: Mapping[int, FlightRecord]) -> Waits:
    """The records of all ranks, side by side."""
    numbers = _group_numbers(records.values())
    groups: dict[str, tuple[int, ...]] = {}
    for record in records.values():
        groups |= _groups(record)
    return Waits({rank: _view(rank, record, numbers) for rank, record in records.items()}, groups)


def _groups(record: FlightRecord) -> dict[str, tuple[int, ...]]:
    return {str(name): _members(config["ranks"]) for name, config in record["pg_config"].items()}


def _members(ranks: str | Sequence[int]) -> tuple[int, ...]:
    return tuple(int(item) for item in re.findall(r"\d+", ranks)) if isinstance(ranks, str) else tuple(ranks)


def _group_numbers(records: Iterable[FlightRecord]) -> dict[str, str]:
    """The number by which pg_status calls each group; a rank without an entry of a group shares its peers'."""
    return {str(e["process_group"][0]): str(e["pg_id"]) for record in records for e in record["entries"]}


def _view(rank: int, record: FlightRecord, numbers: Mapping[str, str]) -> RankView:
    groups = _groups(record)
    entries: Sequence[Mapping[str, Any]] = record["entries"]
    entered: dict[str, int] = {}
    for entry in entries:
        if not entry.get("is_p2p"):
            group = str(entry["process_group"][0])
            entered[group] = max(entered.get(group, 0), int(entry["collective_seq_id"]))
    own = {name: number for name, number in numbers.items() if name in groups} | _group_numbers([record])
    status = record.get("pg_status") or {}
    known = {name: status[number] for name, number in own.items() if number in status}
    for name, counts in known.items():
        entered[name] = max(entered.get(name, 0), int(counts["last_enqueued_collective"]))
    unfinished = [entry for entry in entries if _is_unfinished(entry)]
    # Entries are a ring buffer: the oldest need not come first.
    unfinished.sort(key=lambda entry: int(entry.get("record_id", 0)))
    return RankView(
        rank,
        f"rank {rank}",
        pending=tuple(_pending(entry, groups) for entry in unfinished),
        entered=entered,
        completed={name: int(counts["last_completed_collective"]) for name, counts in known.items()},
    )


def _is_unfinished(entry: Mapping[str, Any]) -> bool:
    # gloo's entries are never marked as completed.
    gloo = str(entry["profiling_name"]).startswith("gloo:")
    return entry["state"] != "completed" and not entry.get("retired") and not gloo


def _pending(entry: Mapping[str, Any], groups: Mapping[str, tuple[int, ...]]) -> Pending:
    group, name = str(entry["process_group"][0]), str(entry["profiling_name"]).rpartition(":")[2]
    sizes = entry.get("input_sizes") or []
    shape = "x".join(map(str, sizes[0])) if len(sizes) == 1 and sizes[0] else ""
    transfer = _TRANSFER.match(name) if entry.get("is_p2p") else None
    if transfer is None:
        plain = _PLAIN.get(name, name)
        return Pending(group, int(entry["collective_seq_id"]), plain, "" if plain == "barrier" else shape)
    # Sends and receives use ranks within the group.
    members, peer = groups.get(group, ()), int(transfer[3])
    return Pending(group, 0, transfer[1], shape, members[peer] if peer < len(members) else peer)
