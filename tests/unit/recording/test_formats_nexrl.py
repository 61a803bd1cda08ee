"""The documented NexRL dictionaries: every key and type as the document has them, and files of NexRL itself."""

import json
import math

import numpy as np
import pytest
import torch

from rldbg.core import IncompleteDataError, SampleId, prompt_hash
from rldbg.recording.formats.jsonl_file import dump_jsonl, load_jsonl
from rldbg.recording.formats.nexrl_dict import from_dict, to_dict
from rldbg.recording.formats.pt_reader import load_pt
from rldbg.recording.formats.pt_writer import dump_pt
from rldbg.recording.records import EncodedArray, Ragged, Record, RecordKey, prompt_lengths
from third_party import material, needs

FIXTURES = material("fixtures/nexrl")
SAMPLES = (SampleId("g0", 0), SampleId("g0", 1))
ROWS = Ragged.from_rows([[1, 2, 3], [4]], np.int64)
FLOATS = Ragged.from_rows([[0.0, -0.5, -0.25], [-1.0]], np.float32)
MATRIX = np.array([[-0.5, -0.25], [-1.0, 0.0]], np.float32)
BF16 = EncodedArray(np.full((2, 2), 0x3F80, np.uint16), "bfloat16")


def loaded(tmp_path, kind: str, fields: dict, samples=SAMPLES) -> dict:
    """What torch makes of the record's .pt file."""
    path = tmp_path / "x.pt"
    dump_pt(to_dict(Record(RecordKey(kind, 3, 1, 2), fields, samples)), path)
    return torch.load(path, weights_only=True)


def test_trajectory(tmp_path):
    fields = {
        "tokens": ROWS,
        "loss_mask": Ragged(np.ones(4, np.int8), ROWS.offsets),
        "reward": np.array([0.5, 1.0], np.float32),
        "logprobs": FLOATS,
        "extra_fields": [{"task_id": 7, "score": np.float32(0.5)}, {}],
    }
    data = loaded(tmp_path, "trajectory", fields)
    own = data.pop("_rldbg")
    assert data == {
        "step": 3,
        "num_trajectories": 2,
        "trajectories": [
            {
                "tokens": [1, 2, 3],
                "loss_mask": [1, 1, 1],
                "reward": 0.5,
                "extra_fields": {"task_id": 7, "score": 0.5, "group_id": "g0", "run_id": 0},
                "is_val": False,
            },
            {
                "tokens": [4],
                "loss_mask": [1],
                "reward": 1.0,
                "extra_fields": {"group_id": "g0", "run_id": 1},
                "is_val": False,
            },
        ],
    }
    first = data["trajectories"][0]
    assert (type(first["tokens"][0]), type(first["reward"]), type(first["is_val"])) == (int, float, bool)
    assert own["fields"]["logprobs"] == [[0.0, -0.5, -0.25], [-1.0]]
    assert own["key"] == ["trajectory", 3, 1, 2, 0, 0] and own["samples"] == [["g0", 0], ["g0", 1]]


def test_prepared_trajectories_keep_their_advantages_beside_them(tmp_path):
    fields = {"tokens": ROWS, "loss_mask": ROWS, "reward": np.zeros(2), "advantages": FLOATS, "extra_info": {"a": 1}}
    data = loaded(tmp_path, "prepared_trajectories", fields)
    assert data.keys() == {"step", "num_trajectories", "trajectories", "advantages", "extra_info", "_rldbg"}
    assert data["advantages"] == [[0.0, -0.5, -0.25], [-1.0]]


def test_datums(tmp_path):
    fields = {
        "input_tokens": ROWS,
        "target_tokens": ROWS,
        "logprobs": FLOATS,
        "advantages": FLOATS,
        "loss_mask": FLOATS,
    }
    data = loaded(tmp_path, "datums", fields)
    assert data.keys() == {"step", "num_datums", "datums", "_rldbg"} and data["num_datums"] == 2
    floats = [0.0, -0.5, -0.25]
    assert data["datums"][0] == {
        "input_tokens": [1, 2, 3],
        "loss_fn_inputs": {
            "target_tokens": [1, 2, 3],
            "logprobs": floats,
            "advantages": floats,
            "loss_mask": floats,
        },
    }


def test_old_log_probs(tmp_path):
    data = loaded(tmp_path, "old_log_probs", {"old_log_probs": BF16, "batch_info": {"batch_size": 2}})
    assert data.keys() == {"step", "old_log_probs", "shape", "batch_info", "_rldbg"}
    assert data["old_log_probs"].dtype == torch.bfloat16 and data["shape"] == [2, 2]


def test_forward_data(tmp_path):
    ids = np.arange(8).reshape(2, 4)
    fields = {"log_probs": FLOATS, "entropy": MATRIX, "response_mask": np.ones((2, 2), np.int64), "input_ids": ids}
    data = loaded(tmp_path, "forward_data", fields)
    tensors = {"log_probs", "entropy", "response_mask", "input_ids"}
    assert data.keys() == tensors | {"step", "rank", "micro_idx", "log_probs_shape", "entropy_shape", "_rldbg"}
    assert (data["step"], data["rank"], data["micro_idx"]) == (3, 1, 2)
    assert data["log_probs"].tolist() == [[0.0, -0.5, -0.25], [-1.0, 0.0, 0.0]]
    assert data["log_probs_shape"] == [2, 3] and data["entropy_shape"] == [2, 2]
    assert data["input_ids"].dtype == torch.int64


def test_loss_values_are_floats(tmp_path):
    fields = {
        "loss": np.array(0.5, np.float32),
        "pg_loss": np.float64(0.25),
        "entropy_loss": EncodedArray(np.array(0x3F80, np.uint16), "bfloat16"),
        "metrics": {"actor/clipfrac": np.float32(0.5), "list": np.arange(3), "odd": {1, 2}},
        "extra_info": {"epoch": 0},
    }
    data = loaded(tmp_path, "loss", fields)
    assert data.keys() == {"step", "rank", "micro_idx", *fields, "_rldbg"}
    assert [type(data[name]) for name in ("loss", "pg_loss", "entropy_loss")] == [float] * 3
    assert data["entropy_loss"] == 1.0
    assert data["metrics"] == {"actor/clipfrac": 0.5, "list": [0, 1, 2], "odd": "{1, 2}"}


def test_is_loss_debug_keeps_tensors(tmp_path):
    names = ("log_probs", "old_log_probs", "advantages", "prob_ratio", "elementwise_loss", "effective_valid")
    data = loaded(tmp_path, "is_loss_debug", dict.fromkeys(names, MATRIX) | {"loss": np.array(1.0, np.float32)})
    assert data.keys() == {"step", "rank", "micro_idx", *names, "loss", "_rldbg"}
    assert data["loss"].shape == ()


def test_param_and_gradient(tmp_path):
    about = {"shape": [2, 2], "dtype": "torch.bfloat16", "norm": 2.0, "mean": 1.0, "std": 0.0}
    for kind in ("param", "gradient"):
        data = loaded(tmp_path, kind, {"param_name": "w", kind: BF16, **about}, ())
        assert data.keys() == {"step", "rank", "param_name", kind, *about, "_rldbg"}
        assert data[kind].dtype == torch.bfloat16 and data["dtype"] == "torch.bfloat16"


def test_training_metrics(tmp_path):
    data = loaded(tmp_path, "training_metrics", {"metrics": {"loss": 0.5, "tokens": 12}}, ())
    assert data.keys() == {"step", "metrics", "_rldbg"} and data["metrics"] == {"loss": 0.5, "tokens": 12}


def test_jsonl_is_one_line_that_every_parser_reads(tmp_path):
    path = tmp_path / "x.jsonl"
    values = np.array([[math.nan, math.inf], [-math.inf, 0.5]], np.float32)
    fields = {"log_probs": values, "entropy": values, "response_mask": values, "extra_info": {"a/b": math.nan}}
    dump_jsonl(to_dict(Record(RecordKey("forward_data", 0), fields)), path)
    text = path.read_text()
    assert text.count("\n") == 1 and text.endswith("\n")
    assert '"log_probs": [[null, 1e999], [-1e999, 0.5]]' in text
    plain = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert plain["log_probs"] == [[None, math.inf], [-math.inf, 0.5]]
    assert plain["_rldbg"]["nan"] == {"log_probs": [0], "entropy": [0], "response_mask": [0], "extra_info/a~1b": [0]}
    assert math.isnan(load_jsonl(path)["extra_info"]["a/b"])


def test_bare_nan_and_infinity_are_read(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(
        '{"step": 0, "rank": 0, "micro_idx": 0, "log_probs": [[NaN, -Infinity]], "entropy": [[0.0, 1.0]]}\n'
    )
    record = from_dict("forward_data", load_jsonl(path))
    assert repr(record.fields["log_probs"].tolist()) == "[[nan, -inf]]"


@needs(FIXTURES)
@pytest.mark.parametrize("folder", ["self_hosted_pt", "self_hosted_jsonl", "weaver_pt", "weaver_jsonl"])
def test_files_of_nexrl_itself(tmp_path, folder):
    paths = sorted((FIXTURES / folder).glob("*/*"))
    assert len(paths) >= 9
    for path in paths:
        data = load_pt(path) if path.suffix == ".pt" else load_jsonl(path)
        record = from_dict(path.parent.name, data, source=str(path))
        again = to_dict(record)
        assert again.keys() - {"_rldbg"} == data.keys(), path
        dump_jsonl(again, tmp_path / "x.jsonl")
        written = load_jsonl(tmp_path / "x.jsonl")
        written.pop("_rldbg")
        if path.suffix == ".jsonl":
            assert written == data, path


@pytest.mark.parametrize(
    ("masks", "lengths"),
    [
        ([[0, 0, 1, 1], [1, 0, 1], [0, 0], [], [0, 1]], [2, 0, 2, 0, 1]),
        ([[1, 1], [1, 1]], [0, 0]),
        ([[0, 1], [0, 0]], [1, 2]),
        ([[], []], [0, 0]),
    ],
)
def test_a_prompt_ends_where_its_own_row_is_first_trained(masks, lengths):
    mask = Ragged.from_rows(masks, np.int64)
    assert prompt_lengths(mask.values, mask.offsets).tolist() == lengths


def test_a_foreign_trajectory_gets_its_ids_and_prompt_hash():
    row = {"tokens": [5, 6, 7], "loss_mask": [0, 1, 1], "reward": 1, "is_val": True}
    ids = {"group_id": "g", "run_id": 4}
    data = {
        "step": 8,
        "num_trajectories": 1,
        "trajectories": [row | {"extra_fields": ids, "logprobs": [0, -0.5, -1.5], "odd": 1}],
    }
    record = from_dict("trajectory", data)
    assert record.key == RecordKey("trajectory", 8)
    assert record.samples == (SampleId("g", 4),)
    assert record.prompt_hashes == (prompt_hash(np.array([5], "<i8").tobytes()),)
    assert record.fields["logprobs"].values.tolist() == [0, -0.5, -1.5]
    assert record.extra == {"trajectories": [{"odd": 1}]}


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("trajectory", [1], "holds a list"),
        ("trajectory", {"step": 0}, "not a list of dictionaries"),
        ("trajectory", {"step": 0, "num_trajectories": 2, "trajectories": []}, "num_trajectories is 2"),
        ("loss", {"loss": 1.0}, "no step, rank"),
        ("loss", {"step": 0, "_rldbg": []}, "_rldbg is not a mapping"),
        ("loss", {"step": 0, "_rldbg": {"schema_version": 99}}, "format 99"),
        ("loss", {"step": 0, "_rldbg": {"schema_version": 1, "key": ["other", 0, 0, 0, 0, 0]}}, "another record"),
        ("loss", {"step": 0, "_rldbg": {"key": ["loss", 0, "x", 0, 0, 0]}}, "no proper key"),
        ("loss", {"step": 0, "_rldbg": {"samples": [[1, 2]]}}, "description of samples is not valid"),
        ("loss", {"step": 0, "_rldbg": {"dtypes": [], "role": "x"}}, "dtypes is not a mapping"),
        ("forward_data", {"step": 0, "log_probs": 1, "_rldbg": {"shapes": {"log_probs": [2]}}}, "has no dtype"),
        (
            "forward_data",
            {"log_probs": [1.5], "_rldbg": {"shapes": {"log_probs": [1]}, "dtypes": {"log_probs": "int8"}}},
            "not int8",
        ),
        (
            "forward_data",
            {"log_probs": [0.1], "_rldbg": {"shapes": {"log_probs": [1]}, "dtypes": {"log_probs": "bfloat16"}}},
            "not bfloat16",
        ),
        (
            "forward_data",
            {"log_probs": [[1.0]], "_rldbg": {"lengths": {"log_probs": [5]}, "dtypes": {"log_probs": "float32"}}},
            "cannot be decoded",
        ),
    ],
)
def test_dictionaries_that_lie_are_refused(kind, data, reason):
    with pytest.raises(IncompleteDataError, match=reason):
        from_dict(kind, data, source="somewhere.pt")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[1]", "not one JSON object"),
        ('{"a": 1}\n{"a": 2}\n', "Extra data"),
        ('{"a": ' * 5000, "nested too deeply"),
        ('{"a": ' * 300 + "1" + "}" * 300, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "cannot be decoded"),
        ('{"a": "\xff"}', "not UTF-8"),
        ('{"a": [null], "_rldbg": {"nan": {"a": [5]}}}', "beyond its end"),
        ('{"a": [1.5], "_rldbg": {"nan": {"a": [0]}}}', "where there is 1.5"),
        ('{"a": [null], "_rldbg": {"nan": {"a": [-1]}}}', "not integers"),
        ('{"a": [null], "_rldbg": {"nan": {"b/c": [0]}}}', "cannot be decoded"),
        ('{"a": [null], "_rldbg": {"nan": [1]}}', "not a mapping"),
    ],
)
def test_jsonl_files_that_lie_are_refused(tmp_path, text, reason):
    path = tmp_path / "x.jsonl"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(IncompleteDataError, match=reason) as caught:
        load_jsonl(path)
    assert "x.jsonl" in caught.value.message


def test_brackets_in_text_are_not_nesting(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"text": "[" * 5000 + '\\"{' * 300, "rows": [[1.5]] * 1000}))
    assert load_jsonl(path)["text"].startswith("[[")
