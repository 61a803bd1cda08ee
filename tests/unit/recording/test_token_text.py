"""Tokens as text, by the tokenizer that a recording, its run or its configuration names."""

import json

import numpy as np
import pytest

import rldbg
from rldbg.cli.application import run as rldbg_command
from rldbg.core import Run
from rldbg.recording.token_text import TokenText, find_tokenizer
from rldbg.trainer.tokenizer import CharacterTokenizer, save_tokenizer

pytest.importorskip("tokenizers")
TOKENS = [*CharacterTokenizer().encode("1+2="), *CharacterTokenizer().encode("3 "), 1, 4000]


@pytest.fixture
def folder(tmp_path):
    """A run whose recording has one sample."""
    run = Run(tmp_path / "run")
    with rldbg.Recorder(run.path / "recording") as recorder:
        recorder.record(
            "trajectory",
            step=0,
            samples=[("g", 0)],
            tokens=[np.asarray(TOKENS)],
            loss_mask=[np.asarray([0, 0, 0, 0, 1, 1, 1, 1])],
            reward=[1.0],
        )
    run.update(command=[])
    return run.path


@pytest.fixture
def shown(capsys):
    def show(folder, *options):
        assert rldbg_command(["show", str(folder), "--sample", "g/0", *options]) == 0
        return capsys.readouterr().out

    return show


def test_a_token_has_the_text_it_has_behind_the_one_before_it(tmp_path):
    save_tokenizer("tiny", tmp_path / "tokenizer")
    text = TokenText(tmp_path / "tokenizer" / "tokenizer.json")
    assert text.of(TOKENS) == ["1", "+", "2", "=", "3", " ", "<eos>", "⟨4000⟩"]


def test_text_stands_beside_ids_when_the_recording_has_its_tokenizer(folder, shown):
    assert "text" not in shown(folder) and json.loads(shown(folder, "--json"))["text"] is None
    save_tokenizer("tiny", folder / "recording" / "tokenizer")
    assert all(text in shown(folder) for text in ("<eos>", "␣", "⟨4000⟩"))
    assert json.loads(shown(folder, "--json"))["text"][:4] == ["1", "+", "2", "="]
    assert rldbg.open(folder).verify() == [], "a tokenizer is not a stray file"


@pytest.mark.parametrize("config", [{"model": {"path": "MODEL"}}, {"actor": {"model": {"tokenizer_path": "MODEL"}}}])
def test_the_runs_configuration_names_the_tokenizer(folder, tmp_path, config):
    save_tokenizer("tiny", tmp_path / "model")
    Run(folder).update(config=json.loads(json.dumps(config).replace("MODEL", str(tmp_path / "model"))))
    assert find_tokenizer(rldbg.open(folder)) == tmp_path / "model" / "tokenizer.json"


def test_a_tokenizer_can_be_given_and_a_broken_one_hides_nothing(folder, tmp_path, shown):
    save_tokenizer("tiny", tmp_path / "model")
    assert "<eos>" in shown(folder, "--tokenizer", str(tmp_path / "model"))
    (folder / "recording" / "tokenizer").mkdir()
    (folder / "recording" / "tokenizer" / "tokenizer.json").write_text("{}")
    assert "4000" in shown(folder)
