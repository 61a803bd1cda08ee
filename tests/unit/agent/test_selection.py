"""The selection grammar: one meaning everywhere."""

import pytest

from rldbg.agent import SelectionError, Subject, parse_selection

_PEOPLE = [
    Subject("driver", "driver", None, {}, 10, "pol"),
    *(Subject(f"policy/{r}", "policy", r, {"dp": r // 4, "tp": r % 4}, 100 + r) for r in range(8)),
    *(Subject(f"vllm_worker/{r}", "vllm_worker", r, {}, 200 + r) for r in range(2)),
]


def _chosen(text):
    return [subject.who for subject in _PEOPLE if parse_selection(text).matches(subject)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", [subject.who for subject in _PEOPLE]),
        ("0", ["policy/0", "vllm_worker/0"]),
        ("1,3", ["policy/1", "policy/3", "vllm_worker/1"]),
        ("0:8:2", ["policy/0", "policy/2", "policy/4", "policy/6", "vllm_worker/0"]),
        ("6:", ["policy/6", "policy/7"]),
        ("policy/0", ["policy/0"]),
        ("policy/1,3", ["policy/1", "policy/3"]),
        ("policy/2:4", ["policy/2", "policy/3"]),
        ("*vllm*", ["vllm_worker/0", "vllm_worker/1"]),
        ("driver,policy/7", ["driver", "policy/7"]),
        ("dp=0,tp=1:3", ["policy/1", "policy/2"]),
        ("tp=(0,3)", ["policy/0", "policy/3", "policy/4", "policy/7"]),
        ("@201", ["vllm_worker/1"]),
        # What it was called before Ray had started, and no pattern that begins alike.
        ("pol", ["driver"]),
        ("pol*", [f"policy/{r}" for r in range(8)]),
        ("nobody", []),
    ],
)
def test_selects(text, expected):
    assert _chosen(text) == expected


@pytest.mark.parametrize("text", ["", " , ", "0:8:0", "1:2:3:4", "dp=x", "@self", "0-3"])
def test_refuses_what_it_does_not_understand(text):
    with pytest.raises(SelectionError):
        parse_selection(text)
