"""`rldbg compare` as a user types it: several recordings, what makes it fail, bad input."""

import copy
import json
import shutil
import socket

import numpy as np
import pytest

import rldbg
from layout_recordings import step_values, write
from rldbg.cli.application import run

VALUES = step_values()


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("command")
    reward = copy.deepcopy(VALUES)
    reward["reward"][5] += 1
    foreign = copy.deepcopy(VALUES)
    foreign["tokens"] = [row + 1000 for row in VALUES["tokens"]]
    for name, values in (("a", VALUES), ("b", reward), ("foreign", foreign)):
        write(folder / name, values)
    write(folder / "cut", VALUES, ranks=2, micro=3)
    return folder


def compare(recordings, capsys, *arguments):
    places = [str(recordings / item) if (recordings / item).exists() else item for item in arguments]
    code = run(["compare", *places, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_more_than_two_are_each_compared_with_the_first(recordings, capsys):
    code, body = compare(recordings, capsys, "a", "cut", "b")
    assert (code, body["verdict"], body["first_difference"]["stage"]) == (1, "different", "reward")
    assert body["first_difference"]["recording"] == str(recordings / "b")
    verdicts = [item["verdict"] for item in body["comparisons"]]
    assert verdicts[0] in ("equal", "equal within noise") and verdicts[1:] == ["different"]


@pytest.mark.parametrize(
    ("fail_on", "code"),
    [("different", 1), ("reward", 1), ("loss", 0), ("never", 0), ("incomplete", 0), ("kind-on-one-side,reward", 1)],
)
def test_fail_on(recordings, capsys, fail_on, code):
    assert compare(recordings, capsys, "a", "b", "--fail-on", fail_on)[0] == code


@pytest.mark.parametrize(
    ("misspelt", "meant"), [("step-on-one-sid", "step-on-one-side"), ("loss-diference", "loss-difference")]
)
def test_fail_on_takes_a_closed_set_of_names(recordings, capsys, misspelt, meant):
    code, body = compare(recordings, capsys, "a", "b", "--fail-on", misspelt)
    assert code == 2 and f"did you mean {meant!r}" in body["error"]["hint"]


def test_every_finding_of_a_comparison_can_be_failed_on():
    import ast
    from pathlib import Path

    import rldbg.analysis
    from rldbg.analysis import COMPARISON_FINDINGS

    written = set()
    for file in Path(rldbg.analysis.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            is_finding = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding"
            if is_finding and node.args and isinstance(node.args[0], ast.Constant):
                written.add(node.args[0].value)
    assert written <= set(COMPARISON_FINDINGS), written - set(COMPARISON_FINDINGS)


def test_usage_errors(recordings, capsys):
    for arguments in (
        ["a"],
        ["a", "b", "--fail-on", "nonsense"],
        ["a", "b", "--step", "x"],
        ["a", "b", "--atol", "-1"],
    ):
        code, body = compare(recordings, capsys, *arguments)
        assert code == 2 and body["error"]["hint"], arguments


def test_steps_that_are_not_there(recordings, capsys):
    for step in ("7", "0:3", "3:3"):
        assert compare(recordings, capsys, "a", "b", "--step", step)[0] == 4
    assert compare(recordings, capsys, "a", "cut", "--step", "0:1")[0] == 0
    assert compare(recordings, capsys, "a", "cut", "--step", "all")[0] == 0


def test_processes_give_the_same_result(recordings, capsys):
    alone = compare(recordings, capsys, "cut", "b", "--jobs", "1")
    assert compare(recordings, capsys, "cut", "b", "--jobs", "2") == alone


def test_a_damaged_file_is_never_a_pass(recordings, tmp_path, capsys):
    shutil.copytree(recordings / "a", tmp_path / "a")
    file = next((tmp_path / "a" / "forward_data").iterdir())
    file.write_bytes(file.read_bytes()[:-200])
    code, body = compare(recordings, capsys, "a", str(tmp_path / "a"))
    assert code == 4 and body["verdict"] == "incomplete"
    assert "unreadable" in {finding["id"] for finding in body["findings"]}


def test_other_kinds_have_nothing_in_common(recordings, tmp_path, capsys):
    with rldbg.Recorder(tmp_path / "b") as recorder:
        recorder.record("mine", step=0, value=np.zeros(3))
    assert compare(recordings, capsys, "a", str(tmp_path / "b"))[0] == 4


def test_other_tokenizers_are_told(recordings, capsys):
    code, body = compare(recordings, capsys, "a", "foreign")
    assert code == 1 and "tokenizers-differ" in {finding["id"] for finding in body["findings"]}


def test_steps_counted_from_one_are_shifted(recordings, tmp_path, capsys):
    write(tmp_path / "later", VALUES, step=1)
    assert compare(recordings, capsys, "a", str(tmp_path / "later"))[0] == 4
    assert compare(recordings, capsys, "a", str(tmp_path / "later"), "--shift", "-1")[0] == 0


def test_a_reward_among_many_trajectories(tmp_path, capsys):
    for name in ("a", "b"):
        rewards = np.zeros(12_000, np.float32)
        rewards[10_000] = name == "b"
        with rldbg.Recorder(tmp_path / name) as recorder:
            recorder.record(
                "trajectory",
                step=0,
                samples=[(f"g{number // 8}", number % 8) for number in range(12_000)],
                tokens=rldbg.recording.Ragged(np.arange(48_000), np.arange(0, 48_001, 4)),
                loss_mask=rldbg.recording.Ragged(np.ones(48_000, np.int64), np.arange(0, 48_001, 4)),
                reward=rewards,
            )
    first = compare(tmp_path, capsys, "a", "b")[1]["first_difference"]
    assert (first["stage"], first["row"], first["sample"]) == ("reward", 10_000, "g1250/0")


def test_the_written_file_is_valid_json(recordings, tmp_path, capsys):
    odd = copy.deepcopy(VALUES)
    odd["log_probs"][0][0] = np.nan
    write(tmp_path / "nan", odd)
    compare(recordings, capsys, "a", str(tmp_path / "nan"), "-o", str(tmp_path / "deep" / "r.json"))
    text = (tmp_path / "deep" / "r.json").read_text()
    # A bare NaN is not JSON.
    assert json.loads(text, parse_constant=pytest.fail)["first_difference"]["b"] is None


def test_a_ray_cluster_that_is_not_there_is_said_at_once(recordings, capsys):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        code = run(["compare", str(recordings / "a"), str(recordings / "b"), "--on-ray", "--ray-address", address])
    assert code == 5 and f"no Ray cluster answers at {address}" in capsys.readouterr().err
