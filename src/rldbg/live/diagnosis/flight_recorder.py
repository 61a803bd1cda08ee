"""torch's flight recorder: dump files of all ranks, or the records that agents send, as views for the diagnosis.

The records are pickles of plain data; they are read without executing anything.
"""

import ast
import io
import pickle
import re
from pathlib import Path
from typing import Any, NoReturn

from rldbg.core import IncompleteDataError
from rldbg.live.diagnosis.hang import Pending, RankView

_RANK = re.compile(r"(\d+)$")


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"a flight record holds plain data, not {module}.{name}")


def read_record(data: bytes) -> dict[str, Any]:
    """One rank's record. Raises ValueError for anything that is none."""
    try:
        record = _PlainUnpickler(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a flight record: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("entries", []), list):
        raise ValueError("not a flight record")
    return record


def read_dumps(folder: Path) -> tuple[list[RankView], dict[str, tuple[int, ...]]]:
    """Every dump in a folder; files end with their rank."""
    records: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.iterdir()):
        match = _RANK.search(path.name)
        if match and path.is_file():
            try:
                records[int(match[1])] = read_record(path.read_bytes())
            except ValueError as error:
                raise IncompleteDataError(f"{path}: {error}", "give the folder that holds one dump a rank") from error
    if not records:
        raise IncompleteDataError(
            f"no flight recorder dump in {folder}",
            "they are named like nccl_trace_rank_0; TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 make them",
        )
    groups: dict[str, tuple[int, ...]] = {}
    for record in records.values():
        groups |= groups_of(record)
    return [view_of(rank, record) for rank, record in records.items()], groups


def groups_of(record: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    groups = {}
    for name, facts in (record.get("pg_config") or {}).items():
        ranks = facts.get("ranks") or "[]"
        members = ast.literal_eval(ranks) if isinstance(ranks, str) else ranks
        if members:
            groups[str(name)] = tuple(members)
    return groups


def view_of(rank: int, record: dict[str, Any], who: str = "", place: str = "", state: str = "running") -> RankView:
    entered: dict[str, int] = {}
    names: dict[str, str] = {}
    pending = []
    for entry in record.get("entries") or []:
        group = str(entry["process_group"][0])
        names[str(entry.get("pg_id"))] = group
        if entry.get("is_p2p"):
            continue
        sequence = int(entry["collective_seq_id"])
        entered[group] = max(entered.get(group, 0), sequence)
        if entry.get("state") != "completed" and not str(entry.get("profiling_name", "")).startswith("gloo:"):
            pending.append(Pending(group, sequence, _op(entry), _shape(entry)))
    completed = {
        names[number]: int(status.get("last_completed_collective", -1))
        for number, status in (record.get("pg_status") or {}).items()
        if number in names
    }
    for number, status in (record.get("pg_status") or {}).items():
        if number in names:
            group = names[number]
            entered[group] = max(entered.get(group, 0), int(status.get("last_enqueued_collective", -1)))
    return RankView(rank, who or f"rank {rank}", place, state, tuple(pending), entered, completed)


def _op(entry: dict[str, Any]) -> str:
    name = str(entry.get("profiling_name", "")).partition(":")[2] or str(entry.get("profiling_name", ""))
    return {"_all_gather_base": "all_gather", "_reduce_scatter_base": "reduce_scatter"}.get(name, name)


def _shape(entry: dict[str, Any]) -> str:
    sizes = entry.get("input_sizes") or []
    return "x".join(map(str, sizes[0])) if len(sizes) == 1 and sizes[0] else ""
