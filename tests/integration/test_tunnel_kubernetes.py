"""`rldbg tunnel --k8s` with a stand-in kubectl that answers and forwards as the real one does."""

import http.client
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import command_line
import pytest

KUBECTL = """\
import json, os, socket, sys, threading
words = sys.argv[1:]
assert words[:2] == ["-n", "training"], words
words = words[2:]
if words[:2] == ["get", "pods"]:
    if "ray.io/cluster=ray-math,ray.io/node-type=head" not in words:
        print(json.dumps({"items": []})); sys.exit()
    phase = open(os.environ["PHASE"]).read().strip()
    print(json.dumps({"items": [{"metadata": {"name": "ray-math-head-x"}, "status": {"phase": phase}}]})); sys.exit()
assert words[0] == "port-forward" and "pod/ray-math-head-x" in words, words
local, far = words[-1].split(":")
assert far == "8265"
server = socket.create_server(("127.0.0.1", int(local)))
print(f"Forwarding from 127.0.0.1:{local} -> {far}", flush=True)
def pump(a, b):
    while data := a.recv(65536): b.sendall(data)
    b.shutdown(socket.SHUT_WR)
while True:
    here, _ = server.accept()
    print("Handling connection for", local, flush=True)
    there = socket.create_connection(("127.0.0.1", int(os.environ["FAR"])))
    for pair in ((here, there), (there, here)): threading.Thread(target=pump, args=pair, daemon=True).start()
"""


class Dashboard(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"ray_version": "2.60.0"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def far():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def environment(tmp_path: Path, far: int):
    (tmp_path / "kubectl.py").write_text(KUBECTL)
    program = tmp_path / "kubectl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/kubectl.py "$@"\n')
    program.chmod(0o755)
    (tmp_path / "phase").write_text("Running")
    return dict(os.environ) | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PHASE": str(tmp_path / "phase"),
        "FAR": str(far),
    }


def rldbg(environment, *words):
    return command_line.rldbg(Path(), "tunnel", *words, env=environment)


def test_forwards_and_ends_with_the_cluster(environment, tmp_path):
    with subprocess.Popen(
        [*command_line.RLDBG, "tunnel", "--json", "--k8s", "training/ray-math"],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        told = json.loads(process.stdout.readline())
        with closing(http.client.HTTPConnection(told["url"].removeprefix("http://"), timeout=60)) as connection:
            connection.request("GET", "/api/version")
            assert json.loads(connection.getresponse().read())["ray_version"] == "2.60.0"
        assert told["goal"] == "RayCluster training/ray-math"
        (tmp_path / "phase").write_text("Succeeded")
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout
        for child in children.split():
            os.kill(int(child), signal.SIGKILL)
        assert process.wait(timeout=120) == 0
        assert "closed" in process.stderr.read()


def test_what_cannot_be_reached_is_named(environment, tmp_path):
    missing = rldbg(environment, "--k8s", "training/other")
    assert missing.returncode == 5
    assert "no head pod" in missing.stderr
    (tmp_path / "phase").write_text("Pending")
    pending = rldbg(environment, "--k8s", "training/ray-math")
    assert pending.returncode == 5
    assert "Pending" in pending.stderr
    assert rldbg(environment, "--k8s", "training/ray-math", "--login", "x").returncode == 2
