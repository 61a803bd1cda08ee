from pathlib import Path

import pytest

from rldbg.core import UsageError
from rldbg.trainer import parse_recipe, read_recipe
from rldbg.trainer.recipe import recipe_from_data

RECIPES = Path(__file__).parents[3] / "recipes"


@pytest.mark.parametrize("file", sorted(RECIPES.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_recipe_is_valid(file):
    loaded = read_recipe(file)
    assert loaded.recipe.name == file.stem


def test_overrides_reach_their_place():
    loaded = read_recipe(
        RECIPES / "arithmetic.yaml",
        [
            "policy.ranks=4",
            "++rollout_worker.resource.num_workers=3",
            "++debug.capsule=true",
            "optimizer.learning_rate=1e-3",
        ],
    )
    assert loaded.recipe.policy.ranks == 4 and loaded.recipe.rollout_worker.workers == 3
    assert loaded.recipe.optimizer.learning_rate == 1e-3 and loaded.debug.capsule


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        ({"polcy": {"ranks": 2}}, "'polcy'", "'policy'"),
        ({"policy": {"rank": 2}}, "'policy.rank'", "'ranks'"),
        ({"model": {"tiny": {"hiden_size": 8}}}, "'model.tiny.hiden_size'", "'hidden_size'"),
        ({"debug": {"enable_dump": True}}, "debug.enable_dump", "enable_data_dump"),
        ({"rollout": {"workers": 2}}, "'rollout'", "'rollout_worker'"),
        ({"policy": {"ranks": "many"}}, "invalid policy.ranks: 'many'", "policy.ranks"),
        ({"algorithm": {"loss": "grpo"}}, "invalid algorithm.loss: 'grpo'", "algorithm.loss"),
        ({"data": {"prompts_per_step": 0}}, "invalid data.prompts_per_step: 0", "at least 1"),
        ({"policy": {"epochs": 0}}, "invalid policy.epochs: 0", "policy.epochs to a value of at least 1"),
        ({"inference": {"temperature": 0}}, "temperature", "above 0"),
        ({"cluster": {"in_process": True}, "policy": {"fsdp": True}}, "FSDP", "policy.fsdp=false"),
        ({"zoo": {"bug": "clip-high"}}, "zoo.bug", "in_process=true"),
        ({"rollout_worker": {"type": "mock"}}, "trajectory_load_path", "trajectory_load_path"),
        ({"rollout_worker": {"trajectory_load_path": "x.pt"}}, "generate", "type=mock"),
        ({"rollout_worker": {"resource": {"num_workers": 0}}}, "num_workers is 0", "above 0"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_would_be_right(data, message, hint):
    with pytest.raises(UsageError) as caught:
        parse_recipe(data, source="x.yaml")
    assert message in caught.value.message and "x.yaml" in caught.value.message
    assert hint in caught.value.hint


def test_a_recipe_survives_being_stored(trained):
    from dataclasses import asdict

    recipe = trained.recipe(rollout_worker={"type": "mock", "trajectory_load_path": "x"}).recipe
    assert recipe_from_data(asdict(recipe), source="test") == recipe


def test_the_recording_goes_into_the_run_folder_unless_it_is_told_elsewhere(trained, tmp_path):
    inside = trained.recipe(debug={"enable_data_dump": True, "dump_options": {"param": True}}).recording_plan(
        tmp_path, {}
    )
    assert inside.records.directory == tmp_path / "recording"
    assert inside.records.parameter_patterns == (".",) and not inside.capsules.enabled
    elsewhere = trained.recipe(debug={"capsule": True, "dump_dir": "/somewhere"}).recording_plan(tmp_path, {})
    assert str(elsewhere.capsules.directory) == "/somewhere"
    assert elsewhere.capsules.enabled and not elsewhere.records.enabled


def test_a_training_that_cannot_begin_leaves_no_run_folder(tmp_path, capsys):
    from rldbg.cli.application import run

    assert run(["train", "arithmetic", f"model.path={tmp_path / 'nowhere'}", "--run", str(tmp_path / "run")]) == 2
    assert "no model at" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
