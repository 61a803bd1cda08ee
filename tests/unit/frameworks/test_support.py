"""`rldbg frameworks`: what is supported, and whether the installed version has the hooks, as its source tells."""

import json
import os
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from unit.frameworks.distributions import make_distribution

SOURCE = str(Path(__file__).parents[3] / "src")
# Importing it would fail; `step` is inherited, `_update_actor` is imported from elsewhere, the rest is gone.
TRAINER = """
import a_package_that_nobody_has
from verl.trainer.ppo.v1.stages import Stages

class PPOTrainer(Stages):
    if True:
        def _compute_advantage(self, batch, metrics): ...
"""
STAGES = """
from .base import Base as Root

class Stages(Root):
    async def _update_actor(self, batch, metrics): ...
"""
BASE = """
class Base:
    def step(self, metrics, timing_raw): ...
"""


def frameworks(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rldbg", "frameworks", *words],
        env=dict(os.environ, PYTHONPATH=f"{site}{os.pathsep}{SOURCE}"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def site(tmp_path):
    v1 = "verl/trainer/ppo/v1"
    packages = ("verl", "verl/trainer", "verl/trainer/ppo", v1, "verl/workers", "verl/workers/rollout")
    files = {f"{package}/__init__.py": "" for package in packages}
    files |= {f"{v1}/trainer_base.py": TRAINER, f"{v1}/stages.py": STAGES, f"{v1}/base.py": BASE}
    files |= {"verl/workers/engine_workers.cpython-311-x86_64-linux-gnu.so": ""}
    return make_distribution(tmp_path, "verl", "0.9.1", files)


def test_every_hook_is_looked_up_in_the_source_of_the_installed_version(site):
    done = frameworks(site, "verl", "--json")

    assert done.returncode == 1, done.stderr
    (verl,) = json.loads(done.stdout)["frameworks"]
    assert verl["version"] == "0.9.1"
    hooks = {f"{hook['module']}.{hook['function']}": hook for hook in verl["hooks"]}
    base = "verl.trainer.ppo.v1.trainer_base.PPOTrainer"
    v1 = site / "verl/trainer/ppo/v1"
    assert hooks[f"{base}.step"]["state"] == "found"
    assert hooks[f"{base}.step"]["how"] == f"{v1}/base.py:3"
    assert hooks[f"{base}._update_actor"]["how"] == f"{v1}/stages.py:5"
    assert hooks[f"{base}._compute_advantage"]["how"] == f"{v1}/trainer_base.py:7"
    gone = hooks[f"{base}._compute_old_log_prob"]
    assert gone["state"] == "missing"
    assert gone["how"] == f"no PPOTrainer._compute_old_log_prob in {v1}/trainer_base.py"
    server = hooks["verl.workers.rollout.llm_server.LLMServerClient.generate"]
    assert (server["state"], server["how"]) == ("missing", "no module verl.workers.rollout.llm_server")
    compiled = hooks["verl.workers.engine_workers.TrainingWorker.train_mini_batch"]
    assert compiled["state"] == "not checked" and compiled["how"].endswith("has no source")
    assert hooks["verl.workers.actor.dp_actor.DataParallelPPOActor.update_policy"]["state"] == "not in this version"


def test_an_older_version_is_expected_to_have_the_older_functions(tmp_path):
    site = make_distribution(tmp_path, "verl", "0.6.1", {"verl/__init__.py": ""})

    (verl,) = json.loads(frameworks(site, "verl", "--json").stdout)["frameworks"]

    states = {f"{hook['module']}.{hook['function']}": hook["state"] for hook in verl["hooks"]}
    assert states["verl.workers.actor.dp_actor.DataParallelPPOActor.update_policy"] == "missing"
    assert states["verl.trainer.ppo.v1.trainer_base.PPOTrainer.step"] == "not in this version"


def test_all_are_listed_with_what_is_supported(tmp_path):
    done = frameworks(tmp_path, "--json")

    assert done.returncode == 0, done.stdout
    found = {each["name"]: each for each in json.loads(done.stdout)["frameworks"]}
    assert found["nexrl"]["supported"]["replay"]
    assert found["trl"]["supported"]["record"] == (
        "forward_data, gradient, is_loss_debug, loss, old_log_probs, param, prepared_trajectories, training_metrics,"
        " trajectory, weight_values, weights"
        " (by hooks, tested with runs of TRL 1.16.0)"
    )
    assert "tested with a stub of the shape of slime 0.3.1" in found["slime"]["supported"]["record"]
    assert found["skyrl"]["supported"]["record"].endswith("(by trainer.dump_data_batch, trainer.export_path)")
    assert found["rldbg"]["supported"]["layout"].startswith("journal/*.jsonl")
    assert found["archer"]["based_on"] == "verl"
    assert found["archer"]["supported"] == found["verl"]["supported"]
    assert found["vllm"]["supported"]["launch"] is None
    assert {hook["state"] for hook in found["rldbg"]["hooks"]} == {"found"}
    tested = {name: each["tested"] or "" for name, each in found.items()}
    stubs = {name for name, with_what in tested.items() if with_what.startswith("a stub")}
    assert stubs == {"slime", "nemo_rl", "rlinf", "prime_rl", "nexrl", "sglang"}
    rows = [line.split() for line in frameworks(tmp_path).stdout.splitlines()]
    assert {row[0] for row in rows if row and row[0] in found and row[3] == "stub"} == stubs


def test_the_terminal_names_what_is_missing_and_how_that_was_found(site):
    listed = frameworks(site)
    assert listed.returncode == 1
    assert "no module verl.workers.rollout.llm_server" in " ".join(listed.stdout.split())

    shown = frameworks(site, "verl").stdout
    assert "missing  verl.trainer.ppo.v1.trainer_base.PPOTrainer._compute_old_log_prob  log_probs" in shown
    assert "since 0.9.0, last seen in 0.9.1" in " ".join(shown.split())


def test_an_unknown_name_is_a_usage_error(tmp_path):
    done = frameworks(tmp_path, "verrl")

    assert done.returncode == 2
    assert "did you mean 'verl'?" in done.stderr


def test_hooks_with_one_reason_are_shown_below_it_once_and_stay_indented(tmp_path):
    lines = frameworks(tmp_path, "trl").stdout.splitlines()
    assert len([line for line in lines if line.startswith("not checked: trl is not installed")]) == 1
    below = lines[next(place for place, line in enumerate(lines) if line.startswith("not checked: trl")) + 1 :]
    of_it = list(takewhile(lambda line: not line.startswith(("found", "not checked", "missing")), below))
    assert len(of_it) > 5 and all(line.startswith("    ") for line in of_it)


@pytest.mark.parametrize("made", [False, True])
def test_what_is_not_a_run_has_no_hooks_to_show(tmp_path, made):
    if made:
        (tmp_path / "empty").mkdir()
    done = frameworks(tmp_path, "--run", str(tmp_path / "empty"))
    assert done.returncode == 4 and "is not a run folder" in done.stderr
