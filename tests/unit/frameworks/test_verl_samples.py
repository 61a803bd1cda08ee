"""verl's batches as plain rows: jagged tensors, metrics that are objects, and ids that every run has."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest

from rldbg.core import SampleId
from rldbg.frameworks.verl.samples import (
    columns_of,
    extras_of,
    float_or_none,
    ids_of,
    loss_facts,
    padded,
    ranks_of,
    rows_of,
)
from rldbg.frameworks.verl.turns import OUTPUT

torch = pytest.importorskip("torch")


def jagged(*rows):
    return torch.nested.nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def test_a_sample_is_named_by_index_step_and_session():
    data = {"index": np.array([7, 7]), "session_id": [0, 1], "global_steps": np.array([3, 3]), "uid": ["x", "y"]}
    assert ids_of(data) == [SampleId("7#3", 0), SampleId("7#3", 1)]
    filled = data | {"uid": ["pad0f3a", "y"]}
    assert ids_of(filled) == [SampleId("padding#3", 0), SampleId("7#3", 1)]


def test_sequences_of_one_rollout_have_names_of_their_own():
    """The last is the rollout's; the earlier ones are a group named after it, and a rerun makes the same names."""
    extra = [{OUTPUT: [0, 2]}, {OUTPUT: [1, 2]}, {}]
    data = {"index": ["a#b/1"] * 3, "session_id": [0, 0, 1], "global_steps": [3] * 3, "extra_fields": extra}
    named = ids_of(data)
    assert named == [SampleId("a#b/1#3/0", 0), SampleId("a#b/1#3", 0), SampleId("a#b/1#3", 1)]
    assert ids_of(columns_of(named)) == named
    assert [SampleId.parse(str(sample)) for sample in named] == named
    assert [extras_of(data, row) for row in range(3)] == [
        {"output": 0, "outputs": 2},
        {"output": 1, "outputs": 2},
        {},
    ]


def test_jagged_rows_are_padded_behind_and_read_one_by_one():
    value = jagged([1.0, 2.0], [3.0])
    assert padded(value).tolist() == [[1.0, 2.0], [3.0, 0.0]]
    assert [row.tolist() for row in rows_of(value)] == [[1.0, 2.0], [3.0]]
    assert [row.dtype for row in rows_of(torch.ones(2, 2, dtype=torch.bfloat16))] == [np.float32, np.float32]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, 2.0),
        (torch.tensor(1.5), 1.5),
        ([0.5], 0.5),
        (SimpleNamespace(aggregate=lambda: 4), 4.0),
        ("text", None),
        ([1, 2], None),
    ],
)
def test_metrics_are_numbers_or_left_out(value, expected):
    assert float_or_none(value) == expected


def test_the_loss_says_by_what_a_mini_batch_is_divided():
    def loss(config, **_):
        raise AssertionError("only its settings are read")

    data = {"batch_num_tokens": torch.tensor(40.0), "dp_size": 2, "global_batch_size": 16}
    by_tokens = functools.partial(loss, config=SimpleNamespace(loss_agg_mode="token-mean"))
    assert loss_facts(by_tokens, data) == {
        "loss_agg_mode": "token-mean",
        "aggregation": "token_mean",
        "denominator": 40.0,
    }
    other = functools.partial(loss, config=SimpleNamespace(loss_agg_mode="seq-mean-token-sum"))
    assert loss_facts(other, data) == {"loss_agg_mode": "seq-mean-token-sum"}
    assert loss_facts(loss, data) == {}
    assert ranks_of(data) == 2
    assert ranks_of({}) == 1
