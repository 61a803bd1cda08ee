"""Which recorded runs a framework's own trainer can run again."""

import json
from pathlib import Path

import pytest

from rldbg.core import IncompleteDataError, UsageError
from rldbg.launch import framework_of, rerun_step
from rldbg.launch.recognition import Program, judge


def run_of(folder, **facts):
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


def test_the_configuration_names_the_framework(tmp_path):
    assert framework_of(run_of(tmp_path, config={"trl": {"loss_type": "dapo"}})) == "trl"
    assert framework_of(run_of(tmp_path, config={"name": "arithmetic", "debug": {}})) == ""
    assert framework_of(tmp_path / "missing") == ""


def test_the_program_that_runs_a_step_again_gets_no_options_of_a_trainer():
    kind, profile = judge(Program("module", "rldbg.frameworks.verl.rerun"), Path())
    assert (kind, profile.name) == ("other", "generic")


def test_what_cannot_be_run_again_is_refused(tmp_path):
    with pytest.raises(UsageError, match="a step of AReaL cannot be run again yet"):
        rerun_step(run_of(tmp_path, config={"areal": {}}, command=["true"]), 1, debugger=False)
    with pytest.raises(IncompleteDataError, match=r"verl cannot be started: .*hooks does not contain the interpreter"):
        rerun_step(run_of(tmp_path, config={"verl": {}}, command=["true"]), 1, debugger=False)
    with pytest.raises(IncompleteDataError, match="does not contain the command"):
        rerun_step(run_of(tmp_path, config={"trl": {}}), 1, debugger=False)
