"""The seeds' blocks as their documents print them."""

import pytest

from rldbg.core import Environment, SampleId, UsageError, load_recipe
from rldbg.recording.settings import (
    debug_block_from_environment,
    parse_debug_block,
    parse_rollout_worker_block,
    record_overrides,
    recorder_settings,
)

SELF_HOSTED = """
debug:
  enable_data_dump: true
  dump_dir: "${oc.env:EXPERIMENT_PATH,./debug_dump}/debug_dump"
  dump_format: "pt"  # pt 或 jsonl
  dump_every_n_steps: 1
  dump_options:
    trajectory: true
    old_log_probs: true
    forward_data: true
    loss: true
    param: false
    gradient: false
  target_param_pattern: "model\\\\.layers\\\\.0\\\\.self_attn\\\\.q_proj\\\\.weight"
"""
REMOTE = """
debug:
  enable_data_dump: true
  dump_dir: "${oc.env:EXPERIMENT_PATH}/debug_dump"
  dump_every_n_steps: 1
  remote_api_dump_options:
    prepared_trajectories: true
    datums: true
    training_metrics: true
"""


def test_self_hosted_block_of_the_document(tmp_path, monkeypatch):
    monkeypatch.delenv("EXPERIMENT_PATH", raising=False)
    (tmp_path / "r.yaml").write_text(SELF_HOSTED)
    block = parse_debug_block(load_recipe(tmp_path / "r.yaml")["debug"])
    assert block.enable_data_dump and block.dump_dir == "./debug_dump/debug_dump" and block.dump_format == "pt"
    assert block.kinds() == {"trajectory", "old_log_probs", "forward_data", "loss"}
    assert block.target_param_pattern == r"model\.layers\.0\.self_attn\.q_proj\.weight"


def test_remote_block_of_the_document_means_pt(tmp_path, monkeypatch):
    monkeypatch.setenv("EXPERIMENT_PATH", "/exp")
    (tmp_path / "r.yaml").write_text(REMOTE)
    block = parse_debug_block(load_recipe(tmp_path / "r.yaml")["debug"])
    assert block.dump_dir == "/exp/debug_dump" and block.dump_format == "pt"
    assert block.kinds() == {"prepared_trajectories", "datums", "training_metrics"}


def test_absent_means_off():
    assert parse_debug_block({"enable_data_dump": True}).kinds() == frozenset()
    assert parse_debug_block(None).enable_data_dump is False


@pytest.mark.parametrize(
    "block, nearest",
    [
        ({"dump_fromat": "pt"}, "dump_format"),
        ({"dump_options": {"trajectry": True}}, "trajectory"),
        ({"remote_api_dump_options": {"datum": True}}, "datums"),
    ],
)
def test_misspelt_keys_name_the_nearest(block, nearest):
    with pytest.raises(UsageError) as caught:
        parse_debug_block(block)
    assert nearest in caught.value.hint


@pytest.mark.parametrize(
    "block",
    [
        {"dump_format": "parquet"},
        {"dump_every_n_steps": 0},
        {"enable_data_dump": "perhaps"},
        {"target_param_pattern": "("},
        {"dump_options": [1]},
        [1],
    ],
)
def test_bad_values_are_usage_errors_that_name_the_key(block):
    with pytest.raises(UsageError, match="debug"):
        parse_debug_block(block)


def test_weaver_variables_of_the_document():
    block = debug_block_from_environment(
        Environment(
            {
                "WEAVER_DEBUG_DUMP_ENABLED": "1",
                "WEAVER_DEBUG_DUMP_DIR": "./weaver_debug_dump",
                "WEAVER_DEBUG_DUMP_EVERY_N": "2",
                "WEAVER_DEBUG_DUMP_OPTIONS": "forward_data,loss,is_loss_debug",
            }
        )
    )
    assert block.enable_data_dump and block.dump_dir == "./weaver_debug_dump" and block.dump_every_n_steps == 2
    assert block.kinds() == {"forward_data", "loss", "is_loss_debug"} and block.dump_format == "pt"


def test_weaver_without_kinds_takes_those_of_the_recipe_and_needs_some():
    environment = Environment({"WEAVER_DEBUG_DUMP_ENABLED": "1"})
    with pytest.raises(UsageError, match="nothing would be recorded"):
        debug_block_from_environment(environment)
    base = parse_debug_block({"enable_data_dump": True, "dump_options": {"loss": True}})
    assert debug_block_from_environment(environment, base).kinds() == {"loss"}


def test_our_variables_win_over_the_recipe():
    base = parse_debug_block({"enable_data_dump": False, "dump_dir": "here"})
    block = debug_block_from_environment(
        Environment({"RLDBG_RECORD_ENABLED": "1", "RLDBG_RECORD_FORMAT": "safetensors", "RLDBG_RECORD_KINDS": "all"}),
        base,
    )
    assert block.enable_data_dump and block.dump_dir == "here" and block.dump_format == "safetensors"
    assert {"datums", "param", "trajectory"} <= block.kinds()


def test_misspelt_variables_and_kinds_are_errors():
    with pytest.raises(UsageError, match="WEAVER_DEBUG_DUMP_ENABLE "):
        debug_block_from_environment(Environment({"WEAVER_DEBUG_DUMP_ENABLE": "1"}))
    with pytest.raises(UsageError) as caught:
        debug_block_from_environment(Environment({"RLDBG_RECORD_KINDS": "los"}))
    assert "loss" in caught.value.hint


def test_rollout_worker_of_the_document():
    worker = parse_rollout_worker_block(
        {
            "type": "mock",
            "need_llm_inference": False,
            "trajectory_load_path": "/x/step_000000.pt",
            "trajectory_format": "pt",
        }
    )
    assert worker.type == "mock" and worker.trajectory_format == "pt"


def test_rollout_worker_keys():
    parse_rollout_worker_block({"type": "agent", "agent_cls": "x", "anything_of_theirs": 1})
    with pytest.raises(UsageError) as caught:
        parse_rollout_worker_block({"type": "mock", "trajectory_load_pth": "/x"})
    assert "trajectory_load_path" in caught.value.hint
    with pytest.raises(UsageError, match="trajectory_load_path"):
        parse_rollout_worker_block({"type": "mock"})


def test_the_block_becomes_a_recorders_settings(tmp_path):
    block = parse_debug_block(
        {"enable_data_dump": True, "dump_options": {"loss": True}, "keep_last": 3, "ranks": [0, 2]}
    )
    settings = recorder_settings(block, tmp_path)
    assert settings.directory == tmp_path / "recording" and settings.format == "pt" and settings.keep_last == 3
    assert settings.kinds == {"loss"} and settings.ranks == {0, 2} and settings.parameter_patterns == ()
    elsewhere = parse_debug_block({"dump_dir": "mine"})
    assert str(recorder_settings(elsewhere, tmp_path).directory) == "mine"
    assert not recorder_settings(elsewhere, tmp_path).enabled
    unchanged = debug_block_from_environment(Environment({}), block)
    assert recorder_settings(unchanged, tmp_path) == settings


def test_what_a_recorder_is_told_by_keywords_the_block_says_too(tmp_path):
    block = parse_debug_block({"samples": ["g0/3", "g1/0"], "gather_shards": True, "gather_s": 2, "threads": 1})
    settings = recorder_settings(block, tmp_path)
    assert settings.samples == {SampleId("g0", 3), SampleId("g1", 0)}
    assert (settings.gather_shards, settings.gather_s, settings.threads) == (True, 2.0, 1)


def test_a_sample_that_is_none_is_an_error_that_names_it():
    with pytest.raises(UsageError, match="g0"):
        parse_debug_block({"samples": ["g0"]})


def test_record_of_a_training_is_overrides_of_its_recipe(tmp_path):
    (tmp_path / "r.yaml").write_text("name: r\n")
    block = parse_debug_block(load_recipe(tmp_path / "r.yaml", record_overrides("loss, param"))["debug"])
    assert block.enable_data_dump and block.capsule and block.kinds() == {"loss", "param"}
    everything = parse_debug_block(load_recipe(tmp_path / "r.yaml", record_overrides("all"))["debug"])
    assert everything.kinds() >= {"trajectory", "old_log_probs", "gradient", "is_loss_debug"}
    with pytest.raises(UsageError, match="gradiant"):
        record_overrides("gradiant")
