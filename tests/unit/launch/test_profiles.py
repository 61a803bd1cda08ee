"""Each framework's profile: what arming adds to a typical command of it."""

import importlib
import json
import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from rldbg.core import UsageError
from rldbg.frameworks import find_framework, recorded_hooks
from rldbg.launch import changes, profile
from rldbg.launch.changes import armed_arguments, as_words, option_edits
from rldbg.launch.dry_run.calls import ShellCall
from rldbg.launch.profile import profiles
from rldbg.launch.recognition import recognise
from rldbg.launch.request import Request
from rldbg.tripwire import WatchSettings

SELF_HOSTED = ("trajectory", "old_log_probs", "forward_data", "loss")
REMOTE = ("prepared_trajectories", "datums", "training_metrics")
NEXRL_KINDS = " ".join(
    [f"++debug.dump_options.{kind}=true" for kind in SELF_HOSTED]
    + [f"++debug.remote_api_dump_options.{kind}=true" for kind in REMOTE]
)
OWN_KINDS = NEXRL_KINDS.replace(
    "loss=true ", "loss=true ++debug.dump_options.is_loss_debug=true ++debug.dump_options.batch_inputs=true "
)
EXPECTED = {
    "verl": (
        "python -m verl.trainer.main_ppo trainer.experiment_name=e trainer.total_epochs=9 "
        "trainer.default_local_dir=c/e",
        "++trainer.experiment_name=e-Debug ++trainer.default_local_dir=c/e-Debug ++trainer.total_epochs=1 "
        "++trainer.rollout_data_dir=/run/recording/verl ++actor_rollout_ref.nccl_timeout=86400",
        "++trainer.total_training_steps=3",
    ),
    "nemo_rl": (
        "uv run examples/run_sft.py --config c logger.wandb.name=e checkpointing.checkpoint_dir=c",
        "++logger.wandb.name=e-Debug ++checkpointing.checkpoint_dir=c-Debug ++sft.max_num_epochs=1",
        "++sft.max_num_steps=3",
    ),
    "areal": (
        "python x.py --config c.yaml scheduler.type=local trial_name=t total_train_epochs=5",
        "++trial_name=t-Debug ++total_train_epochs=1 ++rollout.dump_to_file=true ++rollout.request_timeout=86400",
        "++total_train_steps=3",
    ),
    "rlinf": (
        "python main_grpo.py --config-name c runner.experiment_name=e",
        "++runner.experiment_name=e-Debug ++runner.max_epochs=1",
        "++runner.max_steps=3",
    ),
    "slime": (
        "python3 train.py --hf-checkpoint m --rm-type x --wandb-group g --save s --num-rollout 3000",
        "--wandb-group g-Debug --save s-Debug --num-rollout 1 --dump-details /run/recording/slime "
        "--distributed-timeout-minutes 1440 --sglang-watchdog-timeout 86400",
        "--num-rollout 3",
    ),
    "openrlhf": (
        "python -m openrlhf.cli.train_ppo_ray --ckpt.output_dir o --train.max_epochs 1 --rollout.batch_size 128",
        "--ckpt.output_dir o-Debug --train.num_episodes 1",
        "--data.max_samples 384",
    ),
    "skyrl": (
        "uv run -m skyrl.train.entrypoints.main_base trainer.run_name=r trainer.epochs=20 trainer.ckpt_path=c",
        "trainer.run_name=r-Debug trainer.ckpt_path=c-Debug trainer.epochs=1 trainer.dump_data_batch=true "
        "trainer.export_path=/run/recording/skyrl",
        "trainer.max_training_steps=3",
    ),
    "nexrl": (
        "python -m nexrl.main experiment_name=e",
        f"++experiment_name=e-Debug ++debug.enable_data_dump=true ++debug.dump_dir=/run/recording {NEXRL_KINDS}",
        "++trainer.total_train_steps=3",
    ),
    "trl": (
        "trl grpo --run_name r --output_dir o --num_train_epochs 5",
        "--run_name r-Debug --output_dir o-Debug --num_train_epochs 1 --ddp_timeout 86400",
        "--max_steps 3",
    ),
    "prime_rl": ("uv run rl @ rl.toml --wandb.name w", "--wandb.name w-Debug", "--max-steps 3"),
    "rldbg": (
        "rldbg train r.yaml name=n steps=50",
        f"++name=n-Debug ++debug.enable_data_dump=true ++debug.dump_dir=/run/recording {OWN_KINDS}",
        "++steps=3",
    ),
    "generic": (
        "python my_train.py --lr 1 --exp_name e --epochs 9 --max-steps 40",
        "--exp_name e-Debug --epochs 1",
        "--max-steps 3",
    ),
}


def added(line: str, **settings) -> list[str]:
    (command,) = recognise([ShellCall(tuple(shlex.split(line)), "/nowhere", id="1")])
    request = Request((), None, Path("/nowhere"), **settings)
    edits, _ = option_edits(command, request, Path("/run/recording"))
    return as_words(command, edits)


def test_every_profile_has_its_case():
    assert set(EXPECTED) == set(profiles())


@pytest.mark.parametrize("name", EXPECTED)
def test_default_arming(name):
    line, words, _ = EXPECTED[name]

    assert added(line, record=True) == words.split()


@pytest.mark.parametrize("name", [name for name in EXPECTED if EXPECTED[name][2]])
def test_length_in_steps(name):
    line, _, words = EXPECTED[name]

    armed = added(line, steps=3, name_suffix="")

    assert words.split() == [word for word in armed if word in words.split()]


def test_options_that_a_framework_does_not_have_are_not_added():
    assert added("python my_train.py --lr 1") == []
    older = "python -m openrlhf.cli.train_ppo_ray --actor_num_nodes 1 --rollout_batch_size 8"

    assert added(older) == ["--num_episodes", "1"]
    assert added(older, steps=2) == ["--max_samples", "16"]


def test_kinds_that_are_named_are_recorded_and_no_others():
    armed = added("nexrl.main --config-name x trainer.total_train_steps=3", record=True, record_kinds=("loss", "param"))
    switched = dict(word.removeprefix("++debug.").split("=") for word in armed if "dump_options" in word)

    assert {name for name, on in switched.items() if on == "true"} == {"dump_options.loss", "dump_options.param"}
    assert "dump_options.gradient" not in switched


def test_rollout_hooks_of_slime_are_options_that_are_named_and_given_on_request():
    line = EXPECTED["slime"][0]
    option = "--rollout-all-samples-process-path"
    assert option not in added(line, record=True)
    asked = {"record": True, "record_kinds": ("rollout_samples", "loss")}
    armed = added(line, **asked)
    path = armed[armed.index(option) + 1]
    module, _, function = path.rpartition(".")
    assert callable(getattr(importlib.import_module(module), function))
    assert option not in added(f"{line} {option} mine.process", **asked), "the user's own stays"


@pytest.fixture
def without_hooks_of(monkeypatch):
    """As if these frameworks had no hooks that record."""

    def remove(*names):
        left = tuple(pair for pair in recorded_hooks() if pair[0].name not in names)
        monkeypatch.setattr(changes, "recorded_hooks", lambda: left)

    return remove


def test_a_kind_that_a_framework_cannot_dump_is_named(without_hooks_of):
    without_hooks_of("skyrl")

    def missing(*words):
        (command,) = recognise([ShellCall(("python", "-m", *words), "/", id="1")])
        request = Request((), None, Path("/"), record=True, record_kinds=("trajectory", "loss"))
        return [(each.what, each.reason) for each in option_edits(command, request, Path("/run/recording"))[1]]

    assert missing("skyrl.train.entrypoints.main_base", "trainer.run_name=r") == [
        ("recording of loss", "the dumps of skyrl contain trajectory, batch_inputs")
    ]
    assert missing("verl.trainer.main_ppo", "trainer.experiment_name=e") == [], "hooks record it"


def test_a_framework_that_cannot_be_recorded_is_named(without_hooks_of):
    without_hooks_of("openrlhf")

    def missing(line):
        (command,) = recognise([ShellCall(tuple(shlex.split(line)), "/nowhere", id="1")])
        asked = Request((), None, Path("/nowhere"), record=True, name_suffix="", epochs=None)
        return [each.what for each in option_edits(command, asked, Path("/run/recording"))[1]]

    assert missing("python -m openrlhf.cli.train_ppo_ray --ckpt.output_dir o") == ["recording"]
    assert missing("trl grpo --output_dir o") == []
    assert missing("python my_train.py --lr 1") == [], "whatever framework it imports is hooked"


def armed(line, cwd="/nowhere", **settings):
    (command,) = recognise([ShellCall(tuple(shlex.split(line)), str(cwd), "s.sh", 1)])
    edits, _ = option_edits(
        command, Request(tuple(shlex.split(line)), None, Path(cwd), **settings), Path("/run/recording")
    )
    return " ".join(as_words(command, edits))


@pytest.mark.parametrize(
    ("line", "has_rollouts"),
    [
        ("python -m areal.launcher.local examples/gsm8k_grpo.py --config c.yaml trial_name=t", True),
        ("python -m areal.launcher.local examples/gsm8k_sft.py --config c.yaml trial_name=t", False),
        ("python examples/hhrlhf_rw.py --config c.yaml scheduler.type=local trial_name=t", False),
        ("python examples/hhrlhf_rw.py --config c.yaml scheduler.type=local trial_name=t rollout.backend=sglang", True),
        ("torchrun -m verl.trainer.fsdp_sft_trainer trainer.experiment_name=e data.train_files=f", False),
        ("torchrun -m verl.trainer.sft_trainer trainer.experiment_name=e data.train_files=f", False),
        ("python -m verl.trainer.main_ppo trainer.experiment_name=e", True),
    ],
)
def test_options_of_rollouts_are_given_to_programs_that_have_them(line, has_rollouts):
    words = armed(line, record=True)
    for option in ("rollout.request_timeout", "rollout.dump_to_file", "rollout_data_dir", "nccl_timeout"):
        if not has_rollouts:
            assert option not in words
    assert has_rollouts == ("timeout" in words)


def test_a_readable_configuration_says_which_groups_a_program_has(tmp_path):
    (tmp_path / "c.yaml").write_text("trial_name: t\nactor: {path: m}\n")
    line = "python train.py --config c.yaml scheduler.type=local experiment_name=e"
    assert "rollout." not in armed(line, cwd=tmp_path)
    (tmp_path / "c.yaml").write_text("trial_name: t\nrollout: {max_concurrent_rollouts: 4}\n")
    assert "++rollout.request_timeout=86400" in armed(line, cwd=tmp_path)


def test_a_name_that_refers_to_another_key_is_changed_there(tmp_path):
    """Folders may refer to that key as well."""
    (tmp_path / "c.yaml").write_text(
        "runner:\n  experiment_name: grpo-7b\n"
        "  logger: {experiment_name: '${runner.experiment_name}', log_path: 'out/${runner.experiment_name}'}\n"
    )
    words = armed("python main_grpo.py --config-path . --config-name c runner.max_steps=9", cwd=tmp_path)
    assert "++runner.experiment_name=grpo-7b-Debug" in words


@pytest.mark.parametrize(
    ("options", "settings", "expected"),
    [
        ("run_name=r num_steps=40", {}, "run_name=r-Debug"),
        ("run_name=r", {}, "run_name=r-Debug num_epochs=1"),
        ("run_name=r num_epochs=3", {"steps": 2}, "run_name=r-Debug max_training_steps=2"),
        ("run_name=r num_steps=40", {"steps": 2}, "run_name=r-Debug num_steps=2"),
    ],
)
def test_options_that_exclude_each_other_are_not_combined(options, settings, expected):
    """SkyRL's supervised training refuses num_steps beside num_epochs."""
    assert armed(f"uv run -m skyrl.train.main_sft {options}", **settings) == expected


def test_a_folder_that_is_given_as_empty_is_not_called_missing():
    (command,) = recognise(
        [ShellCall(("python", "-m", "skyrl.train.main_sft", "run_name=r", "ckpt_path="), "/nowhere")]
    )
    edits, missing = option_edits(command, Request((), None, Path("/nowhere")), Path("/run/recording"))
    assert "ckpt_path" not in [*(edit.key for edit in edits), *(each.what for each in missing)]


def test_a_run_that_resumes_from_its_own_checkpoints_does_not_resume_from_those_of_the_real_run():
    line = "python3 train.py --hf-checkpoint m --rm-type x --ref-load r --num-rollout 1"
    assert armed(f"{line} --load c/ --save c").startswith("--save c-Debug --load c-Debug/ ")
    assert "--load" not in armed(f"{line} --load started_from --save c")


def test_what_else_a_run_writes_stays_apart():
    slime = armed("python3 train.py --hf-checkpoint m --rm-type x --save-debug-rollout-data d/{rollout_id}.pt")
    assert "--save-debug-rollout-data d/{rollout_id}-Debug.pt" in slime
    skyrl = "uv run -m skyrl.train.entrypoints.main_base trainer.run_name=r trainer.export_path=e/r"
    assert "trainer.export_path=e/r-Debug" in armed(skyrl)
    assert "e/r-Debug" not in armed(skyrl, record=True), "the recording has it"


def test_a_checkpoint_folder_that_only_the_configuration_names_is_not_shared_with_the_real_run(tmp_path):
    (tmp_path / "base.yaml").write_text("checkpointing: {checkpoint_dir: results/grpo}\n")
    (tmp_path / "c.yaml").write_text("defaults: base.yaml\nlogger: {wandb: {name: e}}\n")
    words = armed("uv run run_grpo.py --config c.yaml", cwd=tmp_path)
    assert "++checkpointing.checkpoint_dir=results/grpo-Debug" in words


def test_what_the_file_of_trl_names_is_kept_apart_as_well(tmp_path):
    (tmp_path / "c.yaml").write_text("output_dir: data/real\nrun_name: grpo\nnum_train_epochs: 3\n")
    words = armed("accelerate launch examples/scripts/grpo_vlm.py --config c.yaml", cwd=tmp_path)
    assert "--run_name grpo-Debug --output_dir data/real-Debug --num_train_epochs 1" in words
    assert "--output_dir other-Debug" in armed("trl grpo --config c.yaml --output_dir other", cwd=tmp_path)
    (tmp_path / "c.yaml").write_text("learning_rate: 1e-6\n")
    assert "--output_dir" not in armed("trl grpo --config c.yaml", cwd=tmp_path)
    (tmp_path / "c.yaml").write_text("output_dir: data/real\n")
    assert "--output_dir" not in armed("python my_train.py --config c.yaml --lr 1", cwd=tmp_path)


@pytest.mark.parametrize(
    ("folder", "option"),
    [
        ("results/clevr_${policy.model_name}", "results/clevr_Qwen/VL-Debug"),
        ("results/a, (b)=c's/", "results/a, (b)=c's-Debug/"),
        ("results/2026-01-01 12:00", "results/2026-01-01 12:00-Debug"),
    ],
)
def test_a_configured_folder_is_written_as_hydra_reads_it(tmp_path, folder, option):
    file = {"checkpointing": {"checkpoint_dir": folder}, "policy": {"model_name": "Qwen/VL"}}
    (tmp_path / "c.yaml").write_text(json.dumps(file))
    (command,) = recognise([ShellCall(("python", "run_grpo.py", "--config", "c.yaml"), str(tmp_path))])
    edits, _ = option_edits(command, Request((), None, tmp_path), Path("/run/recording"))
    words = [word for word in armed_arguments(command, edits) if "checkpoint_dir" in word]
    composed = OmegaConf.create(file)
    for override in OverridesParser.create().parse_overrides(words):
        OmegaConf.update(composed, override.key_or_group, override.value())
    assert composed.checkpointing.checkpoint_dir == option


@pytest.mark.parametrize(
    "source",
    [
        'args.config = os.path.join(os.path.dirname(__file__), "configs", "small.yaml")\n',
        '@hydra.main(config_path="configs", config_name="small", version_base=None)\ndef main(config): ...\n',
    ],
)
def test_the_configuration_that_a_program_chooses_by_itself_is_read(tmp_path, source):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "small.yaml").write_text("logger: {wandb: {name: grpo-dev}}\n")
    (tmp_path / "run_grpo.py").write_text(source)
    assert "++logger.wandb.name=grpo-dev-Debug" in armed("uv run run_grpo.py", cwd=tmp_path)


def test_samples_of_a_validation_stay_apart():
    words = armed("python -m verl.trainer.main_ppo trainer.experiment_name=e trainer.validation_data_dir=val/e")
    assert "++trainer.validation_data_dir=val/e-Debug" in words


def test_a_watched_run_records_what_the_measures_need_and_keeps_the_last_steps():
    words = armed("rldbg train recipe.yaml", record=True, watch=WatchSettings(keep=6))
    assert "++debug.keep_last=6 ++debug.capsule=true" in words
    switched = {word.partition("=")[0].rpartition(".")[2] for word in words.split() if word.endswith("=true")}
    assert switched == {"enable_data_dump", "capsule", "trajectory", "forward_data", "loss", "training_metrics"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dialect: hydra\ntrian: [x]", "did you mean 'train'"),
        ("dialect: yaml", "one of hydra, dotlist, flags"),
        ("train: [x]", "dialect"),
        ("dialect: hydra\nsteps: [{kye: x}]", "did you mean 'key'"),
        ("dialect: hydra\nsteps: [{value: 3}]", "key"),
    ],
)
def test_a_mistake_in_a_profile_is_named(tmp_path, text, said):
    file = tmp_path / "launch.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        profile._load(find_framework("verl"), file)
    assert said in f"{caught.value} {caught.value.hint}" and str(file) in str(caught.value)
