"""What `serve up` would start: allocation modes, commands of real engines, devices, and who may listen where."""

import json
import sys

import pytest

from rldbg.cli import main
from rldbg.core import PrerequisiteError, UsageError
from rldbg.inference import (
    Allocation,
    EngineCommand,
    Listening,
    devices_of,
    model_path,
    parse_allocation,
    read_areal_configuration,
    replica_count,
)
from rldbg.inference.engine_commands import flags


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("sglang.d4p1t1", Allocation("sglang", 4, 1, 1)),
        ("d4p1t1", Allocation(None, 4, 1, 1)),
        ("vllm.d2t4", Allocation("vllm", 2, 4, 1)),
        ("sglang:d4", Allocation("sglang", 4)),
        ("sglang:d4t2+fsdp:d8", Allocation("sglang", 4, 2)),
        ("sglang.d4p1t1+d4p1t1", Allocation("sglang", 4, 1, 1)),
        ("sglang[rollout]:d2+fsdp[actor]:d4|fsdp[critic]:d4", Allocation("sglang", 2)),
        ("vllm:d1p2t2+megatron:(attn:d1p2t2|ffn:d1p2e2)", Allocation("vllm", 1, 2, 2)),
    ],
)
def test_allocation_modes_of_both_grammars(mode, expected):
    assert parse_allocation(mode) == expected


@pytest.mark.parametrize("mode", ["", "sglang", "sglang.d0", "sglang.x4", "d4d4", "sglang:d1+vllm:d1", "fsdp:d4", "4"])
def test_modes_that_say_nothing_to_serve(mode):
    with pytest.raises(UsageError) as caught:
        parse_allocation(mode)
    assert caught.value.hint


def test_replicas_are_the_modes_d_and_two_numbers_must_agree():
    assert replica_count(None, None) == 1
    assert replica_count(None, parse_allocation("sglang.d4p1t1")) == 4
    assert replica_count(4, parse_allocation("sglang.d4p1t1")) == 4
    with pytest.raises(UsageError, match="--replicas 2 and d4 of the allocation mode disagree"):
        replica_count(2, parse_allocation("sglang.d4p1t1"))


def test_only_loopback_needs_no_token():
    Listening().check()
    Listening("::1").check()
    Listening("0.0.0.0", token="s").check()
    with pytest.raises(UsageError, match="needs a token"):
        Listening("0.0.0.0").check()


def test_the_command_of_an_sglang_server():
    command = EngineCommand("sglang", "/m", 2, 1, "auto", {"mem_fraction_static": 0.8, "disable_radix_cache": True})
    assert command.arguments(1, Listening(port=9000)) == [
        sys.executable, "-m", "sglang.launch_server", "--model-path", "/m", "--tp-size", "2", "--dtype", "auto",
        "--skip-server-warmup", "--host", "127.0.0.1", "--port", "9001", "--mem-fraction-static", "0.8",
        "--disable-radix-cache",
    ]  # fmt: skip


def test_the_command_of_a_vllm_server():
    command = EngineCommand("vllm", "Qwen/Qwen3-8B", 4, 2, "bfloat16", extra=("--enforce-eager",))
    listening = Listening("0.0.0.0", 8000, "secret")
    arguments = command.arguments(0, listening)
    assert arguments == [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "Qwen/Qwen3-8B",
        "--tensor-parallel-size", "4", "--pipeline-parallel-size", "2", "--dtype", "bfloat16", "--host", "0.0.0.0",
        "--port", "8000", "--enforce-eager",
    ]  # fmt: skip
    assert command.environment(listening) == {"VLLM_API_KEY": "secret"}, "a command line is seen by everybody"
    assert int(EngineCommand("vllm", "m").arguments(0, Listening())[-1]) > 1024, "a free port is chosen"


def test_an_engine_that_is_not_installed_says_so():
    with pytest.raises(PrerequisiteError, match="sglang is not installed"):
        EngineCommand("sglang", "m").check()


def test_settings_become_flags():
    settings = {"a_b": 1, "yes": True, "no": False, "none": None, "many": [1, "x"], "map": {"k": 1}, "port": 5, "e": ""}
    assert flags(settings) == ["--a-b", "1", "--yes", "--many", "1", "x", "--map", '{"k": 1}']


def test_devices_are_shared_out_by_replica(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,7")
    assert devices_of(1, 2, shared=False) == {"CUDA_VISIBLE_DEVICES": "6,7"}
    assert devices_of(5, 1, shared=True) == {"CUDA_VISIBLE_DEVICES": "5"}
    with pytest.raises(PrerequisiteError, match="replica 2 needs devices 4 to 5, and there are 4"):
        devices_of(2, 2, shared=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices_of(0, 1, shared=True) == {}


def test_only_the_servers_part_of_a_configuration_is_read(tmp_path):
    file = tmp_path / "gsm8k_grpo.yaml"
    file.write_text(
        "experiment_name: x\nallocation_mode: sglang.d4p1t1+d4p1t1\nactor:\n  path: /models/m\n"
        "sglang:\n  model_path: ${actor.path}\n  mem_fraction_static: 0.8\nunknown_block: {a: 1}\n"
    )
    found = read_areal_configuration(file, ["allocation_mode=sglang.d2p1t1", "rollout.enable_rollout_tracing=True"])
    assert (found.allocation_mode, found.model) == ("sglang.d2p1t1", "/models/m")
    assert found.settings["mem_fraction_static"] == 0.8
    with pytest.raises(UsageError, match="no inference part"):
        read_areal_configuration(file, ["allocation_mode=d4p1t1"])
    assert read_areal_configuration(file, ["actor.path=tiny"]).model == "tiny"


def test_a_hub_id_is_a_model_when_the_cache_has_it(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    entry = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B"
    for commit in ("a1", "b2"):
        (entry / "snapshots" / commit).mkdir(parents=True)
        (entry / "snapshots" / commit / "config.json").write_text("{}")
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text("a1")
    assert model_path("Qwen/Qwen3-0.6B", with_weights=False) == entry / "snapshots" / "a1"
    with pytest.raises(UsageError, match="without its weights") as caught:
        model_path("Qwen/Qwen3-0.6B")
    assert caught.value.hint.endswith("hf download Qwen/Qwen3-0.6B")
    (entry / "snapshots" / "a1" / "model-1.safetensors").touch()
    assert model_path("Qwen/Qwen3-0.6B") == entry / "snapshots" / "a1"
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    for text in (json.dumps(index), json.dumps(index)[:20], "[]"):
        (entry / "snapshots" / "a1" / "model.safetensors.index.json").write_text(text)
        with pytest.raises(UsageError, match="not all of them"):
            model_path("Qwen/Qwen3-0.6B")
    assert model_path(str(entry / "snapshots" / "b2")).name == "b2"
    with pytest.raises(UsageError, match="nor in the cache") as caught:
        model_path("Qwen/Qwen3-4B")
    assert caught.value.hint.endswith("hf download Qwen/Qwen3-4B")
    with pytest.raises(UsageError, match=r"config\.json is missing"):
        model_path(str(tmp_path))


@pytest.mark.parametrize(
    "words",
    ["--backend train --out x", "--deterministic", "--nearest", "--backend recording RUN --upstream http://h:1",
     "--alias a", "--engine-option=--x", "--backend vllm --model m --alias a"],
)  # fmt: skip
def test_an_option_of_another_backend_is_refused_before_anything_starts(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RLDBG_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["serve", "up", *words.split()])
    assert ended.value.code == 2 and "has no meaning for --backend" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
