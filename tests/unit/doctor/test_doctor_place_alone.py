"""The name of a file or a folder alone makes no cause: what the function does, or what the exception says, must fit."""

import pytest

LIBRARY = "/v/lib/python3.11/site-packages/"


def traceback(*frames, said):
    shown = "".join(
        f'  File "{file}", line {7 + n}, in {function}\n    {code}\n' for n, (file, function, code) in enumerate(frames)
    )
    return f"Traceback (most recent call last):\n{shown}{said}\n"


def ids(found):
    return [cause.id for cause in found.root_causes]


@pytest.mark.parametrize(
    ("file", "function", "code", "said", "wrong"),
    [
        ("/w/quilts/dataset/layout.py", "count_seam_boundaries", "assert rows == wanted", "AssertionError", "data-"),
        ("/w/quilts/datasets/plan.py", "split_into_minibatches", "raise ValueError(n)", "ValueError: 7", "data-"),
        ("/w/quilts/dataloader/frob.py", "shard_for_rank", "x[rank]", "IndexError: list index out of range", "data-"),
        ("/w/quilts/rewards/spread.py", "split_microbatches", "assert a == b", "AssertionError", "reward-"),
        ("/w/quilts/reward_manager/frob.py", "gather_ranks", "y = t[k]", "KeyError: 3", "reward-"),
        ("/w/quilts/envs/pool.py", "partition_workers", "assert n % k == 0", "AssertionError", "environment-"),
        ("/w/quilts/tools/launch.py", "place_ranks", "raise ValueError(n)", "ValueError", "environment-"),
        ("/w/quilts/checkpoint/frob.py", "wibble", "assert n > 0", "AssertionError", "checkpoint-"),
    ],
)
def test_a_folder_s_name_does_not_make_the_cause(verdict, file, function, code, said, wrong):
    found = verdict(traceback(("/w/main.py", "main", "go()"), (file, function, code), said=said))
    assert not any(name.startswith(wrong) for name in ids(found)), ids(found)
    assert found.verdict != "healthy"
    assert wrong == "checkpoint-" or not any(wrong in step for step in found.next), "nor a candidate"


@pytest.mark.parametrize(
    ("file", "function", "said", "right"),
    [
        ("/w/quilts/dataset/rows.py", "__getitem__", "KeyError: 'seams'", "data-preparation-failed"),
        (
            "/w/quilts/dataset/rows.py",
            "build_prompt",
            "TypeError: string indices must be integers",
            "data-preparation-failed",
        ),
        ("/w/quilts/collator.py", "__call__", "ValueError: no seam in row 7", "data-preparation-failed"),
        ("/w/quilts/reward_score/frob.py", "grade", "TypeError: float() argument is None", "reward-function-failed"),
        ("/w/quilts/envs/frob.py", "step", "KeyError: 'seam'", "environment-code-failed"),
        ("/w/quilts/checkpoint.py", "load_frob", "KeyError: 'seam'", "checkpoint-operation-failed"),
    ],
)
def test_what_the_function_does_makes_it(verdict, file, function, said, right):
    found = verdict(traceback(("/w/main.py", "main", "go()"), (file, function, "wibble(seam)"), said=said))
    assert ids(found) == [right]
