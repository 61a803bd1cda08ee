"""Which run a command without --run means, where several are alive."""

import os

from rldbg.cli.application import run
from rldbg.live.client import target


class _Client:
    def __init__(self, run):
        self.run = run

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return

    def request(self, _op, **_):
        return {"processes": [], "advice": []}


def _runs(tmp_path, monkeypatch, *names):
    monkeypatch.setenv("RLDBG_HOME", str(tmp_path))
    monkeypatch.delenv("RLDBG_RUN", raising=False)
    monkeypatch.setattr(target, "is_alive", lambda run: not run.name.startswith("dead"))
    monkeypatch.setattr(target, "is_being_replaced", lambda _run: False)
    monkeypatch.setattr(target, "BrokerClient", _Client)
    for age, name in enumerate(names):
        file = tmp_path / "runs" / name / "broker.json"
        file.parent.mkdir(parents=True)
        file.write_text("{}")
        os.utime(file, (1000 - age, 1000 - age))


def test_the_newest_live_run_is_meant_and_the_others_are_named(tmp_path, monkeypatch, capsys):
    _runs(tmp_path, monkeypatch, "dead-1", "newest", "older", "dead-2")
    assert run(["ps"]) == 0
    said = capsys.readouterr().err.replace("\n", "")
    assert f"this is {tmp_path}/runs/newest; other live runs, for --run: {tmp_path}/runs/older" in said
    assert "dead" not in said


def test_nothing_is_said_where_there_is_one_or_it_was_named(tmp_path, monkeypatch, capsys):
    _runs(tmp_path, monkeypatch, "newest", "dead-1")
    assert run(["ps"]) == 0
    assert "other live runs" not in capsys.readouterr().err
    assert run(["ps", "--run", str(tmp_path / "runs" / "newest")]) == 0
    assert "other live runs" not in capsys.readouterr().err
