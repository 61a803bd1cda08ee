"""What a script would do to the debugger, the machine or the real run."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rldbg.agent import STARTUP
from rldbg.core import PrerequisiteError
from rldbg.launch.dry_run.calls import ShellCall
from rldbg.launch.dry_run.execution import DryRun
from rldbg.launch.hazards import run_hazards, script_hazards
from rldbg.launch.plan import shell_functions
from rldbg.launch.recognition import recognise
from rldbg.launch.request import Request, resolve_command

PATH = f"{Path(sys.executable).parent}:/usr/bin:/bin"


def hazards(line, folder, script=None):
    call = ShellCall(tuple(shlex.split(line)), str(folder), str(script or ""), 1, environment={"PATH": PATH})
    dry_run = DryRun("namespaces", {}, (call,))
    return {found.id: found for found in run_hazards(dry_run, recognise([call]), script)}


def test_kills_by_path_are_named_and_skipped(tmp_path):
    script = tmp_path / "s.sh"
    script.write_text("/usr/bin/pkill -9 python\n/bin/killall -9 ray\n")
    assert {found.id for found in script_hazards(script, [], in_slurm=False)} == {
        "launch.kills-python",
        "launch.kills-processes",
    }
    assert "launch.kills-python" in hazards("/usr/bin/pkill -9 -f python", tmp_path)
    assert "launch.kills-processes" in hazards("/usr/bin/pkill -9 -f sglang", tmp_path)
    functions = tmp_path / "functions.sh"
    functions.write_text(shell_functions([], Request((), script, tmp_path, skip_kills=True), ""))
    done = subprocess.run(
        ["bash", script], env={"BASH_ENV": str(functions)}, capture_output=True, text=True, check=True
    )
    assert done.stderr == "rldbg: skipped: pkill -9 python\nrldbg: skipped: killall -9 ray\n"


def test_a_program_that_does_not_exist_is_an_error(tmp_path):
    found = hazards("python train_grpo.py --lr 1", tmp_path)
    assert found["launch.program-missing"].severity == "error"
    (tmp_path / "train_grpo.py").touch()
    assert "launch.program-missing" not in hazards("python train_grpo.py --lr 1", tmp_path)
    assert "launch.program-missing" in hazards("./venv/bin/python train_grpo.py", tmp_path)
    assert "launch.program-missing" in hazards("python -m areal.launcher.local gone.py --config x.yaml", tmp_path)
    for elsewhere in ("docker run image python train.py", "srun python train.py", "ssh host python train.py"):
        assert "launch.program-missing" not in hazards(elsewhere, tmp_path)


def test_a_module_that_its_interpreter_does_not_find_is_an_error(tmp_path):
    found = hazards("python -m nosuch_pkg.train --output_dir out", tmp_path)["launch.module-missing"]
    assert found.severity == "error"
    assert "pip install nosuch_pkg" in found.fix[0] and sys.executable.rpartition("/")[0] in found.evidence[0]
    (tmp_path / "nosuch_pkg").mkdir()
    assert "launch.module-missing" in hazards("python -m nosuch_pkg.main_train --lr 1", tmp_path)
    (tmp_path / "nosuch_pkg" / "train.py").touch()
    other = tmp_path / "other"
    other.mkdir()
    assert "launch.module-missing" in hazards("python -m nosuch_pkg.train", other)
    for elsewhere in ("docker run image", "srun", "ssh host"):
        assert "launch.module-missing" not in hazards(f"{elsewhere} python -m gone.train", tmp_path)


def test_a_configuration_that_does_not_exist_is_named(tmp_path):
    (tmp_path / "train_agent.py").touch()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "there.yaml").touch()
    line = f"python train_agent.py --config-path {tmp_path}/config --config-name"
    assert "gone.yaml" in hazards(f"{line} gone", tmp_path)["launch.config-missing"].cause
    assert "launch.config-missing" in hazards("python train_agent.py --config gone.yaml", tmp_path)
    for found in (
        f"{line} there",
        "python train_agent.py --config config/there.yaml",
        "python train_agent.py --config-name gone",  # below a folder that hydra.main names
        "python train_agent.py --config small",
        f"{line} gone hydra.searchpath=[file:///else]",
        f"python -m pkg.train --config-path config --config-name gone --model {tmp_path}",
        f"python train_agent.py --config-path {tmp_path}/else --config-name gone",
        f"docker run image {line} gone",
    ):
        assert "launch.config-missing" not in hazards(found, tmp_path), found


@pytest.mark.parametrize(
    "line",
    ["pip install -e .", "conda activate rl", ". venv/bin/activate", "export PYTHONPATH=/repo:$PYTHONPATH", "cd /repo"],
)
def test_a_module_that_the_script_provides_is_no_error(tmp_path, line):
    script = tmp_path / "s.sh"
    script.write_text(f"python -m gone.train\n{line}\n")
    found = hazards("python -m gone.train", tmp_path, script)
    assert "launch.module-missing" not in found
    assert line in found["launch.not-installed"].evidence[1]


@pytest.mark.parametrize("launcher", ["python", "torchrun --standalone --nproc_per_node=8"])
def test_a_framework_that_is_not_installed_is_named(tmp_path, launcher):
    torchrun = tmp_path / "torchrun"
    torchrun.touch(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    call = ShellCall(
        (
            *launcher.split(),
            "-m",
            "verl_gone.trainer.main_ppo",
            "algorithm.adv_estimator=grpo",
            "actor_rollout_ref.rollout.n=4",
        ),
        str(tmp_path),
        environment={"PATH": f"{tmp_path}:{PATH}"},
    )
    found = {each.id: each for each in run_hazards(DryRun("namespaces", {}, (call,)), recognise([call], "verl"), None)}
    assert "No module named verl_gone" in found["launch.not-installed"].evidence[0]


def test_what_the_script_has_written_is_there(tmp_path):
    call = ShellCall(("python", "tr.py"), str(tmp_path), there=frozenset({"tr.py"}), environment={"PATH": PATH})
    found = run_hazards(DryRun("namespaces", {}, (call,)), recognise([call], "generic"), None)
    assert "launch.program-missing" not in {each.id for each in found}


def test_a_folder_that_the_script_removes_is_named(tmp_path):
    (tmp_path / "exp").mkdir()
    assert str(tmp_path / "exp") in hazards("rm -rf exp", tmp_path)["launch.removes-folder"].cause
    assert "launch.removes-folder" not in hazards("rm -rf not-there", tmp_path)
    assert "launch.removes-folder" not in hazards("rm -f exp/log", tmp_path)


@pytest.mark.parametrize(
    ("folder", "named"), [("/gone/exp", True), ("/gone/exp/ckpt/old", True), ("/gone/other", False)]
)
def test_a_folder_that_the_training_writes_into_is_named_also_when_it_is_not_here(tmp_path, folder, named):
    words = "python -m verl.trainer.main_ppo trainer.default_local_dir=/gone/exp/ckpt data.train_files=/gone/other/x"
    calls = [
        ShellCall(tuple(line.split()), str(tmp_path), environment={"PATH": PATH})
        for line in (f"rm -rf {folder}", words)
    ]
    found = {each.id: each for each in run_hazards(DryRun("namespaces", {}, tuple(calls)), recognise(calls), None)}
    assert ("launch.removes-folder" in found) == named


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("python train.py 2>&1 | tee run.log", "tee"),
        ("python train.py --filter 'a|b' |& /usr/bin/tee run.log", "/usr/bin/tee"),
        ('bash -c "python train.py | grep loss"', "grep"),
        ("yes | python train.py", ""),
        ("cat lrs | xargs -n 1 python train.py --lr", ""),
        ("yes | python train.py | tee run.log", "tee"),
        ("python train.py --filter 'a|b' || exit 1", ""),
    ],
)
def test_what_reads_the_output_of_the_training_hides_its_status(tmp_path, line, program):
    script = tmp_path / "s.sh"
    script.write_text(f"{line}\n")
    found = hazards("python train.py", tmp_path, script).get("launch.exit-status-lost")
    assert (found.evidence[0] if found else "") == (f"| {program}, without `set -o pipefail`" if program else "")


def test_that_folders_in_tmp_may_go(tmp_path):
    assert "launch.removes-folder" not in hazards("rm -rf /tmp", tmp_path)


@pytest.mark.parametrize(("words", "how"), [("tee run.log", "is overwritten"), ("tee -a run.log", "is appended to")])
def test_the_log_of_the_real_run_is_named(tmp_path, words, how):
    script = tmp_path / "s.sh"
    script.write_text(f"python train.py 2>&1 | {words}\n")
    found = hazards("python train.py", tmp_path, script)["launch.shared-log"]
    assert found.cause.startswith(f"run.log {how}")


@pytest.mark.parametrize("made_of", ["$(date +%s)", "`date +%s`", "$$", "${SLURM_JOB_ID}"])
def test_a_log_that_each_run_has_of_its_own_is_not_named(tmp_path, made_of):
    script = tmp_path / "s.sh"
    script.write_text(
        f'STAMP="{made_of}"\nexport LOGS="logs/${{STAMP}}"\nLOG=$LOGS/run.log\npython train.py | tee "${{LOG}}"\n'
    )
    call = ShellCall(("python", "train.py"), str(tmp_path), str(script), 4, environment={"PATH": PATH})
    found = run_hazards(DryRun("namespaces", {}, (call,)), recognise([call]), script)
    assert "launch.shared-log" not in {each.id for each in found}


def test_a_path_in_capitals_is_a_placeholder(tmp_path):
    script = tmp_path / "s.sh"
    script.write_text("python train.py --save PATH/TO/ckpt --data X_PATH/TO/y\n")
    call = ShellCall(("python", "train.py", "--save", "PATH/TO/ckpt"), str(tmp_path))
    found = script_hazards(script, recognise([call]), in_slurm=False)
    assert [(hazard.id, hazard.evidence[0]) for hazard in found] == [("launch.placeholder", "PATH/TO/ckpt")]


def test_braces_inside_a_word_are_a_template_of_the_program(tmp_path):
    script = tmp_path / "s.sh"
    script.write_text("python train.py --save-data out/rollout_{rollout_id}.pt\npython train.py --key {wandb_token}\n")
    commands = recognise(
        [ShellCall(tuple(shlex.split(line)), str(tmp_path)) for line in script.read_text().splitlines()]
    )
    found = [each for each in script_hazards(script, commands, in_slurm=False) if each.id == "launch.placeholder"]
    assert [each.evidence for each in found] == [("{wandb_token}",)]


def test_a_dry_run_needs_no_launcher_of_the_cluster(tmp_path):
    words = ["sbatch", "--nodes=2", "job.sub"]
    assert resolve_command(words, path=str(tmp_path), dry_run=True) == (tuple(words), None)
    with pytest.raises(PrerequisiteError, match="sbatch"):
        resolve_command(words, path=str(tmp_path))
    with pytest.raises(PrerequisiteError, match="no-such-program"):
        resolve_command(["no-such-program"], path=str(tmp_path), dry_run=True)


def test_a_container_of_slurm_must_mount_the_agent(tmp_path):
    """NeMo RL's ray.sub: the driver joins a container that an earlier step has made with its mounts."""
    package = str(Path(STARTUP).parents[1])
    alone = "srun --container-image=i --container-mounts=/data:/data python train_grpo.py"
    found = hazards(alone, tmp_path)["launch.not-mounted"]
    assert f"{package}:{package}" in found.fix[0]
    mounted = f"srun --container-image=i --container-mounts=/data:/data,{package}:{package}:ro python train_grpo.py"
    assert "launch.not-mounted" not in hazards(mounted, tmp_path)
    elsewhere = f"srun --container-image=i --container-mounts={package}:/other python train_grpo.py"
    assert "launch.not-mounted" in hazards(elsewhere, tmp_path)
    assert "launch.not-mounted" not in hazards("srun python train_grpo.py", tmp_path)
