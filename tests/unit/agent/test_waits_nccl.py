"""NCCL's RAS service over a real socket: what tells of trouble is kept, silence is no error."""

import socket
import threading

from rldbg.agent.waits.nccl import nccl_notes, ras_lines

STATUS = b"""NCCL version 2.27.5

Job summary
===========
  Nodes  Processes         GPUs
      2         16           16

Warnings
========
#0-0 (5f4c) MISMATCH
  Communicator ranks have different status
  8 ranks have launched AllReduce operation 164; 8 ranks have launched 163
"""


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


def test_lines_that_tell_of_trouble_are_kept():
    address, asked, thread = _served(STATUS)
    launched = "8 ranks have launched AllReduce operation 164; 8 ranks have launched 163"
    assert ras_lines(address) == ["Warnings", "#0-0 (5f4c) MISMATCH", launched]
    thread.join()
    assert asked == [b"verbose status\n"]


def test_silence_and_processes_without_nccl_say_nothing():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    assert ras_lines(address) == [] and ras_lines("nonsense") == [] and nccl_notes([1]) == []
