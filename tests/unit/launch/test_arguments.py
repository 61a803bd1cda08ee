"""The start-up hook's pure part: which rule holds for a program, and what it adds."""

import json
import sys

import pytest

from rldbg.agent import STARTUP
from rldbg.agent.arguments import (
    ARGUMENTS_VARIABLE,
    arm_this_process,
    armed_job_submission,
    choose_rule,
    digest,
    edited,
    option_values,
    program_of,
)
from rldbg.agent.arming import merged_runtime_env


def rule(kind="module", name="pkg.main", arguments=(), edits=(), dialect="hydra"):
    return {
        "kind": kind,
        "name": name,
        "arguments": [digest(word) for word in arguments],
        "edits": list(edits),
        "dialect": dialect,
    }


@pytest.mark.parametrize(
    ("orig_argv", "kind", "name"),
    [
        (["python3", "-u", "-m", "pkg.main", "a"], "module", "pkg.main"),
        (["/x/python", "-X", "dev", "train.py"], "script", "train.py"),
        (["python", "-uc", "code", "x"], "code", "code"),
        (["python"], "none", ""),
    ],
)
def test_program_of_an_interpreter(orig_argv, kind, name):
    assert program_of(orig_argv)[:2] == (kind, name)


def test_options_in_each_dialect():
    assert option_values(["a.b=1", "+c=2", "++a.b=3", "--config", "x=y z"], "hydra") == {
        "a.b": "3",
        "c": "2",
        "x": "y z",
    }
    assert option_values(["--a", "1", "--b=2", "--flag", "--a", "3"], "flags") == {"--a": "3", "--b": "2", "--flag": ""}


@pytest.mark.parametrize(
    ("dialect", "arguments", "added"),
    [
        ("hydra", ["trainer.name=x", "trainer.epochs=10"], ["++trainer.name=x-Debug", "++trainer.epochs=1"]),
        ("dotlist", ["trainer.name='x y'", "trainer.epochs=10"], ["trainer.name='x y-Debug'", "trainer.epochs=1"]),
        ("hydra", ["trainer.name=out/dir/", "trainer.epochs=1"], ["++trainer.name=out/dir-Debug/"]),
    ],
)
def test_edits_are_added_behind_in_the_framework_s_dialect(dialect, arguments, added):
    edits = [{"key": "trainer.name", "suffix": "-Debug"}, {"key": "trainer.epochs", "value": "1"}]

    armed = edited(arguments, edits, dialect)

    assert armed == [*arguments, *added]
    assert edited(armed, edits, dialect) == armed, "a second application changes nothing"


def test_edits_of_flags():
    edits = [
        {"key": "--save", "suffix": "-Debug"},
        {"key": "--num-rollout", "value": "1"},
        {"key": "--absent", "suffix": "-Debug"},
    ]

    armed = edited(["--save", "/ckpt/", "--num-rollout", "3000"], edits, "flags")

    assert armed[4:] == ["--save", "/ckpt-Debug/", "--num-rollout", "1"]
    assert edited(armed, edits, "flags") == armed


def test_a_name_from_the_configuration_is_built_on_its_base():
    edits = [{"key": "name", "suffix": "-Debug", "base": "exp"}]

    assert edited([], edits, "hydra") == ["++name=exp-Debug"]
    assert edited(["name=other"], edits, "hydra") == ["name=other", "++name=other-Debug"]


def test_of_two_trainings_each_gets_its_own_rule():
    first = rule(arguments=["stage=1", "lr=1"], edits=[{"key": "n", "value": "1"}])
    second = rule(arguments=["stage=2", "lr=1"], edits=[{"key": "n", "value": "2"}])

    assert choose_rule([first, second], "module", "pkg.main", ["stage=2", "lr=1", "date=now"]) is second
    assert choose_rule([first, second], "module", "pkg.main", ["stage=1", "lr=1"]) is first
    assert choose_rule([first, second], "module", "pkg.other", ["stage=1"]) is None


def test_a_script_that_a_module_runs_in_its_own_process_gets_its_rule(monkeypatch, tmp_path):
    plan = {"rules": [rule("script", "grpo.py", edits=[{"key": "--max_steps", "value": "1"}], dialect="flags")]}
    monkeypatch.setenv(ARGUMENTS_VARIABLE, json.dumps(plan))
    monkeypatch.setenv("RLDBG_RUN", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["grpo.py", "--seed", "3"])
    arm_this_process(["python", *sys.argv])
    assert sys.argv == ["grpo.py", "--seed", "3", "--max_steps", "1"]
    (note,) = (tmp_path / "armed").glob("*.json")
    assert json.loads(note.read_text())["orig_argv"] == ["python", "grpo.py", "--seed", "3"]


def test_scripts_are_the_same_under_another_folder():
    own = rule(kind="script", name="examples/train.py")

    assert choose_rule([own], "script", "/tmp/ray/session/working_dir/examples/train.py", []) is own
    assert choose_rule([own], "script", "/elsewhere/train.py", []) is None
    assert choose_rule([rule(kind="script", name="rl")], "script", "/venv/bin/rl", []) is not None


def test_rules_carry_no_argument_text():
    assert "secret" not in json.dumps(rule(arguments=["--wandb-key", "secret-key"]))


@pytest.mark.parametrize("form", ["equals", "space", "none"])
def test_job_submission_keeps_the_user_s_runtime_environment(form):
    theirs = {"working_dir": "/w", "env_vars": {"PYTHONPATH": "/megatron", "A": "theirs"}}
    option = {
        "equals": [f"--runtime-env-json={json.dumps(theirs)}"],
        "space": ["--runtime-env-json", json.dumps(theirs)],
        "none": [],
    }
    words = [
        "job",
        "submit",
        "--address",
        "http://h",
        *option[form],
        "--no-wait",
        "--",
        "python3",
        "train.py",
        "--runtime-env-json=x",
    ]

    armed = armed_job_submission(words, {"A": "ours", "B": "ours"})

    assert armed[-4:] == ["--", "python3", "train.py", "--runtime-env-json=x"]
    (merged,) = [
        json.loads(word.partition("=")[2])
        for word in armed[: armed.index("--")]
        if word.startswith("--runtime-env-json")
    ]
    assert merged["env_vars"]["B"] == "ours"
    if form != "none":
        assert merged["working_dir"] == "/w"
        assert merged["env_vars"]["A"] == "theirs"
        assert merged["env_vars"]["PYTHONPATH"] == f"{STARTUP}:/megatron"
    else:
        assert merged["env_vars"]["PYTHONPATH"] == f"{STARTUP}:${{PYTHONPATH}}"


def test_job_submission_reads_a_runtime_environment_file(tmp_path):
    file = tmp_path / "env.yaml"
    file.write_text("working_dir: ./\nenv_vars:\n  A: '1'\n")

    armed = armed_job_submission(["job", "submit", "--runtime-env", str(file), "python", "t.py"], {"B": "2"})

    merged = json.loads(armed[2].partition("=")[2])
    assert merged == {"working_dir": "./", "env_vars": {"A": "1", "B": "2", "PYTHONPATH": f"{STARTUP}:${{PYTHONPATH}}"}}
    assert armed[3:] == ["python", "t.py"]


def test_merging_twice_adds_the_folder_once():
    once = merged_runtime_env({}, {})

    assert merged_runtime_env(once, {}) == once
