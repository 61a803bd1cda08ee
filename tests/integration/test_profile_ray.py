"""Torch profiles of a Ray job that never imports rldbg, on two raylets; and our own trainer's."""

import gzip
import json
from pathlib import Path

from profile_jobs import RAY_JOB, profile, short_folder

STEPS_2_TO_3 = ("--steps", "2:3", "--tool", "torch")


def events(path: Path) -> list[dict]:
    with gzip.open(path, "rt") as file:
        return json.load(file)["traceEvents"]


def test_a_ray_job_that_never_imports_rldbg(tmp_path):
    """GIVEN actors on two raylets, one of them an engine without steps of its own and with a worker inside
    WHEN step 2 is profiled
    THEN each chosen worker has a trace of that step, the engine by following, and the timeline has all of them."""
    (tmp_path / "job.py").write_text(RAY_JOB)
    done = profile(
        tmp_path, "--workers", "*policy*, *vllm*", *STEPS_2_TO_3, "--run", "run", "--", "python", "job.py", "nested"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run" / "profiles" / "manifest.json").read_text())
    assert found["missing"] == [], done.stderr
    by_worker = {}
    for entry in found["profiles"]:
        by_worker.setdefault(entry["worker"], []).append(Path(entry["files"][0]["path"]))
    assert {name: len(paths) for name, paths in by_worker.items()} == {
        "dtensor_policy_worker": 2,
        "vllm_generation_worker": 1,
        "vllm_generation_worker.inner_worker": 1,
    }
    assert "aten::prod" in [event["name"] for event in events(by_worker["vllm_generation_worker.inner_worker"][0])]
    for path in by_worker["dtensor_policy_worker"]:
        names = [event["name"] for event in events(path)]
        # One step: one backward, and the optimizer inside the window.
        assert names.count("phase:backward") == 1
        assert "Optimizer.step#SGD.step" in names
    assert not list((tmp_path / "run" / "profiles").glob("*bystander*"))
    merged = profile(tmp_path, "timeline", "run", "-o", "trace.json.gz")
    assert merged.returncode == 0, merged.stderr
    assert merged.stdout.count("clock of dtensor_policy_worker") == 2
    timeline = events(tmp_path / "trace.json.gz")
    titles = {event["args"]["name"] for event in timeline if event["name"] == "process_name"}
    assert sum(title.startswith("dtensor_policy_worker") for title in titles) == 2
    assert any(title.startswith("Ray tasks of node") for title in titles)
    # A torch event lies inside the phase that was marked around it, on the same axis.
    by_pid = {}
    for event in timeline:
        if event["name"] in ("backward", "phase:backward"):
            by_pid.setdefault(event["pid"], {}).setdefault(event["name"], []).append(event["ts"])
    for times in by_pid.values():
        assert min(abs(times["phase:backward"][0] - start) for start in times["backward"]) < 5_000
    assert short_folder(tmp_path).exists()
