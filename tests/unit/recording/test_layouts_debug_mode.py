"""Logs of torch's DebugMode, made by torch itself."""

import pytest

import rldbg
from rldbg.analysis import compare
from rldbg.core import IncompleteDataError

torch = pytest.importorskip("torch")
debug_mode = pytest.importorskip("torch.utils._debug_mode")
pytestmark = pytest.mark.skipif(
    not hasattr(debug_mode.DebugMode, "log_tensor_hashes"), reason="this torch logs no hashes"
)


def write_log(folder, *, slope=1.0):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LeakyReLU(slope), torch.nn.Linear(3, 2))
    inputs = torch.randn(2, 4)
    mode = debug_mode.DebugMode(record_nn_module=True)
    with mode, debug_mode.DebugMode.log_tensor_hashes():
        net(inputs).sum().backward()
    folder.mkdir()
    (folder / "debug_mode_step3_rank1.txt").write_text(mode.debug_string())
    return rldbg.open(folder)


def test_each_operator_is_a_record_with_its_module_and_hash(tmp_path):
    recording = write_log(tmp_path / "a")
    records = list(recording.records("operator_call"))
    assert recording.layout.name == "debug_mode"
    assert {(record.key.step, record.key.rank) for record in records} == {(3, 1)}
    first = next(record for record in records if record.fields["name"].startswith("aten::addmm"))
    assert first.fields["module"] == "Sequential.0"
    assert first.fields["outputs"] == "t: f32[2, 3]"
    assert isinstance(first.fields["hash"], float)
    assert records[-1].fields["module"] == "", "the backward pass is outside of every module"


def test_the_first_operator_with_another_hash_is_named(tmp_path):
    a, same, other = (write_log(tmp_path / name, slope=slope) for name, slope in (("a", 0.5), ("b", 0.5), ("c", 0.25)))
    assert compare(a, same).verdict == "equal"
    found = compare(a, other)
    assert found.verdict == "different"
    number = found.first_difference.place.micro
    changed = next(record for record in a.records("operator_call") if record.key.micro == number)
    assert "leaky_relu" in changed.fields["name"]
    assert found.first_difference.place.name == f"{changed.fields['name']} in Sequential.1"


def test_text_without_operators_is_told(tmp_path):
    (tmp_path / "debug_mode.txt").write_text("aten::nan(t: f32[1])  ->  t: f32[1]  # {'hash': nan}\n")
    (record,) = rldbg.open(tmp_path).records("operator_call")
    assert record.fields["hash"] != record.fields["hash"]
    (tmp_path / "debug_mode.txt").write_text("nothing of the kind\n")
    with pytest.raises(IncompleteDataError, match="no operators"):
        list(rldbg.open(tmp_path).records("operator_call"))
