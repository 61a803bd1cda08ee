"""What holds for any recording: equal to itself, symmetric, one element found where it is, layout without effect."""

import copy
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layout_recordings import SAMPLES, step_values, write
from rldbg.analysis import compare

FEW = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
MANY = settings(FEW, max_examples=200, derandomize=False, print_blob=True)
LAYOUTS = st.fixed_dictionaries(
    {
        "ranks": st.integers(1, 3),
        "micro": st.integers(1, 6),
        "order": st.permutations(range(SAMPLES)),
        "pad": st.integers(0, 3),
    }
)


@FEW
@given(seed=st.integers(0, 1000), one=LAYOUTS, other=LAYOUTS)
def test_any_recording_equals_itself_under_any_layout(seed, one, other):
    values = step_values(seed)
    with tempfile.TemporaryDirectory() as folder:
        a, b = write(Path(folder) / "a", values, **one), write(Path(folder) / "b", values, **other)
        assert compare(a, a).verdict == "equal"
        assert {compare(a, b).verdict, compare(b, a).verdict} <= {"equal", "equal within noise"}


@FEW
@given(layout=LAYOUTS, sample=st.integers(0, SAMPLES - 1), where=st.floats(0, 0.999), size=st.floats(1e-4, 10))
def test_one_element_is_found_at_its_place_from_either_side(layout, sample, where, size):
    values = step_values(1)
    changed = copy.deepcopy(values)
    token = int(where * len(values["log_probs"][sample]))
    changed["log_probs"][sample][token] -= np.float32(size)
    with tempfile.TemporaryDirectory() as folder:
        a, b = write(Path(folder) / "a", values), write(Path(folder) / "b", changed, **layout)
        there, back = compare(a, b, kinds=["forward_data"]), compare(b, a, kinds=["forward_data"])
    group, run = values["ids"][sample]
    for result in (there, back):
        first = result.first_difference.to_dict()
        assert (first["field"], first["sample"], first["token"]) == ("log_probs", f"{group}/{run}", token)
    (one,), (other,) = ([r for r in result.fields if r.field == "log_probs"] for result in (there, back))
    assert (
        (one.measured.beyond, one.measured.max_abs)
        == (other.measured.beyond, other.measured.max_abs)
        == (
            1,
            one.measured.max_abs,
        )
    )
    assert there.first_difference.place.a == back.first_difference.place.b


@FEW
@given(seed=st.integers(0, 1000), place=st.integers(0, 47))
def test_one_parameter_is_found_at_its_index(seed, place):
    values = step_values(seed)
    changed = copy.deepcopy(values)
    index = np.unravel_index(place, values["parameter"].shape)
    # Without gradients, and with one recorded state, smaller ones may be an optimizer's step of another sign.
    changed["parameter"][index] += np.float32(1)
    with tempfile.TemporaryDirectory() as folder:
        a = write(Path(folder) / "a", values)
        b = write(Path(folder) / "b", changed, ranks=2, shards=2)
        first = compare(a, b).first_difference
    assert first.stage.value == "parameter" and first.place.index == tuple(int(part) for part in index)


@pytest.mark.soak
@pytest.mark.parametrize(
    "prop",
    [
        test_any_recording_equals_itself_under_any_layout,
        test_one_element_is_found_at_its_place_from_either_side,
        test_one_parameter_is_found_at_its_index,
    ],
)
def test_all_of_these_hold_for_many_recordings(prop):
    MANY(given(**prop.hypothesis._given_kwargs)(prop.hypothesis.inner_test))()
