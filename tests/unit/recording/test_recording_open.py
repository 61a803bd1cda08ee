"""What a user may name, what a recording answers, and what it says when there is nothing of the kind."""

import json
import os

import numpy as np
import peer_dumps
import pytest
from handmade import Writer, key

import rldbg
from rldbg.core import IncompleteDataError, SampleId, UsageError
from rldbg.recording import RecordKey
from rldbg.recording.layouts import layouts


@pytest.fixture
def run(tmp_path):
    """A run folder with a recording of two steps, two ranks, two micro-batches."""
    run = tmp_path / "run"
    writer = Writer(run / "recording")
    for step in range(2):
        for rank in range(2):
            writer.file(key(step, rank, 0), key(step, rank, 1))
    writer.close()
    (run / "run.json").write_text(json.dumps({"schema_version": 1, "command": ["train"], "config": {"lr": 1}}))
    return run


def test_a_run_its_recording_a_kind_and_a_file_are_all_openable(run):
    recording = run / "recording"
    file = recording / "forward_data" / "step_000001_rank1.safetensors"
    assert len(rldbg.open(run).keys()) == 8
    assert rldbg.open(recording).keys() == rldbg.open(run).keys()
    assert rldbg.open(str(recording / "forward_data")).keys() == rldbg.open(run).keys()
    assert rldbg.open(file).keys() == (key(1, 1, 0), key(1, 1, 1))
    for path in (run, recording, recording / "forward_data", file):
        assert rldbg.open(path).run_facts()["command"] == ["train"]
        assert rldbg.open(path).verify() == []


def test_one_file_knows_from_the_journal_that_it_is_cut(run):
    file = run / "recording" / "forward_data" / "step_000001_rank1.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert [finding.id for finding in rldbg.open(file).verify()] == ["truncated-file"]
    other = file.with_name("step_000000_rank0.safetensors")
    assert rldbg.open(other).verify() == []


def test_run_json_may_name_another_place(run, tmp_path):
    (run / "recording").rename(tmp_path / "elsewhere")
    (run / "run.json").write_text(json.dumps({"recording": "../elsewhere"}))
    assert len(rldbg.open(run).keys()) == 8
    (run / "run.json").write_text(json.dumps({"recording": "nowhere"}))
    with pytest.raises(IncompleteDataError, match="nowhere"):
        rldbg.open(run)


def test_listing_methods(run):
    recording = rldbg.open(run)
    assert recording.kinds() == ("forward_data",)
    assert recording.steps("forward_data") == (0, 1)
    assert recording.steps("loss") == ()
    assert recording.ranks(step=1) == (0, 1)
    assert recording.micros("forward_data", 1, 1) == (0, 1)
    assert recording.keys(step=1, rank=0) == (key(1, 0, 0), key(1, 0, 1))
    assert [record.key for record in recording.records(micro=1, rank=1)] == [key(0, 1, 1), key(1, 1, 1)]
    assert recording.samples(step=0) == (SampleId("g0", 0), SampleId("g0", 1))
    with pytest.raises(IncompleteDataError, match="forward_data step 9"):
        recording.read(key(9))


def test_arrays_are_views_of_the_file(run):
    values = rldbg.open(run).read(key(1, 1, 1)).fields["log_probs"]
    assert not values.flags.owndata
    assert not values.flags.writeable


def test_a_sample_is_joined_over_kinds_and_ranks(run):
    recording = rldbg.open(run)
    sample = recording.sample(SampleId("g0", 1), step=1)
    assert [row.key for row in sample.rows] == [key(1, rank, micro) for rank in range(2) for micro in range(2)]
    assert sample.rows[0].row == 1
    np.testing.assert_array_equal(sample.find("log_probs"), [0, 0, 0])
    assert sample.find("reward") is None
    with pytest.raises(UsageError, match="steps 0, 1"):
        recording.sample(SampleId("g0", 1))
    with pytest.raises(IncompleteDataError, match="no sample g7/0"):
        recording.sample(SampleId("g7", 0), step=1)


def test_an_empty_path_is_not_the_current_folder():
    with pytest.raises(UsageError, match="the path is empty"):
        rldbg.open("")


def test_nothing_there_is_said_plainly(tmp_path):
    with pytest.raises(IncompleteDataError, match="no such file or folder"):
        rldbg.open(tmp_path / "missing")
    with pytest.raises(IncompleteDataError, match="holds no files"):
        rldbg.open(tmp_path)


def test_a_run_without_a_recording_says_how_to_record(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "output.log").write_text("step 0\n")
    with pytest.raises(IncompleteDataError, match="nothing is recorded in the run") as error:
        rldbg.open(tmp_path)
    assert "rldbg run --record" in error.value.hint


def test_an_unknown_layout_lists_what_was_looked_for(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(IncompleteDataError) as error:
        rldbg.open(tmp_path)
    for layout in layouts():
        assert layout.name in error.value.message
    assert "notes.txt" in error.value.message
    assert "--layout" in error.value.hint


def test_a_layout_can_be_named(tmp_path):
    peer_dumps.lines(tmp_path / "3.jsonl", [{"output": "b", "input": "a", "score": 1.0}])
    assert rldbg.open(tmp_path, "verl").layout.name == "verl"
    assert rldbg.open(tmp_path, layout="prime-rl").keys() == ()
    with pytest.raises(UsageError) as error:
        rldbg.open(tmp_path, "openrlhf")
    assert "prime_rl" in error.value.hint


def test_several_recordings_under_one_path_are_refused(tmp_path):
    for name in ("monday", "tuesday"):
        peer_dumps.sglang(tmp_path / name)
    with pytest.raises(UsageError, match="several recordings") as error:
        rldbg.open(tmp_path)
    assert str(tmp_path / "monday") in error.value.hint
    peer_dumps.sglang(tmp_path / "monday" / "again")
    with pytest.raises(UsageError, match="several recordings") as error:
        rldbg.open(tmp_path / "monday")
    assert str(tmp_path / "monday" / "again") in error.value.hint


def test_a_folder_above_a_recording_leads_to_it(tmp_path):
    dump = tmp_path / "logs" / "exp" / "20260101" / "debug_dump"
    peer_dumps.nexrl(dump, ranks=1, micros=1)
    (tmp_path / "logs" / "exp" / "20260101" / "config.yaml").write_text("debug: {}")
    recording = rldbg.open(tmp_path / "logs")
    assert (recording.title, recording.layout.name) == (str(dump), "nexrl")


def test_a_folder_above_several_recordings_names_them(tmp_path):
    for day in ("1", "2"):
        peer_dumps.nexrl(tmp_path / "logs" / day / "debug_dump", ranks=1, micros=1)
    with pytest.raises(IncompleteDataError) as error:
        rldbg.open(tmp_path / "logs")
    assert error.value.hint.endswith(str(tmp_path / "logs" / "1" / "debug_dump"))


def test_files_that_belong_to_nothing_are_mentioned(tmp_path):
    peer_dumps.nexrl(tmp_path, ranks=1, micros=1)
    (tmp_path / "notes.txt").write_text("hello")
    findings = {finding.id: finding for finding in rldbg.open(tmp_path).summary().health}
    assert "notes.txt" in findings["unread-files"].evidence[0]


def test_links_are_followed_but_never_in_circles(tmp_path):
    peer_dumps.nexrl(tmp_path / "real", ranks=1, micros=1)
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "loss").symlink_to(tmp_path / "real" / "loss")
    (tmp_path / "dump" / "self").symlink_to(tmp_path / "dump")
    (tmp_path / "dump" / "dangling.pt").symlink_to(tmp_path / "nowhere")
    assert rldbg.open(tmp_path / "dump").keys() == (RecordKey("loss", 0),)


def test_a_folder_keeps_its_own_name_beside_a_link_to_it(tmp_path):
    peer_dumps.nexrl(tmp_path, ranks=1, micros=1)
    kinds = rldbg.open(tmp_path).kinds()
    (tmp_path / "a_link").symlink_to(tmp_path / "trajectory")
    (tmp_path / "z_link").symlink_to(tmp_path / "loss")
    assert rldbg.open(tmp_path).kinds() == kinds


def test_a_pipe_in_the_folder_is_never_opened(tmp_path):
    peer_dumps.nexrl(tmp_path, ranks=1, micros=1)
    os.mkfifo(tmp_path / "loss" / "step_000001_rank0_micro0.pt")
    assert rldbg.open(tmp_path).keys("loss") == (RecordKey("loss", 0),)


def test_summary_counts_each_file_once(run):
    summary = rldbg.open(run).summary().to_dict()
    files = list((run / "recording" / "forward_data").iterdir())
    assert summary["kinds"]["forward_data"] == {
        "steps": [0, 1],
        "ranks": [0, 1],
        "micros": [0, 1],
        "records": 8,
        "bytes": sum(file.stat().st_size for file in files),
        "parts": {},
    }
    assert summary["layout"] == "rldbg"
    assert summary["samples"] == 16
    assert summary["health"] == []


def test_summary_in_a_notebook_is_escaped(tmp_path):
    peer_dumps.nexrl(tmp_path / "<b>dump", ranks=1, micros=1)
    html = rldbg.open(tmp_path / "<b>dump").summary()._repr_html_()
    assert "&lt;b&gt;dump" in html
    assert "trajectory" in html


def test_a_sample_of_one_kind_still_has_its_tokens(run):
    recording = rldbg.open(run)
    id, step = recording.samples()[0], recording.steps()[0]
    whole, narrow = recording.sample(id, step), recording.sample(id, step, kind="forward_data")
    assert np.array_equal(narrow.find("tokens"), whole.find("tokens"))
    assert {name for row in narrow.rows if row.key.kind != "forward_data" for name in row.fields} <= {
        "tokens",
        "loss_mask",
    }


def test_a_sample_that_is_not_there_names_some_that_are(run):
    with pytest.raises(IncompleteDataError) as error:
        rldbg.open(run).sample(SampleId("nobody", 7), 0)
    assert "samples, among them " in error.value.hint


def test_single_values_that_differ_between_kinds_are_both_shown(tmp_path):
    peer_dumps.slime_rollout(tmp_path, 0, [peer_dumps.slime_sample(index) for index in range(2)])
    peer_dumps.slime_train(tmp_path, 0, 2)
    values = rldbg.open(tmp_path).sample(SampleId("0", 1)).single_values()
    assert (values["reward"], values["prepared_trajectories.reward"]) == (1.0, 0.5)


def test_the_wrong_layout_says_which_one_it_is(tmp_path):
    peer_dumps.nexrl(tmp_path, ranks=1, micros=1)
    recording = rldbg.open(tmp_path, "slime")
    for findings in (recording.summary().health, recording.verify()):
        empty = next(finding for finding in findings if finding.id == "empty-recording")
        assert empty.fix == ("omit --layout, or give --layout nexrl",)
    with pytest.raises(UsageError) as error:
        rldbg.open(tmp_path, "nexlr")
    assert error.value.hint.startswith("did you mean 'nexrl'?")
