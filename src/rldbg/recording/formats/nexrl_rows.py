"""The three kinds that NexRL writes as one dictionary per sample: trajectories, prepared trajectories, datums."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rldbg.core import SampleId
from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.number_opcodes import AsList
from rldbg.recording.formats.sidecar import FieldRestorer, Sidecar, undescribed_rows
from rldbg.recording.records import Ragged

_IDS = ("group_id", "run_id")
# Older versions of NexRL, and forks of it, keep these beside the tokens.
_FOREIGN_PATHS = {name: (name,) for name in ("logprobs", "policy_versions")}


@dataclass(frozen=True, slots=True)
class RowsForm:
    """Where the fields of a kind are: `paths` inside each sample's dictionary, `beside` next to the list of samples."""

    list_key: str
    count_key: str
    paths: Mapping[str, tuple[str, ...]]
    beside: tuple[str, ...]
    defaults: Mapping[str, Any]

    def to_dict(self, fields: Mapping[str, Any], samples: Sequence[SampleId], own: dict[str, Any]) -> dict[str, Any]:
        sidecar = Sidecar()
        columns = {name: sidecar.rows(name, value) for name, value in fields.items() if name in self.paths}
        counts = {len(column) for column in columns.values()} | ({len(samples)} if samples else set())
        if len(counts) > 1:
            raise ValueError(f"the fields of {self.list_key} have different numbers of rows: {sorted(counts)}")
        count = counts.pop() if counts else 0
        own["columns"] = list(columns)
        columns |= {name: [value] * count for name, value in self.defaults.items() if name not in columns}
        if "extra_fields" in self.paths and samples:
            columns["extra_fields"] = _with_ids(columns.get("extra_fields"), samples, own)
        result: dict[str, Any] = {self.count_key: count, self.list_key: [{} for _ in range(count)]}
        for name, column in columns.items():
            for row, value in zip(result[self.list_key], column, strict=True):
                _put(row, self.paths[name], value)
        for name in self.beside:
            if name in fields:
                result[name] = _beside(name, fields[name], sidecar)
        rest = {name: value for name, value in fields.items() if name not in self.paths and name not in self.beside}
        own["fields"] = {name: _beside(name, value, sidecar) for name, value in rest.items()}
        own |= sidecar.to_dict()
        return result

    def from_dict(self, data: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fields, and what the samples held beyond them."""
        rows = data.get(self.list_key)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise Malformed(f"{self.list_key} is not a list of dictionaries")
        if data.get(self.count_key, len(rows)) != len(rows):
            raise Malformed(f"{self.count_key} is {data[self.count_key]!r:.20}, but there are {len(rows)}")
        described = FieldRestorer(own)
        fields: dict[str, Any] = {}
        paths = dict(self.paths) if own else dict(_FOREIGN_PATHS) | dict(self.paths)
        for name, path in paths.items():
            column = [_get(row, path) for row in rows]
            if name in own["columns"] if own else any(value is not None for value in column):
                if described.knows(name):
                    fields[name] = described.rows(name, column)
                else:
                    fields[name] = described.data(name, column) if own else _foreign(name, column)
        if own.get("ids") == "added":
            fields["extra_fields"] = [_without_ids(row) for row in fields["extra_fields"]]
        stored = {name: data[name] for name in self.beside if name in data} | dict(own.get("fields", {}))
        for name, value in stored.items():
            is_rows = isinstance(value, list) and len(value) == len(rows)
            fields[name] = (
                described.rows(name, value)
                if described.knows(name)
                else (undescribed_rows(value) if is_rows and name == "advantages" else described.data(name, value))
            )
        known = {path[0] for path in paths.values()}
        beyond = [{key: item for key, item in row.items() if key not in known} for row in rows]
        return fields, ({self.list_key: beyond} if any(beyond) else {})


def _beside(name: str, value: Any, sidecar: Sidecar) -> Any:
    """A field that stands for all samples at once: ragged rows as a list of lists."""
    if isinstance(value, Ragged):
        sidecar.describe(name, value)
        return AsList(value)
    return sidecar.whole(name, value)


def _foreign(name: str, column: list[Any]) -> Any:
    """A column of a file without a sidecar; a sample without extra fields has none of them."""
    if name != "extra_fields":
        return undescribed_rows(column)
    return [{} if row is None else row for row in column]


def _put(row: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        row = row.setdefault(key, {})
    row[path[-1]] = value


def _get(row: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def _with_ids(column: list[Any] | None, samples: Sequence[SampleId], own: dict[str, Any]) -> list[Any]:
    """extra_fields with group_id and run_id, by which NexRL's mock worker finds a sample; noted, to be undone."""
    if column is not None and any(isinstance(row, dict) and row.keys() & set(_IDS) for row in column):
        return column
    if column is not None:
        own["ids"] = "added"
    rows = column or [{} for _ in samples]
    return [(row or {}) | dict(zip(_IDS, sample, strict=True)) for row, sample in zip(rows, samples, strict=True)]


def _without_ids(row: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in row.items() if key not in _IDS}


_TRAJECTORY_PATHS = {name: (name,) for name in ("tokens", "loss_mask", "reward", "is_val", "extra_fields")}
_DATUM_PATHS = {"input_tokens": ("input_tokens",)} | {
    name: ("loss_fn_inputs", name) for name in ("target_tokens", "logprobs", "advantages", "loss_mask")
}
_FORMS = {
    "trajectory": RowsForm("trajectories", "num_trajectories", _TRAJECTORY_PATHS, (), {"is_val": False}),
    "prepared_trajectories": RowsForm(
        "trajectories", "num_trajectories", _TRAJECTORY_PATHS, ("advantages", "extra_info"), {"is_val": False}
    ),
    "datums": RowsForm("datums", "num_datums", _DATUM_PATHS, ("extra_info",), {}),
}


def form_of(kind: str) -> RowsForm | None:
    return _FORMS.get(kind)
