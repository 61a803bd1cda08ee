"""Who gets through an editor port: no other user, by whatever timing, and no silent connection holds up the editor."""

import json
import os
import socket
import subprocess
import sys

import pytest
from live_job import PATIENCE_S, LiveJob, until

from rldbg.agent import Decoder, encode

NOBODY = 65534
WAITS = """
breakpoint()
print("DONE", flush=True)
"""
# Sends a whole session at once, and is gone before anyone can look who it was.
ATTACK = """
import json, os, socket, struct, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
data = sys.stdin.buffer.read()
os.setuid(int(sys.argv[3]))
for number in range(count):
    with socket.socket() as sock:
        if number % 8 == 7:
            sock.bind((f"127.0.0.{number % 200 + 2}", 0))
        try:
            sock.connect(("127.0.0.1", port))
            sock.sendall(data)
            if number > count // 2 and number % 4 == 1:
                sock.shutdown(socket.SHUT_WR)
            if number > count // 2 and number % 4 == 2:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
"""


@pytest.fixture
def job(tmp_path):
    with LiveJob(tmp_path) as job:
        job.start(job.write("train.py", WAITS))
        job.wait_stopped()
        yield job


def _open_port(job):
    process = subprocess.Popen(
        [sys.executable, "-m", "rldbg", "attach", "train", "--ide", "--json", "--run", str(job.run.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    job.processes.append(process)
    return process, json.loads(process.stdout.readline())["port"]


def _request(seq, command, **arguments):
    return {"seq": seq, "type": "request", "command": command, "arguments": arguments}


def _session(expression, frames=range(40)):
    opening = [_request(1, "initialize"), _request(2, "attach"), _request(3, "configurationDone")]
    looking = [_request(4, "threads"), _request(5, "stackTrace", threadId=1)]
    frame_bound = [_request(6 + n, "evaluate", expression=expression, frameId=n, context="repl") for n in frames]
    anywhere = _request(90, "evaluate", expression=expression, context="repl")
    return b"".join(map(encode, [*opening, *looking, *frame_bound, anywhere]))


def _answer(sock, decoder, wanted):
    sock.settimeout(PATIENCE_S)
    while data := sock.recv(65536):
        for message in decoder.feed(data):
            if message.get("request_seq") == wanted:
                return message
    return None


def _evaluated(port, expression):
    """As the first editor that is served: the answer to one evaluation."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(_session(expression, ()))
        return _answer(sock, Decoder(), 90)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, which root alone can")
def test_another_user_who_leaves_before_the_look_runs_nothing(job, tmp_path):
    process, port = _open_port(job)
    marker = tmp_path / "evaluated"
    expression = f"open({str(marker)!r}, 'a').write('x')"
    attack = [sys.executable, "-S", "-c", ATTACK, str(port), "300", str(NOBODY)]
    subprocess.run(attack, input=_session(expression), check=True, timeout=90)
    # The port takes connections in their order: this one is served after all of those.
    assert _evaluated(port, "41 + 1")["body"]["result"] == "42"
    assert not marker.exists()
    process.terminate()
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert said.count("editor attached") == 1 and said.count("refused: ") <= 2, said


def test_a_session_of_our_own_that_left_at_once_runs_nothing(job, tmp_path):
    _, port = _open_port(job)
    marker = tmp_path / "evaluated"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(_session(f"open({str(marker)!r}, 'a').write('x')"))
            sock.shutdown(socket.SHUT_WR)
    assert _evaluated(port, "41 + 1")["body"]["result"] == "42"
    assert not marker.exists()


def test_a_silent_connection_does_not_hold_up_the_editor(job):
    process, port = _open_port(job)
    with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)) as second:
        assert _evaluated(port, "40 + 1")["body"]["result"] == "41"
        # One that is attached and says nothing more: whoever comes next is told about, and served afterwards.
        second.sendall(encode(_request(1, "initialize")))
        assert _answer(second, Decoder(), 1)["success"]
        with socket.create_connection(("127.0.0.1", port)) as third:
            third.sendall(_session("40 + 3", ()))
            until(lambda: "another connection waits" in process.stderr.readline(), "what the port says")
            second.close()
            assert _answer(third, Decoder(), 90)["body"]["result"] == "43"


def test_a_web_page_cannot_speak_to_the_port(job, tmp_path):
    """A browser of the same user sends requests to any local port; their headers are no frame's."""
    _, port = _open_port(job)
    marker = tmp_path / "evaluated"
    body = json.dumps(_request(1, "evaluate", expression=f"open({str(marker)!r}, 'w')", context="repl")).encode()
    with socket.create_connection(("127.0.0.1", port)) as page:
        page.sendall(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        page.settimeout(PATIENCE_S)
        assert not page.recv(65536).startswith(b"HTTP")
    assert _evaluated(port, "40 + 1")["body"]["result"] == "41"
    assert not marker.exists()
