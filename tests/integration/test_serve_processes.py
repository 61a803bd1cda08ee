"""`rldbg serve` as a user types it: servers outlive their shell, `ls` tells the truth, `down` leaves nothing."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from serve_shell import RLDBG, ServeShell


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    shell = ServeShell(tmp_path_factory.mktemp("home"))
    yield shell
    shell.run("down", "--all")


def post(address, path, body, timeout=60, headers=None):
    request = urllib.request.Request(
        f"http://{address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"} | (headers or {})
    )
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.loads(response.read() or "null")


def runs(pid):
    """One that has ended and waits for its parent to notice does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


QUESTION = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}}


def test_servers_outlive_the_whole_process_group_of_their_shell(shell, tmp_path):
    """The life of a server with two replicas, in one test: starting one takes seconds."""
    out = tmp_path / "out"
    script = f'"{RLDBG}" serve up --model tiny --replicas 2 --name pair > "{out}" 2>&1; touch "{out}.done"; sleep 600'
    terminal = subprocess.Popen(["bash", "-c", script], env=shell.environment, start_new_session=True)
    try:
        wait_until(Path(f"{out}.done").exists, 150)
    finally:
        os.killpg(terminal.pid, signal.SIGKILL)
        terminal.wait()
    line = out.read_text().splitlines()[0]
    assert line.startswith("LLM inference server launched at: AREAL_LLM_SERVER_ADDRS=127.0.0.1:")
    first, second = line.partition("ADDRS=")[2].split(",")
    (server,) = shell.ask("ls")["servers"]
    assert server["state"] == "running" and server["addresses"] == [first, second]
    assert post(first, "/generate", QUESTION)["output_ids"] == post(second, "/generate", QUESTION)["output_ids"]
    workers = json.loads(urllib.request.urlopen(f"http://{second}/workers", timeout=10).read())["workers"]
    assert [item["url"] for item in workers] == [f"http://{first}", f"http://{second}"]

    # A replica is killed while it answers: its client hears of it at once, the other replica goes on.
    victim = server["processes"][0]["pid"]
    long = QUESTION | {"sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
    failures = []

    def client():
        try:
            post(first, "/generate", long)
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=client)
    thread.start()
    info = f"http://{first}/get_server_info"
    wait_until(lambda: json.loads(urllib.request.urlopen(info, timeout=10).read())["internal_states"][0]["running"])
    os.kill(victim, signal.SIGKILL)
    thread.join(10)
    assert failures and not thread.is_alive()
    listed = shell.ask("ls", code=1)["servers"][0]
    assert [process["state"] for process in listed["processes"]] == ["crashed", "running"]
    assert listed["state"] == "crashed"
    told = shell.run("ls", code=1)
    assert f"pair (pid {victim}) crashed" in told.stderr and "rldbg serve restart pair" in told.stderr
    assert post(second, "/generate", QUESTION)["output_ids"]

    again = shell.ask("restart", "pair")["server"]
    assert again["addresses"] == [first, second] and again["state"] == "running"
    assert post(first, "/generate", QUESTION)["output_ids"]

    # A replica that hangs is not called healthy.
    stopped = again["processes"][1]["pid"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        states = [process["state"] for process in shell.ask("ls", code=1)["servers"][0]["processes"]]
        assert states == ["running", "not answering"]
    finally:
        os.kill(stopped, signal.SIGCONT)
    pids = [process["pid"] for process in again["processes"]]
    shell.run("down", "pair")
    assert not any(runs(pid) for pid in pids)
    assert shell.ask("ls") == {"schema_version": 1, "servers": []}


FAKE_ENGINE = textwrap.dedent(
    """
    import http.server, json, os, subprocess, sys, time
    value = lambda name: sys.argv[sys.argv.index(name) + 1]
    print("flags", json.dumps(sys.argv[1:]), "devices", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
    subprocess.Popen(["sleep", "600"])  # engines have workers
    if os.environ.get("FAKE_ENGINE") == "dies":
        print("torch.OutOfMemoryError: CUDA out of memory", flush=True); sys.exit(1)
    started = time.monotonic()
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            ready = time.monotonic() - started > 1.5
            self.send_response(200 if ready else 503); self.send_header("Content-Length", "0"); self.end_headers()
        def log_message(self, *parts):
            pass
    http.server.HTTPServer((value("--host"), int(value("--port"))), Handler).serve_forever()
    """
)


@pytest.fixture
def engines(tmp_path):
    """Packages of the engines' names whose servers answer 503 until they are warm: the real ones need a GPU."""
    for package, module in (("sglang", "launch_server"), ("vllm/entrypoints/openai", "api_server")):
        folder = tmp_path / "engines" / package
        folder.mkdir(parents=True)
        (folder / f"{module}.py").write_text(FAKE_ENGINE)
    for folder in ("sglang", "vllm", "vllm/entrypoints", "vllm/entrypoints/openai"):
        (tmp_path / "engines" / folder / "__init__.py").touch()
    return {"PYTHONPATH": str(tmp_path / "engines"), "CUDA_VISIBLE_DEVICES": "4,5,6,7"}


def test_a_real_engine_is_started_with_its_devices_and_waited_for(engines, tmp_path):
    shell = ServeShell(tmp_path / "home", **engines)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    server = shell.ask("up", "--model", model, "--allocation-mode", "sglang.d2p1t2", "--name", "e")["server"]
    assert server["backend"] == "sglang" and server["state"] == "running" and len(server["addresses"]) == 2
    logs = shell.ask("logs", "e")["logs"]
    assert [line[0].rpartition(" ")[2] for line in logs] == ["4,5", "6,7"]
    assert '"--tp-size", "2"' in logs[0][0] and f'"--model-path", "{model}"' in logs[0][0]
    families = [child.pid for item in server["processes"] for child in psutil.Process(item["pid"]).children()]
    os.kill(server["processes"][0]["pid"], signal.SIGKILL)
    shell.run("down", "e")
    assert families and not any(runs(pid) for pid in families), "workers of a dead engine end too"
    shell.run("up", "--backend", "vllm", "--model", model, "--replicas", "5", code=3)
    assert shell.ask("ls")["servers"] == []


def test_an_engine_that_dies_is_told_with_its_words_and_nothing_is_left(engines, tmp_path):
    shell = ServeShell(tmp_path / "home", **engines, FAKE_ENGINE="dies")
    failed = shell.run("up", "--backend", "vllm", "--model", "some/model", code=3)
    assert "CUDA out of memory" in failed.stderr
    assert shell.ask("ls")["servers"] == []


def test_what_cannot_be_started_is_an_error_with_a_way_out(shell, tmp_path):
    for arguments, words in (
        (("--replicas", "2", "--allocation-mode", "sglang.d4p1t1"), "and d4 of the allocation mode disagree"),
        (("--host", "0.0.0.0"), "needs a token"),
        (("--model", tmp_path), "config.json is missing"),
        (("--backend", "proxy"), "--upstream http://HOST:PORT"),
        (("--backend", "recording"), "--backend recording RUN"),
        (("some-run",), "no such file"),
    ):
        failed = shell.run("up", *arguments, code=4 if words == "no such file" else 2)
        assert words in failed.stderr and "try:" in failed.stderr


def test_another_address_needs_the_token_and_a_taken_port_is_told(shell):
    address = shell.ask("up", "--host", "0.0.0.0", "--token", "s3cret", "--name", "open")["server"]["addresses"][0]
    port = address.rpartition(":")[2]
    local = f"127.0.0.1:{port}"
    assert urllib.request.urlopen(f"http://{local}/health", timeout=10).status == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-API-Key": ""}):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            post(local, "/generate", QUESTION, headers=headers)
    assert post(local, "/generate", QUESTION, headers={"Authorization": "Bearer s3cret"})["output_ids"]
    process = shell.ask("ls")["servers"][0]["processes"][0]
    assert "s3cret" not in " ".join(psutil.Process(process["pid"]).cmdline()), "a command line is seen by everybody"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        failed = shell.run("up", "--port", taken.getsockname()[1], "--name", "late", code=3)
        assert "cannot listen" in failed.stderr
    shell.run("down", "open")


def test_the_guides_own_command_starts_its_servers(shell, tmp_path):
    config = tmp_path / "gsm8k_grpo.yaml"
    config.write_text("allocation_mode: sglang.d4p1t1+d4p1t1\nactor: {path: tiny}\ntotal_train_epochs: 5\n")
    command = [sys.executable, "-m", "rldbg.launcher.local", "examples/gsm8k_grpo.py", "--config", str(config)]
    ran = subprocess.run(
        [*command, "allocation_mode=sglang.d2p1t1"], capture_output=True, text=True, env=shell.environment, timeout=150
    )
    assert ran.returncode == 0, ran.stderr
    addresses = ran.stdout.partition("AREAL_LLM_SERVER_ADDRS=")[2].strip().split(",")
    assert len(addresses) == 2 and all(post(address, "/generate", QUESTION)["output_ids"] for address in addresses)
    assert "gsm8k_grpo.py is not run" in ran.stderr
    shell.run("down", "--all")
