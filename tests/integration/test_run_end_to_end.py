"""A verl-shaped script that trains rldbg's trainer in a Ray actor: armed, stopped, attached, continued, crashed."""

import json
import os
import subprocess
import time
from pathlib import Path

from command_line import RLDBG, clean_environment, rldbg

RECIPE = Path(__file__).parents[2] / "recipes" / "arithmetic.yaml"
MAIN = """\
import sys
from pathlib import Path
import ray

@ray.remote(num_cpus=0)
class TaskRunner:
    def run(self, arguments, folder):
        epochs = [word for word in arguments if "total_epochs" in word][-1]
        breakpoint()
        from rldbg.core import Run
        from rldbg.trainer.recipe import read_recipe
        from rldbg.trainer.training import train
        small = ["steps=1", "warm_start.max_steps=2", "data.prompts_per_step=4", "policy.ranks=1"]
        small.append("++cluster.in_process=true")
        result = train(read_recipe(RECIPE, small), Run.create(name="trained", path=Path(folder) / "trained"))
        raise ValueError(f"on purpose after {result.steps} step, {epochs}")

RECIPE = "%s"

if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False, _temp_dir=sys.argv[1].partition("=")[2])
    ray.get(TaskRunner.remote().run.remote(sys.argv[1:], str(Path.cwd())))
"""


def test_from_script_to_crash_file(tmp_path):
    temporary = Path(f"/tmp/rldbg-e2e-{os.getpid()}-t")
    (tmp_path / "main_ppo.py").write_text(MAIN % RECIPE)
    (tmp_path / "train.sh").write_text(
        f"set -xeuo pipefail\npython3 main_ppo.py ray.temporary={temporary} actor_rollout_ref.model.path=tiny \\\n"
        "    trainer.experiment_name=e2e trainer.total_epochs=10 2>&1 | tee log.txt\n"
    )
    environment = clean_environment(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
    with (
        (tmp_path / "said").open("w") as said,
        subprocess.Popen(
            [*RLDBG, "run", "--run", "run", "--wait", "1", "train.sh"],
            cwd=tmp_path,
            env=environment,
            stdout=said,
            stderr=said,
        ) as armed,
    ):
        stopped = wait_for_stop(tmp_path, environment, armed)
        assert Path(stopped["file"]).name == "main_ppo.py"
        assert stopped["function"] == "run"
        typed = ("-c", "p epochs", "-c", "c", "--wait", "1", "--run", "run")
        attached = rldbg(tmp_path, "attach", stopped["who"], *typed, env=environment)
        assert "++trainer.total_epochs=1" in attached.stdout, attached.stdout + attached.stderr
        code = armed.wait(timeout=150)
    text = (tmp_path / "said").read_text()

    assert code == 1, text[-3000:]
    crashes = [json.loads(file.read_text()) for file in (tmp_path / "run" / "crashes").glob("*.json")]
    assert any("on purpose after 1 step" in crash["exceptions"][0]["message"] for crash in crashes)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["exit_code"] == 1
    assert "stopped at" in text and "rldbg attach" in text
    assert "crashed: " in text
    assert (tmp_path / "trained" / "metrics.jsonl").exists()


def wait_for_stop(folder, environment, armed) -> dict:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert armed.poll() is None, (folder / "said").read_text()[-3000:]
        if (folder / "run" / "broker.json").exists():
            answer = rldbg(folder, "ps", "--json", "--run", "run", env=environment)
            rows = json.loads(answer.stdout or "{}").get("processes", []) if answer.returncode == 0 else []
            for row in rows:
                if row["state"] == "stopped":
                    return row
        time.sleep(0.3)
    raise AssertionError((folder / "said").read_text()[-3000:])


def test_record_really_records_the_kinds_that_are_named(tmp_path):
    words = ["steps=1", "warm_start.max_steps=1", "data.prompts_per_step=4", "policy.ranks=1"]
    words += ["++cluster.in_process=true", "++debug.dump_options.batch_inputs=false"]

    record = ["--record", "trajectory,loss", "--", "rldbg", "train", str(RECIPE), *words]
    result = rldbg(tmp_path, "run", "--run", "run", *record)

    assert result.returncode == 0, result.stderr[-3000:]
    shown = rldbg(tmp_path, "show", "run", "--json")
    assert sorted(json.loads(shown.stdout)["kinds"]) == ["loss", "trajectory"], shown.stdout + shown.stderr
