"""Values as text: short, informative about tensors, and safe against hostile objects."""

import json

import numpy as np
import torch

import rldbg
from rldbg.agent.values import ANSWER_LIMIT, answer, answers, describe, members, recorded, source


class _Hostile:
    def __repr__(self):
        raise RuntimeError("no")


def test_tensors_show_what_one_looks_for():
    tensor = torch.tensor([[1.0, float("nan")], [float("inf"), -3.0]])
    facts = describe(tensor)
    assert facts["tensor"] | {} == {
        "shape": [2, 2],
        "dtype": "float32",
        "device": "cpu",
        "nan": 1,
        "inf": 1,
        "min": -3.0,
        "max": 1.0,
        "mean": -1.0,
    }
    assert "NaN=1" in facts["text"] and "Inf=1" in facts["text"] and "min=-3" in facts["text"]


def test_every_dtype_and_odd_tensor_has_a_description():
    for dtype in (torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.complex64, torch.float64):
        assert describe(torch.ones(3, dtype=dtype))["tensor"]["shape"] == [3]
    assert describe(torch.empty(0))["tensor"]["shape"] == [0]
    assert describe(torch.empty(2, device="meta"))["tensor"]["device"] == "meta"
    assert describe(torch.eye(3).to_sparse())["tensor"]["shape"] == [3, 3]
    assert describe(torch.tensor([True, False]))["tensor"]["mean"] == 0.5
    assert describe(np.array(["a", "b"]))["tensor"]["dtype"] == "<U1"
    assert describe(np.array([1, 2, 3]))["tensor"]["max"] == 3


def test_tensors_inside_containers_are_summarised_too():
    text = describe({"advantages": torch.zeros(100, 100), "n": 3})["text"]
    assert "tensor[100, 100] float32" in text and "'n': 3" in text


def test_hostile_and_endless_values_are_survived():
    assert "its repr raised RuntimeError" in describe(_Hostile())["text"]
    loop: list = []
    loop.append(loop)
    assert describe(loop)["text"]
    assert len(describe("x" * 10**6)["text"]) < 3000
    assert len(describe(list(range(10**5)))["text"]) < 3000


def test_an_answer_is_json_and_carries_plain_data():
    assert json.loads(repr(answer(3)))["data"] == 3
    assert json.loads(repr(answer("a\n\"b'")))["data"] == "a\n\"b'"
    assert json.loads(repr(answer(float("nan"))))["data"] is None
    assert "data" not in json.loads(repr(answer([1, 2])))
    for text in ("y", "é", "\\", '"'):
        assert len(repr(answer(text * 10**6))) <= ANSWER_LIMIT


def test_many_values_fit_into_one_answer():
    body = json.loads(repr(answers({f"v{n}": "z" * 5000 for n in range(300)})))
    assert len(body["values"]) == 300 and len(json.dumps(body)) < 2 * ANSWER_LIMIT
    assert len(repr(answers({f"v{n}": "é" * 5000 for n in range(30)}))) <= ANSWER_LIMIT


def test_source_comes_in_pieces_that_fit(tmp_path):
    file = tmp_path / "long.py"
    file.write_text("\n".join(f"x = {n:>80}" for n in range(5000)))
    body = json.loads(repr(source(str(file), 1, 10**6)))
    assert body["total"] == 5000 and 0 < len(body["lines"]) < 5000
    assert json.loads(repr(source(str(file), 4999, 10**6)))["lines"] == [f"x = {n:>80}" for n in (4998, 4999)]


def test_members_are_reached_by_what_stands_behind_the_expression():
    class Batch:
        def __init__(self):
            self.tokens = [[1, 2], [3]]
            self.names = {"a": 1, 2: "b", (3,): "no expression"}
            self.odd = _Hostile()

    batch = Batch()
    found = members(batch).body
    assert [(item["name"], item["access"]) for item in found["members"]] == [
        ("tokens", ".tokens"), ("names", ".names"), ("odd", ".odd"),
    ]  # fmt: skip
    assert "its repr raised RuntimeError" in found["members"][2]["text"]
    inner = members(batch.names).body
    assert [item["access"] for item in inner["members"]] == ["['a']", "[2]"] and inner["total"] == 3
    assert members(batch.tokens).body["members"][1]["text"] == "[3]"
    assert members(7).body["members"] == [] and members(torch).body["members"] == []
    wide = members({f"name {n}": "x" * 1000 for n in range(5000)})
    assert len(repr(wide)) <= ANSWER_LIMIT and wide.body["total"] == 5000


def test_a_tensor_has_a_histogram_and_a_table_of_its_numbers():
    for tensor in (torch.arange(600.0).reshape(2, 3, 100), np.arange(600.0).reshape(6, 100)):
        picture = members(tensor).body["picture"]
        assert (len(picture["rows"]), len(picture["rows"][0]), picture["each"]) == (6, 34, [1, 3])
        assert picture["rows"][1][0] == 100.0 and sum(picture["histogram"]["counts"]) == 6 * 34
    odd = members(torch.tensor([1.0, float("nan"), float("inf")])).body["picture"]
    assert odd["rows"] == [[1.0, None, None]]
    assert members(torch.empty(2, device="meta")).body["picture"] is None
    assert members(torch.empty(0)).body["picture"] is None
    assert members(torch.ones(3, dtype=torch.bool)).body["picture"]["rows"] == [[1.0, 1.0, 1.0]]


def test_what_was_recorded_last_is_told(tmp_path, monkeypatch):
    monkeypatch.delattr("sys._rldbg_last_record", raising=False)
    assert recorded().body == {}
    with rldbg.Recorder(tmp_path) as recorder:
        rows = {"log_probs": np.zeros((2, 3)), "response_mask": np.ones((2, 3))}
        recorder.record("forward_data", step=4, micro=1, samples=[("g0", 0), ("g0", 1)], **rows)
        recorder.record("loss", step=4, micro=1, loss=0.5)
    assert recorded().body == {"kind": "forward_data", "step": 4, "micro": 1, "samples": ["g0/0", "g0/1"]}
