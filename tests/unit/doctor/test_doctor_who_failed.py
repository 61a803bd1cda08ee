"""Who failed: processes of one node only, several launchers on one node, and who held the memory of a node."""

import pytest

RAISED = (
    "ray::critic-1-{n}:Critic.__init__() (pid={pid}, ip=10.9.0.8, actor_id=31a206da45db89d02a0d5c5902000000, "
    "repr=Critic[rank={rank}])\n"
    '  File "/w/critic.py", line 44, in __init__\n    self.load(path)\n'
    "{error}\n"
)
MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/run7/tokens.json'"


def raised(ranks, error=MISSING):
    return "".join(RAISED.format(n=rank, pid=700 + rank, rank=rank, error=error) for rank in ranks)


@pytest.mark.parametrize(
    "text",
    [
        raised([8, 9, 10]),
        raised([8, 9, 10])
        + RAISED.format(n=0, pid=9, rank=0, error="")
        .replace("ray::critic-1-0:Critic", "ray::TaskRunner")
        .replace("10.9.0.8", "10.9.0.7"),
        raised([0, 1]) + "(Critic pid=41, ip=10.9.0.7) loaded the tokens\n",
        "(Critic pid=41) loaded the tokens\n" + raised([1, 2]).replace("ray::", "(Critic pid=701, ip=10.9.0.8) ray::"),
    ],
)
def test_what_only_one_node_lacks_may_not_be_on_a_shared_file_system(verdict, text):
    found = verdict(text)
    said = "; ".join([found.headline, *(cause.detail for cause in found.root_causes), *found.next])
    assert "are on node 10.9.0.8" in said
    assert "/scratch/run7/tokens.json may not be visible on that node" in said


@pytest.mark.parametrize(
    "text",
    [
        raised([0, 1, 2]),  # no other node is seen
        raised([4, 5, 6]),  # ranks 0 to 3 may be of the same node
        raised([8]),  # one process says nothing of the others
        raised([8, 9]) + raised([1, 2]).replace("10.9.0.8", "10.9.0.9"),  # other nodes lack it, too
        raised([8, 9], error="ValueError: batch of 3 cannot be split"),
    ],
)
def test_one_node_is_named_only_where_others_are_known_not_to_fail(verdict, text):
    found = verdict(text)
    assert "are on node" not in "; ".join([found.headline, *(cause.detail for cause in found.root_causes), *found.next])


def test_an_exception_without_an_entry_is_told_with_its_node_too(verdict):
    found = verdict(raised([8, 9], error="quilt.SeamError: the seam /scratch/run7/seam does not exist"))
    assert found.verdict == "unknown"
    assert any("/scratch/run7/seam may not be visible on that node" in step for step in found.next)


IN_USE = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 31222, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
)
LAUNCH = "+ srun torchrun --nproc_per_node=4 --nnodes=2 --master_port=31222 fold.py\n"


def test_several_tasks_of_a_node_with_a_launcher_each_are_named(verdict):
    found = verdict(LAUNCH + IN_USE + "srun: error: quilt07: tasks 1-3: Exited with exit code 1\n")
    cause = found.root_causes[0]
    assert (cause.id, "several tasks of one node" in cause.title) == ("port-in-use", True)
    assert "tasks 1-3 of quilt07 failed" in cause.detail
    assert "port 31222" in cause.detail
    assert "--ntasks-per-node=1" in cause.fix[0]
    asked = verdict("#SBATCH --ntasks-per-node=4\n" + LAUNCH + IN_USE)
    assert "4 tasks were started per node" in asked.root_causes[0].detail


@pytest.mark.parametrize(
    "text",
    [
        LAUNCH + IN_USE + "srun: error: quilt07: task 1: Exited with exit code 1\n",
        IN_USE + "srun: error: quilt07: tasks 1-3: Exited with exit code 1\n",
        LAUNCH.replace("=4", "=1") + IN_USE + "srun: error: quilt07: tasks 1-3: Exited with exit code 1\n",
    ],
)
def test_a_busy_port_is_not_always_that(verdict, text):
    assert verdict(text).root_causes[0].title == "The port is already in use"


KILLED = (
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    "Memory on the node (IP: 10.9.0.7, ID: 4748aa6d1bc1) where the task (actor ID: 9e43, name=Fold.__init__, pid=71, "
    "memory used=90.00GB) was running was 190.00GB / 200.00GB (0.95), which exceeds the memory usage threshold of "
    "0.94.\n"
    "PID\tMEM(GB)\tCOMMAND\n"
)


def test_the_table_of_processes_is_summed_by_what_they_are(verdict):
    rows = (
        "".join(f"7{n}\t45.00\tray::FoldWorker.update_actor\n" for n in range(3))
        + "61\t2.50\tpython3 -m fold.main a=1\n"
    )
    cause = verdict(KILLED + rows).root_causes[0]
    assert cause.id == "ray-host-oom-killed"
    assert "3 processes FoldWorker hold 135.0 GB of the 200.0 GB of the node (68%)" in cause.detail
    assert "in update_actor" in cause.detail
    assert "fold.main 2.5 GB" in cause.detail
    assert "optimizer" in cause.fix[0]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("71\t90.00\tray::RewardWorker.score\n", "bound how many run"),
        ("71\t90.00\tVLLM::EngineCore\n72\t60.00\tVLLM::EngineCore\n", "sleeping engine"),
        ("71\t60.00\tpt_data_worker\n72\t60.00\tpt_data_worker\n", "num_workers"),
        ("71\t10.00\tray::FoldWorker.step\n", "/dev/shm"),
    ],
)
def test_the_step_follows_from_who_holds_the_memory(verdict, rows, words):
    assert words in verdict(KILLED + rows).root_causes[0].fix[0]
