"""Python lists become arrays without losing a value, and what is not numbers stays as it is."""

import math

import numpy as np
import pytest

from rldbg.recording.recorder.lists import array_from_list, ragged_from_lists
from rldbg.recording.recorder.memory import HeapMemory


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        ([[0, 1, 1], [1]], np.uint8),
        ([[0, 151643], [7]], np.int32),
        ([[0, 1], [151643]], np.int32),
        ([[2**40, -1]], np.int64),
        ([[-1, 0, 1]], np.int32),
        ([[-0.5, float("nan")], [math.inf]], np.float64),
        ([[0, 0, -0.25]], np.float64),
        ([[0, 1], [0.5]], np.float64),
        ([[True, False], [True]], np.bool_),
        ([[True, 2]], np.uint8),
        ([[], [3, 4]], np.uint8),
        ([(1, 300), [5]], np.int32),
        ([[np.int64(5), np.int64(300)]], np.int32),
        ([[np.float32(0.5)]], np.float64),
    ],
)
def test_rows_keep_their_values_in_the_narrowest_type(rows: list, dtype: type) -> None:
    ragged = ragged_from_lists(rows, HeapMemory())
    assert ragged is not None
    assert ragged.values.dtype == dtype
    for got, row in zip(ragged, rows, strict=True):
        np.testing.assert_array_equal(got, np.asarray(row, dtype=dtype))


def test_floats_keep_every_bit() -> None:
    values = [0.1, 1e-310, -0.0, 2**53 + 2.0, float("-inf")]
    array = array_from_list(values, HeapMemory())
    assert array is not None
    assert array.tobytes() == np.array(values).tobytes()


@pytest.mark.parametrize("rows", [[["a"]], [[None, -0.5]], [[{"x": 1}]], [[2**70]], [[1, 0.5, 2**60]], [[[1]]]])
def test_what_is_not_numbers_is_left_alone(rows: list) -> None:
    memory = HeapMemory()
    assert ragged_from_lists(rows, memory) is None
    assert memory.size == 0, "failed attempts keep memory"


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([1, 2, 2**40], np.int64), ([1, 0.5], np.float64), ([True, False], np.bool_), ([0, 1], np.int64)],
)
def test_flat_lists_have_one_of_three_types(values: list, dtype: type) -> None:
    array = array_from_list(values, HeapMemory())
    assert array is not None
    assert (array.dtype, array.tolist()) == (dtype, values)


def test_integers_that_do_not_fit_anywhere_are_data() -> None:
    assert array_from_list([2**70], HeapMemory()) is None
