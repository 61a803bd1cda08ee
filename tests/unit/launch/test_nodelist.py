"""Slurm's node lists, expanded without Slurm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rldbg.core import UsageError
from rldbg.launch.nodelist import expand


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("node-12,node-[22,30],node-49", ["node-12", "node-22", "node-30", "node-49"]),
        ("gpu[001-003,010]", ["gpu001", "gpu002", "gpu003", "gpu010"]),
        ("r[0-1]n[08-09]", ["r0n08", "r0n09", "r1n08", "r1n09"]),
        ("node-[9-12]", ["node-9", "node-10", "node-11", "node-12"]),
        ("a[1-2]-ib,b", ["a1-ib", "a2-ib", "b"]),
        ("login", ["login"]),
        ("", []),
        (" a , b ", ["a", "b"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ],
)
def test_expansion(nodelist, names):
    assert expand(nodelist) == names


@pytest.mark.parametrize(
    "nodelist", ["n[1", "n1]", "n[a]", "n[3-1]", "n[[1]]", "n[]", "n[1-]", "n[0-99999999]", "n[1-999]m[1-999]"]
)
def test_what_is_no_node_list_is_refused(nodelist):
    with pytest.raises(UsageError):
        expand(nodelist)


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=20), st.integers(1, 6))
def test_every_number_comes_out_padded_as_written(numbers, width):
    inside = ",".join(str(number).zfill(width) for number in numbers)

    assert expand(f"n[{inside}]") == [f"n{str(number).zfill(width)}" for number in numbers]
