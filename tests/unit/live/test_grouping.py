"""Folded answers: equal ones once, odd ranks marked, numbers with their range."""

from rldbg.live import RankAnswer, compress, group_answers


def _answers(values, ok=True):
    return [RankAnswer(f"policy/{n}", ok, value, str(value)) for n, value in enumerate(values)]


def test_equal_answers_are_said_once():
    groups, spread = group_answers(_answers([0.5] * 32))
    assert [(f.value, len(f.who), f.odd) for f in groups] == [(0.5, 32, False)]
    assert spread.to_dict() == {"min": 0.5, "median": 0.5, "max": 0.5}


def test_the_rank_that_differs_is_odd():
    groups, _ = group_answers(_answers([7] * 30 + [8, 7]))
    assert [(f.value, f.odd) for f in groups] == [(7, False), (8, True)]
    assert groups[1].who == ("policy/30",)


def test_different_numbers_show_their_range_and_the_outlier():
    groups, spread = group_answers(_answers([1.0, 1.1, 0.9, 1.05, 50.0, 0.95]))
    assert (spread.low, spread.high) == (0.9, 50.0) and 0.9 < spread.middle < 1.1
    assert [f.value for f in groups if f.odd] == [50.0]


def test_nan_is_odd_beside_numbers_and_not_alone():
    groups, _ = group_answers(_answers([1.0, 1.0, float("nan"), 1.0]))
    assert [f.text for f in groups if f.odd] == ["nan"]
    groups, _ = group_answers(_answers([float("nan")] * 4))
    assert not groups[0].odd


def test_a_failure_is_odd_and_text_is_no_number():
    groups, spread = group_answers([*_answers(["a", "a", "b"]), RankAnswer("policy/3", False, None, "*** NameError")])
    assert spread is None
    assert [f.text for f in groups if f.odd] == ["*** NameError"]


def test_half_and_half_is_not_odd():
    groups, _ = group_answers(_answers(["a", "a", "b", "b"]))
    assert not any(f.odd for f in groups)


def test_names_are_compressed():
    names = ["policy/0", "policy/1", "policy/2", "policy/5", "driver", "vllm/0"]
    assert compress(names) == "policy/0-2,5 vllm/0 driver"
