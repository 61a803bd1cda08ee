"""What stubs answer in a dry run, where scripts build on it."""

from pathlib import Path

import pytest

from rldbg.launch.dry_run.calls import PREFIX
from rldbg.launch.dry_run.stub import respond


def units(environment: dict[str, str]) -> str:
    text = respond(["ray", "status"], environment).text
    return next(line for line in text.splitlines() if "worker_units" in line).strip()


def test_a_cluster_has_what_all_nodes_of_the_allocation_said(tmp_path: Path) -> None:
    environment = {f"{PREFIX}_RESULTS": str(tmp_path)}
    assert units(environment) == "0.0/64.0 worker_units"
    respond(["ray", "start", "--head", '--resources={"worker_units": 8, "x": 1}'], environment)
    assert units(environment) == "0.0/8.0 worker_units"
    (tmp_path / "nodes").write_text("3")
    assert units(environment) == "0.0/24.0 worker_units"
    assert units({}) == "0.0/64.0 worker_units"


def test_a_node_that_joins_for_good_stays_for_a_while() -> None:
    assert respond(["ray", "start", "--address=a", "--block"], {}).argv == ("sleep", "3")
    assert respond(["ray", "start", "--head"], {}).argv == ()


def test_a_step_of_several_nodes_runs_once_per_task() -> None:
    step = ["srun", "--nodes=2", "--ntasks-per-node=1", "bash", "-c", "touch ready"]
    assert respond(step, {}).tasks == 2
    assert respond(["srun", "-n", "4", "bash", "x.sh"], {}).tasks == 4
    assert respond(["srun", "--nodes=512", "bash", "x.sh"], {}).tasks == 8
    assert respond(["srun", "--nodes=2", "python", "train.py"], {}).tasks == 1
    assert respond(["hostname"], {"SLURMD_NODENAME": "node-2"}).text == "node-2\n"


def test_the_folders_of_a_container_of_slurm_are_not_here() -> None:
    assert respond(["srun", "--container-image=i", "sh", "x.sh"], {}).environment[f"{PREFIX}_ELSEWHERE"] == "1"
    assert f"{PREFIX}_ELSEWHERE" not in respond(["srun", "bash", "x.sh"], {}).environment


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ("https://host/a/Megatron-LM -b dev", "Megatron-LM"),
        ("--depth 1 git@host:a/verl.git", "verl"),
        ("-b main https://host/a/b.git out/here --recursive", "out/here"),
    ],
)
def test_the_folder_of_a_clone_is_there(words: str, folder: str) -> None:
    reply = respond(["git", "clone", *words.split()], {})
    assert (reply.argv, reply.real) == (("mkdir", "-p", "--", folder), True)
    assert respond(["git", "clone", *words.split()], {f"{PREFIX}_KEEP_OTHERS": "1"}).argv == ()
