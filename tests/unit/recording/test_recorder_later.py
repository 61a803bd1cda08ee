"""Fields that a thread of the recorder makes: the same records, without work for the thread that trains."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rldbg
from rldbg.core import SampleId
from rldbg.recording import Later, Ragged, Record, Recorder

SAMPLES = (SampleId("a", 0), SampleId("a", 1), SampleId("b", 0))


def _columns() -> dict[str, Any]:
    return {
        "tokens": Ragged(np.arange(6), np.array([0, 1, 3, 6])),
        "reward": np.array([0.0, 0.5, 1.0], np.float32),
        "extra_fields": [{"score": 0.5, "answer": text} for text in ("x", "y", "z")],
    }


def _recorded(folder: Path, fields: dict[str, Any], **settings: Any) -> Record:
    with Recorder(folder, **settings) as recorder:
        recorder.record("trajectory", step=0, samples=SAMPLES, **fields)
    return next(iter(rldbg.open(folder).records()))


def _shown(record: Record) -> Any:
    return (
        [row.tolist() for row in record.fields["tokens"]],
        record.array("reward").tolist(),
        record.fields["extra_fields"],
        record.samples,
    )


@pytest.mark.parametrize("samples", [None, [("a", 1), ("b", 0)]])
def test_what_is_made_later_is_recorded_as_if_it_had_been_given(tmp_path: Path, samples: Any) -> None:
    given = _recorded(tmp_path / "given", _columns(), samples=samples)
    later = _recorded(tmp_path / "later", {"columns": Later(_columns, 100)}, samples=samples)
    assert _shown(later) == _shown(given) and later.fields.keys() == given.fields.keys()


def test_the_training_thread_makes_nothing(tmp_path: Path) -> None:
    made_in: list[str] = []

    def make() -> dict[str, Any]:
        made_in.append(threading.current_thread().name)
        return _columns()

    _recorded(tmp_path, {"columns": Later(make, 100)})
    assert made_in == ["rldbg-dispatch"]


def test_what_cannot_be_made_is_a_drop_with_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> dict[str, Any]:
        raise KeyError("no such column")

    with Recorder(tmp_path) as recorder:
        recorder.record("trajectory", step=0, samples=SAMPLES, columns=Later(fail, 100))
        recorder.record("trajectory", step=1, samples=SAMPLES, columns=Later(_columns, 100))
    (journal,) = (tmp_path / "journal").iterdir()
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [each["reason"] for each in events if each["event"] == "drop"] == ["KeyError: 'no such column'"]
    assert "no such column" in caplog.text
    assert [entry.key.step for entry in rldbg.open(tmp_path).records()] == [1]


def test_what_is_made_later_counts_in_the_buffer(tmp_path: Path) -> None:
    begin = threading.Event()

    def make() -> dict[str, Any]:
        begin.wait(60)
        return _columns()

    with Recorder(tmp_path, buffer_bytes=2**20, when_full="drop") as recorder:
        for step in range(8):
            recorder.record("trajectory", step=step, samples=SAMPLES, columns=Later(make, 2**18))
        begin.set()
    steps = [record.key.step for record in rldbg.open(tmp_path).records()]
    assert 0 < len(steps) < 8
