"""A program of Hydra is asked for its configuration before it is started."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rldbg.launch.changes import Edit
from rldbg.launch.dry_run.calls import ShellCall
from rldbg.launch.explanation import Explained
from rldbg.launch.preflight import refused_options
from rldbg.launch.recognition import recognise

PROGRAM = """\
import hydra

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(config):
    raise SystemExit("it was started")

main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "main_ppo.py").write_text(PROGRAM)
    (tmp_path / "config.yaml").write_text("trainer: {experiment_name: e, total_epochs: 3}\n")
    return tmp_path


def explained(folder: Path, *edits: Edit, given: str = "trainer.total_epochs=2") -> Explained:
    argv = (sys.executable, "main_ppo.py", given)
    (command,) = recognise([ShellCall(argv, str(folder), "s.sh", 3)], "verl")
    return Explained(replace(command, profile=replace(command.profile, composes=("main_ppo.py",))), edits)


def test_options_that_the_framework_takes_are_no_finding(folder: Path) -> None:
    assert refused_options(explained(folder, Edit("trainer.experiment_name", "", suffix="-Debug")), os.environ) is None


def test_an_option_that_the_framework_refuses_is_named(folder: Path) -> None:
    found = refused_options(explained(folder, given="trainer.epochs_in_total=2"), os.environ)
    assert found is not None
    assert (found.id, found.severity, found.where) == ("launch.options-refused", "error", "s.sh:3")
    assert "epochs_in_total" in found.evidence[0]


@pytest.mark.parametrize("by_name", [True, False])
def test_a_program_behind_a_launcher_is_asked_by_the_same_interpreter(folder: Path, by_name: bool) -> None:
    for name, text in (("torchrun", "exit 9"), ("python", f'exec {sys.executable} "$@"')):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    launcher = (str(folder / "torchrun"),) if by_name else (sys.executable, "-m", "torch.distributed.run")
    call = ShellCall((*launcher, "--nproc_per_node=2", "main_ppo.py", "trainer.nothing=2"), str(folder), "s.sh", 3)
    (command,) = recognise([call], "verl")
    asked = Explained(replace(command, profile=replace(command.profile, composes=("main_ppo.py",))), ())
    found = refused_options(asked, os.environ)
    assert found is not None
    assert "nothing" in found.evidence[0]


def test_a_program_that_cannot_be_asked_here_is_not_judged(folder: Path) -> None:
    (folder / "main_ppo.py").write_text("import not_installed_anywhere\n")
    assert refused_options(explained(folder), os.environ) is None
    plain = explained(folder)
    other = replace(plain, command=replace(plain.command, profile=replace(plain.command.profile, composes=())))
    assert refused_options(other, os.environ) is None


def test_a_configuration_that_takes_too_long_is_said_to_be_unchecked(folder: Path, monkeypatch) -> None:
    (folder / "main_ppo.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr("rldbg.launch.preflight._LIMIT_S", 0.2)
    found = refused_options(explained(folder), os.environ)
    assert found is not None
    assert (found.id, found.severity, found.where) == ("launch.options-not-checked", "info", "s.sh:3")
    assert "0.2 s" in found.cause


FRAMEWORK = """\
KNOWN = {"actor.lr", "trial_name"}

def compose(arguments):
    refused = [word for word in arguments if word.lstrip("+").partition("=")[0] not in KNOWN]
    if refused:
        raise KeyError(f"ConfigKeyError: Key '{refused[0]}' not in 'SFTConfig'")
"""
PLAIN = """\
import sys
from my_rl import compose

compose(sys.argv[1:])
raise SystemExit("it was started")
"""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    (tmp_path / "my_rl.py").write_text(FRAMEWORK)
    (tmp_path / "sft.py").write_text(PLAIN)
    return tmp_path


def composed(folder: Path, *words: str) -> Explained:
    (command,) = recognise([ShellCall((sys.executable, *words), str(folder), "s.sh", 3)], "areal")
    assert command.profile.composes_in == "areal.api.cli_args.to_structured_cfg"
    return Explained(replace(command, profile=replace(command.profile, composes_in="my_rl.compose")), ())


@pytest.mark.parametrize("words", [("sft.py",), ("-m", "areal.infra.launcher.local", "sft.py")])
def test_a_program_is_ended_once_its_configuration_is_composed(plain: Path, words: tuple[str, ...]) -> None:
    environment = dict(os.environ) | {"PYTHONPATH": str(plain)}
    assert refused_options(composed(plain, *words, "actor.lr=1", "trial_name=t"), environment) is None
    found = refused_options(composed(plain, *words, "trial_name=t", "++rollout.request_timeout=9"), environment)
    assert found is not None
    assert "Key '++rollout.request_timeout=9' not in 'SFTConfig'" in found.evidence[0]
