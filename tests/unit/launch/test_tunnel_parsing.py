"""What Slurm, logs and /proc say, read without any of them."""

import pytest

from rldbg.core import PrerequisiteError, UnreachableError, UsageError
from rldbg.launch.tunnel.forwarding import PortForward, free_port, ssh_command
from rldbg.launch.tunnel.head import hints_in, listening, target_of
from rldbg.launch.tunnel.kubernetes import RayCluster
from rldbg.launch.tunnel.remote import Host, last_words
from rldbg.launch.tunnel.slurm import Slurm, parse_facts, parse_jobs


def line(*parts: str) -> str:
    return "\x1f".join(parts)


def test_jobs_of_every_kind():
    text = "\n".join(
        [
            line(
                "2504248",
                "RUNNING",
                "node-12,node-[22,30],node-49",
                "node-12",
                "ray cluster, long",
                "node-12,node-[22,30]",
            ),
            line("7_[1-3%1]", "PENDING", "", "n/a", "array", "(Nodes required for job are DOWN, DRAINED or reserved)"),
            line("9", "NODE_FAIL", "gpu[001-002]", "gpu001", "gone", "(NodeDown)"),
        ]
    )

    running, pending, failed = parse_jobs(text)

    assert running.nodes == ("node-12", "node-22", "node-30", "node-49")
    assert running.is_running
    assert (pending.id, pending.nodes, pending.is_running) == ("7_[1-3%1]", (), False)
    assert pending.reason.startswith("Nodes required for job are DOWN, DRAINED")
    assert not failed.is_running
    assert parse_jobs("\n") == []


def test_what_is_not_squeue_s_answer_is_named():
    with pytest.raises(UnreachableError, match="unexpected"):
        parse_jobs("JOBID PARTITION NAME")


def test_facts_with_spaces_in_their_values():
    facts = parse_facts(
        "JobId=1 JobName=a b=c Reason=None WorkDir=/home/me/my work StdOut=/home/me/slurm-1.out Power= "
    )

    assert facts["WorkDir"] == "/home/me/my work"
    assert facts["StdOut"] == "/home/me/slurm-1.out"
    assert parse_facts("") == {}


def test_listening_sockets():
    text = (
        "  sl  local_address rem_address   st tx_queue\n"
        "   0: 0A7B2D0A:2049 00000000:0000 0A 00000000:00000000\n"
        "   1: 0100007F:204A 00000000:0000 0A 00000000:00000000\n"
        "   2: 0100007F:204B 0100007F:9C40 01 00000000:00000000\n"
        "   3: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0:0\n"
        "   4: 0000000000000000FFFF00000A7B2D0A:1F90 00000000000000000000000000000000:0000 0A 0:0\n"
    )

    found = listening(text)

    assert found == {8265: ["10.45.123.10"], 8266: ["127.0.0.1"], 22: ["::"], 8080: ["10.45.123.10"]}
    assert target_of(found[8265]) == "10.45.123.10"
    assert target_of(found[8266]) == target_of(found[22]) == "localhost"


@pytest.mark.parametrize(
    ("log", "addresses", "port"),
    [
        (
            "+ ray start --head --node-ip-address=10.0.0.7 --dashboard-host=10.0.0.7 --dashboard-port=8270",
            ["10.0.0.7"],
            8270,
        ),
        ("Local node IP: 10.1.2.3\nview the dashboard at \n  \x1b[1m10.1.2.3:8265\x1b[22m", ["10.1.2.3"], 8265),
        ("View the dashboard at http://10.9.8.7:8300", ["10.9.8.7"], 8300),
        ("--dashboard-host=127.0.0.1 and 0.0.0.0", [], 0),
        ("nothing here", [], 0),
    ],
)
def test_hints_in_logs(log, addresses, port):
    assert hints_in(log) == (addresses, port)


def test_ssh_command():
    forwards = [PortForward(52640, "10.0.0.7", 8265), PortForward(52641, "fd00::1", 4000)]

    words = ssh_command(["ssh", "-F", "x"], "node-10", forwards, "login")

    assert words[:4] == ["ssh", "-F", "x", "-N"]
    assert words[-7:] == [
        "-J",
        "login",
        "-L",
        "127.0.0.1:52640:10.0.0.7:8265",
        "-L",
        "127.0.0.1:52641:[fd00::1]:4000",
        "node-10",
    ]


def test_hosts_behind_hosts():
    laptop = Host(("ssh",), "login", "gate")

    assert laptop.through("node-1").jump == "gate,login"
    assert Host().through("node-1").jump == ""
    assert Host().words(["squeue", "a b"]) == ["squeue", "a b"]
    assert laptop.words(["squeue", "a b"])[-1] == "squeue 'a b'"


def test_harmless_remarks_of_ssh_are_no_errors():
    text = (
        "Warning: Permanently added 'node-12' (ED25519) to the list of known hosts.\nbind [::1]:52640: Cannot assign\n"
    )

    assert last_words(text) == ""
    assert last_words(text + "Permission denied (publickey).\n") == "Permission denied (publickey)."


def test_a_taken_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert free_port(port, is_wish=True) != port
        with pytest.raises(UsageError, match="already in use"):
            free_port(port, is_wish=False)


def test_no_slurm_and_no_kubectl(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PrerequisiteError, match="Slurm is not installed"):
        Slurm(Host()).jobs()
    with pytest.raises(PrerequisiteError, match="kubectl"):
        RayCluster("a", "b").head_pod()


@pytest.mark.parametrize("text", ["", "name", "/x", "x/", "a/b/c"])
def test_names_of_ray_clusters(text):
    with pytest.raises(UsageError):
        RayCluster.parse(text)
