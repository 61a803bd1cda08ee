"""NCCL's RAS service over a real socket: what tells of trouble is kept, silence is no error."""

import socket
import threading

from rldbg.agent.waits.reading.nccl import lasting, nccl_notes, nccl_troubles, ras_troubles, trouble_text

HEALTHY = b"""NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING      OK

Errors
======

Warnings
========

"""
HUNG = HEALTHY.replace(
    b"Errors\n======\n\n",
    b"""Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 4711 on node 10.0.0.2 managing GPU 3

#0-0 (4f1c9d0a3b2e7788) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 7 -- GPU 3 managed by process 4711 on node 10.0.0.2

""",
).replace(
    b"Warnings\n========\n\n",
    b"""Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (4f1c9d0a3b2e7788) MISMATCH
  Communicator ranks have different AllReduce operation counts
  6 ranks have launched up to operation 164
  Rank 5 has launched up to operation 163 -- GPU 1 managed by process 4700 on node 10.0.0.2

""",
)


def _served(answer):
    server = socket.create_server(("127.0.0.1", 0))
    asked = []

    def serve():
        with server, server.accept()[0] as client:
            asked.append(client.recv(100))
            client.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return f"127.0.0.1:{server.getsockname()[1]}", asked, thread


def test_each_trouble_is_told_with_its_ranks():
    address, asked, thread = _served(HUNG)
    assert list(map(trouble_text, ras_troubles(address))) == [
        "DEAD: 1 job process is considered dead (unreachable via the RAS network); "
        "Process 4711 on node 10.0.0.2 managing GPU 3",
        "INCOMPLETE of communicator #0-0: Missing communicator data from 1 rank; "
        "Rank 7 -- GPU 3 managed by process 4711 on node 10.0.0.2",
        "TIMEOUT: Encountered 2 communication timeouts while gathering communicator data",
        "MISMATCH of communicator #0-0: Communicator ranks have different AllReduce operation counts; "
        "6 ranks have launched up to operation 164; "
        "Rank 5 has launched up to operation 163 -- GPU 1 managed by process 4700 on node 10.0.0.2",
    ]
    thread.join()
    assert asked == [b"verbose status\n"]


def test_a_healthy_job_has_no_troubles():
    address, _, thread = _served(HEALTHY)
    assert ras_troubles(address) == []
    thread.join()


def test_an_answer_that_does_not_end_is_told_as_far_as_it_came(monkeypatch):
    monkeypatch.setattr("rldbg.agent.waits.reading.nccl._ANSWER_S", 0.2)
    server = socket.create_server(("127.0.0.1", 0))
    held = []

    def serve():
        client = server.accept()[0]
        held.append(client)
        client.sendall(HUNG)

    thread = threading.Thread(target=serve)
    thread.start()
    found = ras_troubles(f"127.0.0.1:{server.getsockname()[1]}")
    thread.join()
    held[0].close()
    server.close()
    assert len(found) <= 5 and trouble_text(found[-1]) == "TIMEOUT: no complete answer within 0.2 s"


def test_silence_and_processes_without_nccl_say_nothing():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    assert ras_troubles(address) == [] and ras_troubles("nonsense") == []
    assert nccl_troubles([1]) == [] and nccl_notes([1], []) == []


def test_ranks_are_read_with_what_they_have_launched():
    address, _, thread = _served(HUNG)
    dead, incomplete, timeout, mismatch = ras_troubles(address)
    thread.join()
    assert dead["ranks"] == timeout["ranks"] == [] and incomplete["id"] == mismatch["id"] == "4f1c9d0a3b2e7788"
    assert [(each["rank"], each["pid"], each["here"]) for each in incomplete["ranks"]] == [(7, 4711, False)]
    (behind,) = mismatch["ranks"]
    assert (behind["rank"], behind["operation"], behind["launched"]) == (5, "AllReduce", 163)
    assert mismatch["most"] == {"AllReduce": 164}


def test_counts_that_change_are_no_trouble():
    address, _, thread = _served(HUNG)
    before = ras_troubles(address)
    thread.join()
    address, _, thread = _served(HUNG.replace(b"164", b"165").replace(b"163", b"164"))
    after = ras_troubles(address)
    thread.join()
    assert [each["what"] for each in lasting(before, after)] == ["DEAD", "INCOMPLETE", "TIMEOUT"]
    assert lasting(before, before) == before
