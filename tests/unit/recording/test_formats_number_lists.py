"""Lists of numbers taken out of pickles as arrays: the same data as unpickling gives, whatever surrounds them."""

import pickle
import random
import tracemalloc

import numpy as np
import pytest

from rldbg.recording.formats.number_lanes import NumberLanes
from rldbg.recording.formats.pt_reader import load_pickle
from rldbg.recording.formats.shared_lists import SharedLists

LENGTHS = (0, 1, 2, 31, 32, 33, 999, 1000, 1001, 1002, 2000, 2001, 2500)
SMALL = (0, 1, 2, 31, 32, 33)


def numbers(rng: random.Random, length: int) -> list:
    """Token ids, masks, log probs, log probs that begin with integer zeros, and worse."""
    kind = rng.randrange(9)
    if kind == 0:
        return [rng.randrange(150_000) for _ in range(length)]
    if kind == 1:
        return [rng.randrange(2) for _ in range(length)]
    if kind == 2:
        return [-rng.random() for _ in range(length)]
    if kind == 3:
        return [0] * (length // 2) + [-rng.random() for _ in range(length - length // 2)]
    if kind == 4:
        return [rng.random() < 0.5 for _ in range(length)]
    if kind == 5:
        return [rng.choice((2**31, -(2**62), 5, -5)) for _ in range(length)]
    if kind == 6:
        return [rng.choice((1, 300, -70_000, 0.5, float("inf"))) for _ in range(length)]
    if kind == 7:
        return [rng.randrange(2**70) for _ in range(length)]
    return [rng.choice((1, 2.5, "text", None, True)) for _ in range(length)]


def structure(rng: random.Random, depth: int, shared: list) -> object:
    choice = rng.randrange(10) if depth else rng.randrange(4)
    if choice < 4:
        made = numbers(rng, rng.choice(LENGTHS if rng.random() < 0.2 else SMALL))
        if made and rng.random() < 0.1:
            made.append(structure(rng, 0, shared))
        shared.append(made)
        return made
    if choice == 4 and shared:
        return rng.choice(shared)
    if choice == 5:
        return (structure(rng, depth - 1, shared), rng.randrange(300), 0.5, rng.randrange(9))
    if choice == 6:
        return {f"k{i}": structure(rng, depth - 1, shared) for i in range(rng.randrange(4))}
    if choice == 7:
        return {rng.randrange(10**6) for _ in range(rng.choice(SMALL))}
    if choice == 8:
        return np.array([rng.randrange(9) for _ in range(40)], dtype=object)
    return [structure(rng, depth - 1, shared) for _ in range(rng.randrange(5))]


def listed(value: object) -> object:
    """Arrays as lists again, so that both ways of reading can be compared."""
    if isinstance(value, np.ndarray):
        return listed(value.tolist())
    if isinstance(value, dict):
        return {key: listed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(listed(item) for item in value)
    return value


@pytest.mark.parametrize("seed", range(30))
def test_both_ways_of_reading_agree(seed):
    rng = random.Random(seed)
    value = [structure(rng, 3, []) for _ in range(4)]
    pickled = pickle.dumps(value, rng.randrange(6))
    assert listed(load_pickle(pickled)) == listed(value)
    assert listed(load_pickle(pickled, arrays=True)) == listed(value)


@pytest.mark.parametrize("seed", range(100, 115))
def test_pickles_that_share_lists_are_read_as_if_they_did_not(seed):
    """The same lists in another order, cut, continued, or with one number changed."""
    rng, shared = random.Random(seed), SharedLists()
    lists = [numbers(rng, rng.choice(LENGTHS[:10])) for _ in range(6)]
    for _ in range(5):
        value = [list(rng.choice(lists)) for _ in range(8)]
        for some in rng.sample(value, 3):
            half = len(some) // 2
            some[half:] = rng.choice(([], [*some[half:], 7], [*some[half + 1 :], 70_000]))
        pickled = pickle.dumps(value, rng.randrange(6))
        with shared.in_use():
            assert listed(load_pickle(pickled, arrays=True)) == value


def test_a_list_that_two_pickles_have_is_decoded_once():
    tokens = [random.Random(1).randrange(150_000) for _ in range(2500)]
    one, other = (pickle.dumps([before, list(tokens)], 2) for before in ("a", 5))
    shared = SharedLists()
    with shared.in_use():
        first, second = load_pickle(one, arrays=True)[1], load_pickle(other, arrays=True)[1]
    assert first is second and first.tolist() == tokens
    assert load_pickle(one, arrays=True)[1] is not first


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_both_ways_of_reading_agree_thousands_of_times():
    for seed in range(1000, 9000):
        test_both_ways_of_reading_agree(seed)


@pytest.mark.parametrize("protocol", range(6))
def test_dtypes_and_types(protocol):
    tokens = [random.Random(1).randrange(150_000) for _ in range(5001)]
    value = {"tokens": tokens, "logprobs": [-0.5] * 100, "mask": [True] * 64, "short": [1, 2], "words": ["a"] * 64}
    loaded = load_pickle(pickle.dumps(value, protocol), arrays=True)
    assert loaded["short"] == [1, 2] and loaded["words"] == ["a"] * 64
    if protocol == 2:  # the protocol of torch.save
        assert [loaded[name].dtype for name in ("tokens", "logprobs", "mask")] == [np.int64, np.float64, np.bool_]
    assert np.array_equal(loaded["tokens"], tokens)


def test_numbers_that_look_like_the_start_of_a_list_cost_no_lane():
    """Token 0x284D is written as M, M, MARK: with the next opcode it looks like a list of its own."""
    rows = [[0x284D, 70_000 + row, 3] * 400 for row in range(50)]
    pickled = pickle.dumps(rows, protocol=2)
    lanes = NumberLanes(pickled, decode=True)
    lanes.at(pickled.index(b"(M") + 1)
    assert len(lanes._guesses) == 100, "two batches per list"
    assert [list(row) for row in load_pickle(pickled, arrays=True)] == rows


def test_lists_that_share_stay_shared():
    row = list(range(1000))
    loaded = load_pickle(pickle.dumps({"a": row, "b": row}, 2), arrays=True)
    assert loaded["a"] is loaded["b"]


def test_a_list_that_grows_later_stays_a_list():
    # LIST of 40 numbers, memoized, put into a tuple, then appended to through the memo
    body = b"(" + b"K\x07" * 40 + b"e"
    pickled = b"\x80\x02]q\x00" + body + b"h\x00X\x01\x00\x00\x00xa\x86."
    assert pickle.loads(pickled) == load_pickle(pickled, arrays=True) == ([7] * 40 + ["x"],) * 2


def test_no_object_is_made_for_each_number():
    rng = random.Random(0)
    pickled = pickle.dumps([[rng.randrange(150_000) for _ in range(1000)] for _ in range(200)], 2)
    load_pickle(pickled, arrays=True)
    tracemalloc.start()
    loaded = load_pickle(pickled, arrays=True)
    live, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(loaded) == 200
    assert live < 200 * 1000 * 8 * 1.2
    assert peak < 20 * len(pickled) + (40 << 20)
