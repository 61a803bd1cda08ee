"""Recordings of version 1 as they lie in the repository: every later version reads them to the last bit."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

import rldbg

GOLDEN = Path(__file__).parents[2] / "golden"
_spec = importlib.util.spec_from_file_location("golden_make", GOLDEN / "make.py")
make = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make)


@pytest.mark.parametrize("file_format", make.FORMATS)
def test_version_1_reads_as_it_was_written(file_format, tmp_path):
    root = tmp_path / file_format
    shutil.copytree(GOLDEN / "v1" / file_format, root)
    recording = rldbg.open(root)
    assert recording.layout.name == "rldbg" and recording.verify() == []
    assert make.contents(recording) == json.loads((GOLDEN / "v1" / "contents.json").read_text())


@pytest.mark.parametrize("file_format", make.FORMATS)
def test_what_is_written_today_reads_the_same(file_format, tmp_path):
    make.write(tmp_path, file_format)
    assert make.contents(rldbg.open(tmp_path)) == json.loads((GOLDEN / "v1" / "contents.json").read_text())
