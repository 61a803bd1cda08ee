import json

import pytest
import yaml

from rldbg.cli.application import run


def settings(capsys):
    assert run(["config", "show", "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)["settings"]}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_origins_flag_environment_project_file_default(own_folder, capsys, monkeypatch):
    assert settings(capsys)["show.layout"]["origin"] == "default"
    (own_folder / "rldbg.toml").write_text('[show]\nlayout = "slime"\n')
    row = settings(capsys)["show.layout"]
    assert row["value"] == "slime" and row["origin"].startswith("project file")
    monkeypatch.setenv("RLDBG_SHOW_LAYOUT", "verl")
    row = settings(capsys)["show.layout"]
    assert (row["value"], row["origin"], row["variable"]) == ("verl", "environment", "RLDBG_SHOW_LAYOUT")


def test_a_broken_project_file_is_named(own_folder, capsys):
    (own_folder / "rldbg.toml").write_text("[")
    assert run(["config", "show"]) == 2
    assert "rldbg.toml" in capsys.readouterr().err


def test_a_recipe_shows_our_blocks_resolved_and_leaves_others_alone(own_folder, capsys, monkeypatch):
    monkeypatch.setenv("EXPERIMENT_PATH", "/exp")
    (own_folder / "r.yaml").write_text(
        'debug: {enable_data_dump: true, dump_dir: "${oc.env:EXPERIMENT_PATH}/d", dump_options: {loss: true}}\n'
        'trainer: {path: "${oc.env:NOT_SET_ANYWHERE}", api_key: abc, unknown: 1}\n'
    )
    assert run(["config", "show", "r.yaml", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["recipe"]["debug"]["dump_dir"] == "/exp/d" and body["records"] == ["loss"]
    assert body["recipe"]["trainer"] == {
        "path": "${oc.env:NOT_SET_ANYWHERE}",
        "api_key": "***redacted***",
        "unknown": 1,
    }
    assert run(["config", "show", "r.yaml", "+debug.dump_format=jsonl"]) == 0
    assert "dump_format: jsonl" in capsys.readouterr().out


def test_a_recipe_is_shown_as_yaml_with_origins(own_folder, capsys, monkeypatch):
    path = "logs/" + "a-long-name/" * 20 + "step_000000.pt"
    recipe = {
        "debug": {"enable_data_dump": True, "dump_options": {"loss": True, "param": None}, "ranks": None},
        "rollout_worker": {"type": "mock", "trajectory_load_path": path},
    }
    (own_folder / "r.yaml").write_text(yaml.safe_dump(recipe))
    monkeypatch.setenv("RLDBG_RECORD_DIR", "/elsewhere")
    assert run(["config", "show", "r.yaml"]) == 0
    text = capsys.readouterr().out
    shown = yaml.safe_load(text)
    assert shown["rollout_worker"]["trajectory_load_path"] == path
    assert shown["debug"]["dump_options"]["param"] is False
    assert "  enable_data_dump: true\n  dump_dir: /elsewhere  # environment\n  dump_format: pt  # default\n" in text
    assert run(["config", "show", "r.yaml", "--json"]) == 0
    origins = json.loads(capsys.readouterr().out)["origins"]
    assert (origins["debug.dump_options.loss"], origins["debug.dump_options.param"]) == ("recipe", "default")
    assert origins["debug.dump_dir"] == "environment"


def test_a_misspelt_block_is_pointed_out(own_folder, capsys):
    (own_folder / "r.yaml").write_text("debgu: {enable_data_dump: true}\n")
    assert run(["config", "show", "r.yaml"]) == 0
    assert "is debgu a misspelling of it?" in capsys.readouterr().err
