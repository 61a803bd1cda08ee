"""What a file says about a record besides its data: whose rows it has, which process made it, and by which policy."""

from collections.abc import Callable, Mapping
from typing import Any

from rldbg.core import SampleId
from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.tagged_json import from_json, to_json
from rldbg.recording.records import SCHEMA_VERSION, Record


def identity_of(record: Record) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "key": list(record.key),
        "samples": [list(sample) for sample in record.samples],
        "prompt_hashes": list(record.prompt_hashes),
        "role": record.role,
        "coordinates": dict(record.coordinates),
        "policy_version": record.policy_version,
        "extra": to_json(dict(record.extra)),
    }


def read_identity(about: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a Record, except its key and fields; what is not said has its default."""
    return {
        "samples": tuple(SampleId(*item) for item in take(about, "samples", are_samples, [])),
        "prompt_hashes": tuple(take(about, "prompt_hashes", list_of(is_text), [])),
        "role": take(about, "role", is_text, ""),
        "coordinates": take(about, "coordinates", are_coordinates, {}),
        "policy_version": take(about, "policy_version", is_version),
        "extra": from_json(about.get("extra", {})),
    }


def take(about: Mapping[str, Any], name: str, is_valid: Callable[[Any], bool], default: Any = None) -> Any:
    """A part of what a file says about itself; a missing one is its default where that is valid."""
    value = about.get(name, default)
    if not is_valid(value):
        raise Malformed(f"its description of {name} is not valid: {value!r:.60}")
    return value


def list_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def is_int(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def are_samples(value: Any) -> bool:
    """One loop without calls: a file may name a hundred thousand of them."""
    return isinstance(value, list) and all(
        type(item) is list
        and len(item) == 2
        and type(item[0]) is str
        and type(item[1]) is int
        and -(1 << 63) <= item[1] < 1 << 63
        for item in value
    )


def is_version(value: Any) -> bool:
    return value is None or is_int(value)


def are_coordinates(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_int, value.values()))
