"""`--record` with and without kinds, before what else a command line has."""

import click
import pytest

from rldbg.cli.application import run as run_verb
from rldbg.cli.record_option import RecordingCommand, record_option
from ui_recordings import two_turns


def parsed(words, *, interspersed):
    @click.command(cls=RecordingCommand, context_settings={"allow_interspersed_args": interspersed})
    @click.argument("rest", nargs=-1, type=click.UNPROCESSED)
    @record_option
    @click.option("--run")
    @click.option("--quiet", is_flag=True)
    def command(record, rest, run, quiet):
        return record, list(rest)

    return command.main(words, standalone_mode=False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--record", "./train.sh", "-c", "1"], ("all", ["./train.sh", "-c", "1"])),
        (["--run", "loss", "--record", "python", "-m", "x"], ("all", ["python", "-m", "x"])),
        (["--record", "loss,param", "train.sh"], ("loss,param", ["train.sh"])),
        (["--record", "--", "loss", "--record", "train.sh"], ("all", ["loss", "--record", "train.sh"])),
        (["--quiet", "train.sh", "--record", "train.sh"], (None, ["train.sh", "--record", "train.sh"])),
        (["--record", "trajectry", "train.sh"], ("trajectry", ["train.sh"])),
        (["--record"], ("all", [])),
    ],
)
def test_run(words, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").touch()
    assert parsed(words, interspersed=False) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["arithmetic", "--record", "seed=1"], ("all", ["arithmetic", "seed=1"])),
        (["--record", "~seed", "arithmetic"], ("all", ["~seed", "arithmetic"])),
        (["arithmetic", "--record", "loss", "seed=1"], ("loss", ["arithmetic", "seed=1"])),
        (["arithmetic", "seed=1", "--record", "--quiet"], ("all", ["arithmetic", "seed=1"])),
    ],
)
def test_train(words, expected):
    assert parsed(words, interspersed=True) == expected


def test_a_script_that_is_not_there_is_named(capsys):
    assert run_verb(["run", "--record", "nosuch.sh"]) == 2
    assert "unknown key 'nosuch.sh'" in capsys.readouterr().err


def test_a_model_that_a_rerun_would_not_use_is_refused(tmp_path, capsys):
    assert run_verb(["rerun", str(two_turns(tmp_path / "run")), "--step", "0", "--model", str(tmp_path)]) == 2
    assert "--model is for --loss" in capsys.readouterr().err
    assert run_verb(["rerun", str(tmp_path / "nowhere"), "--step", "0", "--model", str(tmp_path)]) == 4
    assert "no such file or folder" in capsys.readouterr().err
