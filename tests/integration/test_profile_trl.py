"""TRL's own trainer under `rldbg profile`: its steps and phases, with no change of its script."""

import gzip
import json

import pytest
from client_environments import TRL, environment_with
from profile_jobs import profile

from rldbg.trainer import tiny_folder

SCRIPT = """\
import sys
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

settings = GRPOConfig(
    output_dir="out", max_steps=4, per_device_train_batch_size=4, num_generations=4, max_completion_length=4,
    use_cpu=True, bf16=False, report_to=[], save_strategy="no",
)
trainer = GRPOTrainer(
    model=sys.argv[1],
    reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
    args=settings,
    train_dataset=Dataset.from_list([{"prompt": f"{number}+1="} for number in range(9)]),
    processing_class=AutoTokenizer.from_pretrained(sys.argv[1]),
)
trainer.train()
"""


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_steps_and_phases_of_grpo(tmp_path):
    python = environment_with("trl", TRL, beside_ours=True)
    (tmp_path / "grpo.py").write_text(SCRIPT)
    model = tiny_folder(tmp_path / "tiny")
    window = ("--workers", "grpo", "--steps", "2:4", "--tool", "torch", "--run", "run")
    done = profile(tmp_path, *window, "--", str(python), "grpo.py", str(model), HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    (entry,) = json.loads((tmp_path / "run" / "profiles" / "manifest.json").read_text())["profiles"]
    assert entry["worker"] == "grpo", done.stderr
    with gzip.open(entry["files"][0]["path"], "rt") as file:
        names = [event["name"] for event in json.load(file)["traceEvents"]]
    for phase in ("rollout", "reward", "loss", "backward", "optimizer"):
        assert names.count(f"phase:{phase}") == 2, (phase, "once in each of steps 2 and 3")
    report = profile(tmp_path, "report", "run", "--json")
    assert json.loads(report.stdout)["steps"] == 4, report.stdout
