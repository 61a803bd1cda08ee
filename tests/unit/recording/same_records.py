"""Whether two recordings hold the same records: value by value, dtype by dtype, NaN equal to NaN."""

import numpy as np

from rldbg.recording import EncodedArray, Ragged, Record


def assert_same_record(first: Record, second: Record) -> None:
    assert first.key == second.key
    assert first.samples == second.samples
    assert first.prompt_hashes == second.prompt_hashes
    assert (first.role, dict(first.coordinates)) == (second.role, dict(second.coordinates))
    assert first.policy_version == second.policy_version
    assert_same(dict(first.fields), dict(second.fields), str(first.key))
    assert_same(dict(first.extra), dict(second.extra), f"extra of {first.key}")


def assert_same(first: object, second: object, where: str) -> None:
    if isinstance(first, np.generic):
        first = first.item()
    if isinstance(second, np.generic):
        second = second.item()
    if isinstance(first, dict):
        assert isinstance(second, dict), where
        assert list(map(str, first)) == list(map(str, second)) or set(first) == set(second), where
        for key, value in first.items():
            assert_same(value, second[key], f"{where}.{key}")
    elif isinstance(first, list | tuple):
        assert isinstance(second, list | tuple), where
        assert len(first) == len(second), where
        for place, (one, other) in enumerate(zip(first, second, strict=True)):
            assert_same(one, other, f"{where}[{place}]")
    elif isinstance(first, Ragged):
        assert isinstance(second, Ragged), where
        np.testing.assert_array_equal(first.offsets, second.offsets, where)
        assert_same(first.values, second.values, where)
    elif isinstance(first, EncodedArray):
        assert isinstance(second, EncodedArray), where
        assert first.dtype == second.dtype, where
        np.testing.assert_array_equal(first.decode(), second.decode(), where)
    elif isinstance(first, np.ndarray):
        assert isinstance(second, np.ndarray), where
        assert (first.dtype, first.shape) == (second.dtype, second.shape), where
        np.testing.assert_array_equal(first, second, where)
    elif isinstance(first, float) and first != first:
        assert isinstance(second, float), where
        assert second != second, where
    else:
        assert first == second, where
