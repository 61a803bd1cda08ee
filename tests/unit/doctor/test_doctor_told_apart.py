"""Entries with several reasons say the one that their line or their frames tell."""

import pytest

HEAD = "Traceback (most recent call last):\n"
V = "/v/lib/python3.12/site-packages"
FULL = "OSError: [Errno 28] No space left on device"
MISSING = "ModuleNotFoundError: No module named 'wibble'"


def of_frame(frame, said):
    file, function = frame
    outer = f'{HEAD}  File "/w/go.py", line 3, in go\n    frob()\n'
    return f'{outer}  File "{file}", line 9, in {function}\n    sew()\n{said}\n'


@pytest.mark.parametrize(
    ("frame", "has", "lacks"),
    [
        ((f"{V}/ray/_private/external_storage.py", "_write_multiple_objects"), "temp-dir", "HF_HOME"),
        ((f"{V}/huggingface_hub/file_download.py", "http_get"), "HF_HOME", "TRITON_CACHE_DIR"),
        ((f"{V}/datasets/arrow_writer.py", "write_table"), "HF_DATASETS_CACHE", "TRITON_CACHE_DIR"),
        ((f"{V}/triton/runtime/cache.py", "put"), "TRITON_CACHE_DIR", "HF_HOME"),
        ((f"{V}/wandb/sdk/seam.py", "write"), "WANDB_DIR", "HF_HOME"),
    ],
)
def test_a_full_disk_is_that_of_who_wrote(verdict, frame, has, lacks):
    cause = verdict(of_frame(frame, FULL)).root_causes[0]
    assert cause.id == "disk-full"
    assert has in " ".join(cause.fix)
    assert lacks not in " ".join(cause.fix)


def test_a_disk_that_is_full_while_objects_are_spilled_is_that_of_ray(verdict):
    said = "An internal error occurred while the IO worker was spilling objects: [Errno 28] No space left on device\n"
    assert "Ray spills" in verdict(said).root_causes[0].title


@pytest.mark.parametrize("value", ["\"'([2]*8)'\"", "'\"([2]*8)\"'"])
def test_quotes_in_a_value_are_too_many_and_not_missing(verdict, value):
    cause = verdict(f"go.py: error: argument --seams: invalid seam_type value: {value}\n").root_causes[0]
    assert "with quotes in it" in cause.title
    assert "missing" not in cause.cause
    assert any(step.endswith("receives: ([2]*8)") for step in cause.fix)
    plain = verdict("go.py: error: argument --seams: invalid int value: 'seven'\n").root_causes[0]
    assert "quotes in it" not in plain.title


def test_a_batch_of_none_after_division_is_smaller_than_the_ranks(verdict):
    cause = verdict("AssertionError: ppo_mini_batch_size 0 should be larger than 0 after normalization\n").root_causes[
        0
    ]
    assert "is 0 after" in cause.title
    assert "DeepSpeed" not in cause.cause
    assert "x n is at least" in cause.fix[0]


@pytest.mark.parametrize(
    "log",
    [
        of_frame((f"{V}/torch/nn/parallel/data_parallel.py", "forward"), "RuntimeError: 7 wibbles do not fit"),
        "trl/trainer/seam.py:9: in step\n    sew()\ntorch/nn/parallel/data_parallel.py:186: in forward\n"
        "    inputs = self.scatter(inputs)\nRuntimeError: 7 wibbles do not fit\n",
    ],
)
def test_frames_of_data_parallel_say_that_no_launcher_was_used(verdict, log):
    cause = verdict(log).root_causes[0]
    assert cause.id == "data-parallel-in-one-process"
    assert cause.confidence != "high"


def test_frames_of_distributed_data_parallel_do_not(verdict):
    log = of_frame((f"{V}/torch/nn/parallel/distributed.py", "forward"), "RuntimeError: 7 wibbles do not fit")
    assert "data-parallel-in-one-process" not in [cause.id for cause in verdict(log).root_causes]


def test_the_part_of_a_job_that_ended_first_is_named(verdict):
    log = of_frame(("/w/launch/local.py", "wait"), "seam.client.JobException: Job quilt_3:llm_server FAILED at node n7")
    found = verdict(f"RuntimeError: Failed after 3 retries each. Endpoint: /generate\n{log}")
    assert found.root_causes[0].id == "component-job-ended"
    assert "llm_server" in found.root_causes[0].title
    other = verdict(log.replace("llm_server", "seam")).root_causes[0]
    assert "server" not in other.title


def test_a_name_of_a_multimodal_model_is_told(verdict):
    said = "ValueError: Unknown parameter name: module.vision_tower.layers.0.frob.weight"
    cause = verdict(of_frame(("/w/seams/megatron_to_hf/quilt.py", "convert"), said)).root_causes[0]
    assert "multimodal" in cause.title
    plain = verdict(of_frame(("/w/seams/megatron_to_hf/quilt.py", "convert"), said.replace("vision_tower", "decoder")))
    assert "multimodal" not in plain.root_causes[0].title


def test_a_module_is_missing_for_a_worker_only_where_there_is_one(verdict):
    own = verdict(of_frame(("/w/verl/verl/seams/quilt.py", "<module>"), MISSING)).root_causes[0]
    assert "worker" not in f"{own.title} {' '.join(own.fix)}"
    assert "--extra" in own.fix[0]
    users = verdict(of_frame(("/w/quilt.py", "<module>"), MISSING)).root_causes[0]
    assert "--extra" not in " ".join(users.fix)
    remote = HEAD + "".join(
        f"(Quilt pid=7) {line}\n" for line in of_frame(("/w/q.py", "<module>"), MISSING).splitlines()
    )
    assert "worker" in verdict(remote.removeprefix(HEAD)).root_causes[0].title


def test_what_an_extra_of_nemo_rl_has_is_named(verdict):
    said = "ModuleNotFoundError: No module named 'nemo'"
    cause = verdict(of_frame(("/w/nemo_rl/models/megatron/quilt.py", "convert"), said)).root_causes[0]
    assert "--extra mcore" in cause.fix[0]
