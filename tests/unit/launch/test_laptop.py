"""`rldbg run --laptop`: the changes of a command, its small model, and frameworks that cannot run there."""

import json
from pathlib import Path

import pytest

from rldbg.cli.application import run
from rldbg.core import UsageError
from rldbg.launch.changes import option_edits
from rldbg.launch.dry_run.calls import ShellCall
from rldbg.launch.laptop import in_one_process, laptop, make_small_model, refuse_laptop
from rldbg.launch.profile import profile_named
from rldbg.launch.recognition import recognise
from rldbg.launch.request import Request
from rldbg.launch.run_environment import added_variables

COMMAND = "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=/models/large trainer.n_gpus_per_node=8"


def request(**settings):
    return Request((), None, Path("/nowhere"), laptop=True, epochs=None, name_suffix="", **settings)


def command(line=COMMAND):
    (found,) = recognise([ShellCall(tuple(line.split()), "/nowhere", id="1")])
    return found


def test_each_change_is_an_option_and_the_users_own_wins():
    asked = request(set_options=(("trainer.n_gpus_per_node", "2"),))
    edits, missing = option_edits(command(), asked, Path("/run/recording"))
    values = {edit.key: edit.value for edit in edits}
    assert not missing
    assert values["actor_rollout_ref.model.path"] == "/run/laptop-model"
    assert values["trainer.device"] == "cpu"
    assert values["trainer.n_gpus_per_node"] == "2"
    assert added_variables([command()], asked)["VERL_PLATFORM"] == "cpu"


def test_a_model_of_the_users_is_taken_as_it_is():
    edits, _ = option_edits(command(), request(model="/models/small"), Path("/run/recording"))
    assert {edit.key: edit.value for edit in edits}["actor_rollout_ref.model.path"] == "/models/small"


@pytest.mark.parametrize(
    ("line", "one", "left_out"),
    [
        (
            "accelerate launch --config_file z3.yaml --num_processes 8 grpo.py --lr 1",
            "grpo.py --lr 1",
            "accelerate launch --config_file z3.yaml --num_processes 8",
        ),
        ("torchrun --nproc-per-node 8 -m my.grpo x", "-m my.grpo x", "torchrun --nproc-per-node 8"),
        ("env A=1 torchrun --standalone grpo.py", "grpo.py", "torchrun --standalone"),
        (
            "python -m accelerate.commands.launch --multi_gpu grpo.py",
            "grpo.py",
            "python -m accelerate.commands.launch --multi_gpu",
        ),
        ("python grpo.py --lr 1", "grpo.py --lr 1", ""),
    ],
)
def test_one_process_is_started_and_the_launcher_named(line, one, left_out, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    made, named = in_one_process(line.split())
    before = ["env", "A=1"] if line.startswith("env") else []
    assert list(made) == [*before, "python", *one.split()]
    assert named == left_out


def test_the_interpreter_is_that_of_the_launcher(tmp_path, monkeypatch):
    (tmp_path / "torchrun").write_text("#!/opt/venv/bin/python3\nimport torch\n")
    (tmp_path / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert in_one_process(["torchrun", "grpo.py"])[0] == ("/opt/venv/bin/python3", "grpo.py")


def test_other_frameworks_are_told_that_they_cannot():
    with pytest.raises(UsageError, match="--laptop cannot run slime yet") as refused:
        refuse_laptop(profile_named("slime"))
    assert "trl, verl" in str(refused.value.hint)


def test_a_model_that_is_not_here_is_named(tmp_path):
    with pytest.raises(UsageError, match="/models/large is not a folder"), laptop([command()], request(), tmp_path):
        raise AssertionError("nothing is started")


def test_the_small_model_has_the_same_architecture_and_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers")
    large = tmp_path / "large"
    config = transformers.Qwen2Config(
        vocab_size=50, hidden_size=256, intermediate_size=512, num_hidden_layers=6, num_attention_heads=8
    )
    config.save_pretrained(large)
    (config_file := large / "config.json").write_text(
        json.dumps(json.loads(config_file.read_text()) | {"architectures": ["Qwen2ForCausalLM"]})
    )
    (large / "tokenizer.json").write_text("{}")

    make_small_model(large, tmp_path / "small")

    small = json.loads((tmp_path / "small" / "config.json").read_text())
    assert (small["model_type"], small["vocab_size"], small["num_hidden_layers"]) == ("qwen2", 50, 2)
    assert sorted(file.name for file in (tmp_path / "small").iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (tmp_path / "small" / "model.safetensors").stat().st_size < 2**20


@pytest.mark.parametrize("verb", ["run", "profile"])
def test_model_without_laptop_is_refused(capsys, verb):
    assert run([verb, "--model", "m", "--", "true"]) == 2
    assert "--model needs --laptop" in capsys.readouterr().err
