"""Nobody without the token gets anywhere, nothing listens where it should not, and garbage is survived."""

import json
import os
import random
import socket
import stat
import struct
import subprocess
import sys

import psutil
import pytest
from live_job import LOOP, PATIENCE_S, LiveJob, assert_not_in_processes, looping_job, until

from rldbg.agent import PROTOCOL, BrokerAddress, Decoder, WireError, dial, encode, nonce
from rldbg.core import Run
from rldbg.live import start_broker, stop_broker


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with looping_job(tmp_path_factory.mktemp("security")) as job:
        yield job


def _address(job):
    return BrokerAddress.read(job.run.path)


def test_the_run_folder_and_the_token_file_are_private(job):
    assert stat.S_IMODE(job.run.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((job.run.path / "broker.json").stat().st_mode) == 0o600
    for path in job.run.path.rglob("*"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


@pytest.mark.parametrize("kind", ["agent", "client", "debug", "editor", "nonsense"])
@pytest.mark.parametrize("token", ["", "wrong", "x" * 100_000])
def test_a_wrong_token_is_refused(job, kind, token):
    address = _address(job)
    with pytest.raises(WireError):
        dial((address.host, address.port), kind=kind, token=token, about={"pid": os.getpid()}, timeout_s=10)
    assert [p["who"] for p in job.ps()] == ["loop"]


def test_the_proof_of_another_connection_is_worthless(job):
    """What an eavesdropper saw on one connection does not open a second."""
    address = _address(job)
    with socket.create_connection((address.host, address.port), timeout=PATIENCE_S) as sock:
        sock.sendall(encode({"type": "hello", "protocol": PROTOCOL, "kind": "client", "nonce": nonce()}))
        decoder = Decoder()
        (challenge,) = decoder.feed(sock.recv(65536))
        sock.sendall(encode({"type": "proof", "proof": challenge["proof"], "about": {}}))
        (answer,) = decoder.feed(sock.recv(65536))
        assert answer == {"type": "refused", "reason": "wrong token"}


def test_another_protocol_is_a_message_not_a_hang(job):
    address = _address(job)
    with socket.create_connection((address.host, address.port), timeout=PATIENCE_S) as sock:
        sock.sendall(encode({"type": "hello", "protocol": 99, "kind": "agent", "nonce": nonce()}))
        (answer,) = Decoder().feed(sock.recv(65536))
    assert answer["type"] == "refused" and "protocol 99" in answer["reason"] and str(PROTOCOL) in answer["reason"]


def _garbage(rng):
    message = rng.choice(
        [
            {"type": "hello", "protocol": PROTOCOL, "kind": "agent", "nonce": 17},
            {"type": "hello", "protocol": [PROTOCOL], "kind": {}, "nonce": nonce()},
            {"type": "proof", "proof": "0" * 64, "about": {"pid": "x"}},
            {"type": "request", "id": 1, "op": "ps", "body": {}},
            {"type": "request", "command": "evaluate", "arguments": {"expression": "1/0"}},
        ]
    )
    return rng.choice(
        [
            rng.randbytes(rng.randint(1, 300)),
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"Content-Length: 999999999\r\n\r\n",
            b"Content-Length: 5\r\n\r\n",
            b"\x16\x03\x01" + rng.randbytes(50),
            struct.pack(">I", 2**31) + b"x" * 64,
            encode(message),
            encode(message)[: rng.randint(1, 30)],
            encode(message) * 3,
        ]
    )


@pytest.mark.parametrize("count", [pytest.param(400), pytest.param(10_000, marks=pytest.mark.soak)])
def test_malformed_frames_are_survived(job, count):
    address, rng = _address(job), random.Random(count)
    broker = psutil.Process(job.broker_pid())
    before = len(broker.net_connections())
    for _ in range(count):
        with socket.create_connection((address.host, address.port), timeout=PATIENCE_S) as sock:
            sock.sendall(_garbage(rng))
            if rng.random() < 0.3:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert [p["who"] for p in job.ps()] == ["loop"]
    until(lambda: len(broker.net_connections()) <= before, "every bad connection to be closed")


@pytest.mark.parametrize("count", [pytest.param(300), pytest.param(10_000, marks=pytest.mark.soak)])
def test_malformed_messages_of_a_known_peer_are_survived(job, count):
    """Whoever has the token may still be broken: nothing it says ends the broker or another's session."""
    address, rng = _address(job), random.Random(count)
    values = [None, 0, -1, 2**70, "x", "", [], {}, {"a": {}}, True, 1.5, "all", "@1"]
    ops = [
        "ps",
        "select",
        "attach",
        "detach",
        "dap",
        "resume",
        "pause",
        "continue",
        "break_set",
        "break_clear",
        "stacks",
    ]
    keys = ["who", "how", "command", "arguments", "file", "line", "ids", "wait_s", "ranks", "on_exception", "timeout_s"]
    for number in range(count):
        if number % 50 == 0:
            peer = dial(
                (address.host, address.port), kind=rng.choice(["client", "agent"]), token=address.token, about={}
            )
        body = {rng.choice(keys): rng.choice(values) for _ in range(rng.randint(0, 4))} | {"wait_s": 0.01}
        if "who" in body and body["who"] in ("all", ""):
            body["who"] = "nobody"
        peer.send(
            {
                rng.choice(["type", "kind"]): rng.choice(["request", "response", "event", 5, None]),
                "id": rng.choice(values),
                "op": rng.choice([*ops, "nonsense", 3]),
                "event": rng.choice(["identity", "crash", "debug_closed", "bye", 7]),
                "body": rng.choice([body, *values]),
                "ok": rng.choice(values),
            }
        )
        if number % 50 == 49:
            peer.close()
    job.client.request("break_clear")
    assert any(p["who"] == "loop" and p["state"] == "running" for p in job.ps())


def _listening(pid):
    return {c.laddr for c in psutil.Process(pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN}


def test_nothing_listens_but_the_broker_and_only_on_loopback(job):
    loop = next(p for p in job.ps() if p["who"] == "loop")
    (paused,) = job.client.request("pause", who="loop")["processes"]
    assert paused["state"] == "stopped", paused
    broker = _listening(job.broker_pid())
    assert {address.ip for address in broker} == {"127.0.0.1"} and len(broker) == 1
    # A debugged process has no port at all, and no debug adapter stands beside it.
    assert _listening(loop["pid"]) == set()
    assert not psutil.Process(loop["pid"]).children(recursive=True)
    job.client.request("continue", who="loop")


def test_a_network_address_is_opened_only_when_asked_for(tmp_path):
    run = Run.create(name="open", path=tmp_path / "run")
    start_broker(run, host="0.0.0.0", owner_pid=os.getpid())
    pid = json.loads((run.path / "broker.json").read_text())["pid"]
    assert {address.ip for address in _listening(pid)} == {"0.0.0.0"}
    stop_broker(run.path)


def test_the_token_is_in_no_log_and_no_process_list(job):
    job.rldbg("ps")
    token = _address(job).token
    assert_not_in_processes(token)
    for path in job.run.path.rglob("*"):
        if path.is_file() and path.name != "broker.json":
            assert token.encode() not in path.read_bytes(), path


def test_an_agent_takes_no_orders_from_whoever_took_the_brokers_port(tmp_path):
    """A stranger who listens where the broker was learns nothing and cannot make the process do anything."""
    with LiveJob(tmp_path) as job:
        process = job.start(job.write("loop.py", LOOP))
        until(lambda: any(p["who"] == "loop" for p in job.ps()), "the agent")
        address = _address(job)
        job.kill_broker()
        until(lambda: not psutil.pid_exists(job.broker_pid()) or _is_free(address.port), "the port")
        with socket.create_server((address.host, address.port)) as stranger:
            stranger.settimeout(20)
            connection, _ = stranger.accept()
            with connection:
                connection.settimeout(10)
                (hello,) = Decoder().feed(connection.recv(65536))
                connection.sendall(
                    encode({"type": "challenge", "protocol": PROTOCOL, "nonce": nonce(), "proof": "f" * 64})
                    + encode({"type": "request", "id": 1, "op": "debug", "body": {}})
                )
                rest = connection.recv(65536)
        assert set(hello) == {"type", "protocol", "kind", "nonce"} and rest == b""
        assert process.poll() is None
        job.write("stop", "")
        process.wait(30)


def _is_free(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


def test_a_refused_client_says_what_to_do(job, tmp_path):
    copy = tmp_path / "run"
    copy.mkdir(mode=0o700)
    facts = json.loads((job.run.path / "broker.json").read_text()) | {"token": "of another run"}
    (copy / "broker.json").write_text(json.dumps(facts))
    done = subprocess.run(
        [sys.executable, "-m", "rldbg", "ps", "--run", str(copy), "--json"], capture_output=True, text=True, check=False
    )
    error = json.loads(done.stdout)["error"]
    assert done.returncode in (3, 5) and error["hint"] and "token" in error["message"]
