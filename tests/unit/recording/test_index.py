"""The index makes listing fast, is never trusted when anything speaks against it, and harms nobody."""

import json
import os
import zlib

import pytest
from handmade import Writer, key

from rldbg.recording import index
from rldbg.recording import open as open_recording
from rldbg.recording.tree import LocalTree


@pytest.fixture
def recording_folder(tmp_path, monkeypatch):
    """Three steps, old enough to be settled, with an index from the first look on."""
    monkeypatch.setattr(index, "_WORTH_FILES", 1)
    root = tmp_path / "recording"
    writer = Writer(root)
    for step in range(3):
        writer.file(key(step))
    writer.close()
    _age(root)
    return root


def _age(root):
    long_ago = 1_600_000_000
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        os.utime(folder, (long_ago, long_ago))


def _steps(root):
    return open_recording(root).steps()


def _is_indexed(root):
    return index.load(LocalTree(root)) is not None


def test_a_listing_is_kept_and_used(recording_folder):
    first = open_recording(recording_folder)
    assert _is_indexed(recording_folder)
    again = open_recording(recording_folder)
    assert again.listing == first.listing
    assert again.layout.name == "rldbg"
    assert "scan" not in vars(again.tree), "the files were not looked at"


def test_a_new_file_a_new_folder_and_a_lost_file_are_seen(recording_folder):
    _steps(recording_folder)
    writer = Writer(recording_folder)
    writer.file(key(3))
    assert _steps(recording_folder) == (0, 1, 2, 3)
    (recording_folder / "forward_data" / "step_000001_rank0.safetensors").unlink()
    assert _steps(recording_folder) == (0, 2, 3)
    writer.file(key(0)._replace(kind="loss"))
    assert open_recording(recording_folder).kinds() == ("forward_data", "loss")


def test_a_journal_that_grew_is_seen(recording_folder):
    assert open_recording(recording_folder).summary().health == ()
    journal = next((recording_folder / "journal").iterdir())
    with journal.open("a") as file:
        file.write('{"event": "stop", "reason": "disk full"}\n')
    assert [finding.id for finding in open_recording(recording_folder).summary().health] == ["recorder-stopped"]


def test_verify_does_not_trust_the_index(recording_folder):
    recording = open_recording(recording_folder)
    path = recording_folder / "forward_data" / "step_000001_rank0.safetensors"
    with path.open("r+b") as file:
        file.truncate(100)
    _age(recording_folder)
    assert _is_indexed(recording_folder), "a file cut in place leaves its folder's time alone"
    assert [finding.id for finding in recording.verify()] == ["truncated-file"]


def _signed(text, **changes):
    """An index whose checksum fits although its content makes no sense."""
    data = {name: value for name, value in json.loads(text).items() if name not in ("rldbg_index", "crc32")}
    body = json.dumps(data | changes, separators=(",", ":"))[1:]
    return f'{{"rldbg_index":1,"crc32":{zlib.crc32(body.encode())},{body}'


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "{}",
        lambda text: text.replace('"step":"0,1', '"step":"0,7'),
        lambda text: "[" * 100_000,
        lambda text: text.replace('"rldbg_index":1', '"rldbg_index":99'),
        lambda text: _signed(text, columns={"kind": "5"}),
        lambda text: _signed(text, columns=json.loads(text)["columns"] | {"kinds": []}),
        lambda text: _signed(text, columns=json.loads(text)["columns"] | {"step": "0,1"}),
        lambda text: _signed(text, folders=7),
        lambda text: _signed(text, summary={"kinds": 3}),
    ],
)
def test_a_damaged_index_is_ignored(recording_folder, damage):
    _steps(recording_folder)
    path = recording_folder / "index.json"
    path.write_text(damage(path.read_text()))
    assert _steps(recording_folder) == (0, 1, 2)
    assert open_recording(recording_folder).summary().kinds["forward_data"].records == 3


def test_a_recording_still_being_written_is_not_indexed(recording_folder):
    (recording_folder / "loss").mkdir()
    os.utime(recording_folder / "loss")
    assert _steps(recording_folder) == (0, 1, 2)
    assert not (recording_folder / "index.json").exists()


def test_a_file_of_that_name_that_is_no_index_is_left_alone(recording_folder):
    (recording_folder / "index.json").write_text('{"weights": 1}')
    assert _steps(recording_folder) == (0, 1, 2)
    assert (recording_folder / "index.json").read_text() == '{"weights": 1}'


def test_a_folder_that_cannot_be_written_is_just_not_cached(recording_folder, monkeypatch):
    def refuse(self, target):
        raise PermissionError(13, "read-only")

    monkeypatch.setattr("pathlib.Path.replace", refuse)
    assert _steps(recording_folder) == (0, 1, 2)
    assert sorted(path.name for path in recording_folder.iterdir()) == ["forward_data", "journal"]


def test_other_frameworks_get_a_hidden_index(tmp_path, monkeypatch):
    import peer_dumps

    monkeypatch.setattr(index, "_WORTH_FILES", 1)
    peer_dumps.nexrl(tmp_path / "dump", ranks=1, micros=1)
    _age(tmp_path / "dump")
    recording = open_recording(tmp_path / "dump")
    assert recording.summary().samples == 2
    assert (tmp_path / "dump" / ".rldbg-index.json").exists()
    assert not (tmp_path / "dump" / "index.json").exists()
    assert next(entry.rows for entry in open_recording(tmp_path / "dump").entries("trajectory")) == 2, "counted once"


def test_a_file_that_grows_in_place_is_seen(tmp_path, monkeypatch):
    import peer_dumps

    monkeypatch.setattr(index, "_WORTH_FILES", 1)
    path = peer_dumps.lines(tmp_path / "step_1" / "rank_0.jsonl", [peer_dumps.prime_row(1, 0, 0, 0)])
    (tmp_path / "step_1" / "STABLE").touch()
    _age(tmp_path)
    assert open_recording(tmp_path).micros() == (0,)
    with path.open("a") as file:
        file.write(json.dumps(peer_dumps.prime_row(1, 0, 1, 1)) + "\n")
    assert open_recording(tmp_path).micros() == (0, 1)


def test_small_recordings_are_not_worth_an_index(tmp_path):
    Writer(tmp_path).file(key(0))
    _age(tmp_path)
    open_recording(tmp_path)
    assert not (tmp_path / "index.json").exists()
