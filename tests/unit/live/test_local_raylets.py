"""Which Ray cluster of a machine `--ray auto` means, and which nodes are this machine."""

import os
import subprocess
import sys

from rldbg.live.unarmed.local_raylets import Raylet, chosen_cluster, local_raylets, recorded_cluster

MINE = Raylet(10, "127.0.0.1:6379", "a", "/tmp/ray/session_1", started=100)
NEWER = Raylet(11, "127.0.0.1:7000", "b", "/tmp/two/session_2", started=200)
ALIEN = Raylet(12, "10.0.0.9:6379", "c", "/tmp/three/session_3", started=300, is_own=False)


def test_nothing_is_chosen_where_one_cluster_runs():
    assert chosen_cluster([]).address == chosen_cluster([MINE, MINE]).note == ""


def test_the_newest_of_this_user_is_chosen_and_the_others_are_named():
    choice = chosen_cluster([ALIEN, NEWER, MINE])
    assert choice.address == NEWER.cluster
    assert choice.note == (
        "3 Ray clusters run on this machine; this is 127.0.0.1:7000 (/tmp/two/session_2), the newest; for another: "
        "--ray 10.0.0.9:6379 (/tmp/three/session_3), --ray 127.0.0.1:6379 (/tmp/ray/session_1)"
    )


def test_the_one_that_ray_start_has_recorded_comes_first_if_it_runs(tmp_path):
    assert recorded_cluster({"RAY_TMPDIR": str(tmp_path)}) == ""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:6379\n")
    recorded = recorded_cluster({"RAY_TMPDIR": str(tmp_path)})
    assert chosen_cluster([NEWER, MINE], recorded).address == MINE.cluster
    assert "127.0.0.1:6379 (/tmp/ray/session_1), started by `ray start`" in chosen_cluster([NEWER, MINE], recorded).note
    assert chosen_cluster([NEWER, ALIEN], recorded).address == NEWER.cluster


def test_raylets_are_known_by_their_command_lines(tmp_path):
    raylet = tmp_path / "ray" / "raylet" / "raylet"
    raylet.parent.mkdir(parents=True)
    raylet.symlink_to(sys.executable)
    waits = "print('up', flush=True); input()"
    options = ["--gcs-address=127.0.0.1:1", "--node_id=n1", "--session_dir=/s"]
    command = [str(raylet), "-c", waits, *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        found = [each for each in local_raylets() if each.pid == process.pid]
        process.communicate("\n")
    assert [(each.cluster, each.node_id, each.session) for each in found] == [("127.0.0.1:1", "n1", "/s")]
    assert found[0].is_own and found[0].is_reachable and found[0].started > 0
    assert os.getpid() not in [each.pid for each in local_raylets()]
