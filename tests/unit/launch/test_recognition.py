"""Which command of a script is the training."""

import shlex
from pathlib import Path

import pytest

from rldbg.core import UsageError
from rldbg.launch.dry_run.calls import ShellCall
from rldbg.launch.recognition import recognise


def commands(*lines, framework="", cwd="/nowhere"):
    calls = [
        ShellCall(tuple(shlex.split(line)), cwd, "s.sh", number, id=f"{number}") for number, line in enumerate(lines, 1)
    ]
    return recognise(calls, framework)


def kinds(*lines, **settings):
    return [(command.kind, command.profile.name) for command in commands(*lines, **settings)]


@pytest.mark.parametrize(
    ("line", "framework"),
    [
        ("python3 -m verl.trainer.main_ppo a=b", "verl"),
        ("python -m dapo.main_dapo a=b", "verl"),
        ("python main_ppo_split.py actor_rollout_ref.model.path=m", "verl"),
        ("uv run examples/run_grpo.py --config c grpo.max_num_steps=1", "nemo_rl"),
        ("python examples/x.py --config c.yaml scheduler.type=ray experiment_name=e", "areal"),
        ("python -m areal.launcher.local examples/x.py --config c.yaml", "areal"),
        ("python train.py --config-path p --config-name n runner.logger.log_path=l", "rlinf"),
        ("python3 train.py --hf-checkpoint m --num-rollout 9 --rollout-batch-size 8", "slime"),
        ("python3 train_async.py --hf-checkpoint m --num-rollout 9 --rm-type math", "slime"),
        ("ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --train.batch_size 8", "openrlhf"),
        ("uv run --isolated -m skyrl.train.entrypoints.main_base trainer.epochs=2", "skyrl"),
        ("python -m nexrl.main --config-path=p --config-name=n", "nexrl"),
        ("accelerate launch x.py --model_name_or_path m --output_dir o", "trl"),
        ("trl grpo --model_name_or_path m", "trl"),
        ("uv run rl @ rl.toml", "prime_rl"),
        ("rldbg train recipe.yaml", "rldbg"),
        ("python -m rldbg train recipe.yaml", "rldbg"),
        ("python my_finetune.py --lr 1", "generic"),
        ("python something.py", "generic"),
        ("python mmx/tools/train.py --lr 1", "generic"),
    ],
)
def test_training_of_each_framework(line, framework):
    assert kinds(line) == [("training", framework)]


@pytest.mark.parametrize(
    "line",
    [
        "python prepare_data.py",
        "uv run tests/json_dump_tb_logs.py logs --output_path m.json",
        "uv run tests/check_metrics.py m.json 'max(data) < 1'",
        "python3 tools/convert_hf_to_torch_dist.py --hf-checkpoint m --rollout-batch-size 1",
        "python -m verl.model_merger merge",
        "python3 -m verl.trainer.main_eval data.path=x",
        "python -m sglang.launch_server --model m",
        "python get_model.py",
        "hf download model",
        "ray start --head",
        "rldbg compare a b",
        "python download_datasets.py --train",
        "python run.py prepare tiny",
        "python examples/data_preprocess/dapo_multiturn.py",
        "python pretrain_args.py --lr 1",
        "python -m deepspeed.checkpoint.ds_to_universal --input_folder x",
    ],
)
def test_what_is_not_the_training(line):
    found = commands(line, "python -m verl.trainer.main_ppo a=b")

    assert [command.kind for command in found][-2:] == ["other", "training"]


def test_two_trainings_are_both_told():
    assert [
        kind for kind, _ in kinds("python -m pkg.train stage=1", "python check.py", "python -m pkg.train stage=2")
    ] == [
        "training",
        "other",
        "training",
    ]


def test_configuration_file_tells_the_framework(tmp_path: Path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "exp.yaml").write_text("runner:\n  max_epochs: 3\n")

    assert kinds("python main.py --config-name exp", cwd=str(tmp_path)) == [("training", "rlinf")]


def test_command_behind_a_launcher_is_told_once():
    outer = ShellCall(("srun", "-N1", "bash", "-c", "python prep_data.py; python train.py"), "/", "s.sh", 3, id="1")
    inner = [
        ShellCall(("python", name), "/", "", 1, via="1", id=number)
        for number, name in (("2", "prep_data.py"), ("3", "train.py"))
    ]
    visible = ShellCall(("ray", "job", "submit", "--", "python", "train.py"), "/", "s.sh", 4, id="4")
    hidden = ShellCall(("python", "train.py"), "/", "", 1, via="4", id="5")

    found = recognise([outer, *inner, visible, hidden])

    assert [(command.call.id, command.kind) for command in found] == [
        ("2", "other"),
        ("3", "training"),
        ("4", "training"),
    ]
    assert found[1].via == (outer,)


def test_framework_can_be_forced():
    assert kinds("python something.py", framework="trl") == [("training", "trl")]
    with pytest.raises(UsageError, match="unknown framework"):
        kinds("python something.py", framework="nosuch")


def test_a_command_given_directly_has_no_id():
    (command,) = recognise([ShellCall(("python", "train.py"), "/")])

    assert command.kind == "training"


def test_a_program_that_nobody_knows_trains_when_the_user_says_so():
    assert kinds("python build_index.py") == [("other", "generic")]
    assert kinds("python build_index.py", framework="rlinf") == [("training", "rlinf")]
    assert kinds("python eval_embodied_agent.py", framework="rlinf") == [("other", "rlinf")]


def test_what_does_not_train_is_told_once_per_place():
    polls = [ShellCall(("ray", "status"), "/", "s.sh", 3, id=str(number)) for number in range(4)]
    trainings = [ShellCall(("python", "train.py"), "/", "s.sh", 5, id=str(number)) for number in (7, 8)]
    assert [command.call.id for command in recognise([*polls, *trainings])] == ["0", "7", "8"]
