"""Servers in the registry are real processes: found again by name, seen when they crash, gone after `stop`."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from rldbg.core import IncompleteDataError, PrerequisiteError, UsageError
from rldbg.inference import Registry

SERVER = textwrap.dedent(
    """
    import http.server, json, os, subprocess, sys
    child = subprocess.Popen(["sleep", "600"])
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers()
        def log_message(self, *parts):
            pass
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    print("child", child.pid, flush=True)
    ready = sys.argv[1]
    open(ready + ".tmp", "w").write(json.dumps({"pid": os.getpid(), "address": "127.0.0.1:%d" % server.server_port}))
    os.rename(ready + ".tmp", ready)
    server.serve_forever()
    """
)


def good(_number, ready):
    return [sys.executable, "-c", SERVER, str(ready)]


def bad(_number, ready):
    return [sys.executable, "-c", "print('the reason'); raise SystemExit(3)"]


@pytest.fixture
def registry(tmp_path):
    registry = Registry(tmp_path)
    yield registry
    for server in registry.servers():
        registry.stop(server)


def start(registry, name="one", command=good, **facts):
    server = registry.start(name, backend="train", model="tiny", command=command, **facts)
    registry.wait(server, health="/", timeout_s=30)
    return server


def test_a_server_is_started_found_listed_and_stopped_with_its_children(registry):
    started = start(registry, count=2)
    found = registry.find("one")
    assert found == started and found.state == "running" and len(found.addresses) == 2
    assert [item.name for item in registry.servers()] == ["one"]
    children = [int(process.last_lines()[0].split()[1]) for process in found.processes]
    registry.stop(found)
    assert registry.servers() == []
    assert not any(runs(pid) for pid in [*children, *(process.pid for process in found.processes)])


def runs(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_crashed_process_is_seen_as_such_with_its_last_lines(registry):
    server = start(registry)
    os.kill(server.processes[0].pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(server.processes[0].pid)], timeout=10)
    found = registry.find("one")
    assert found.state == "crashed" and found.processes[0].last_lines()[0].startswith("child")
    replaced = start(registry)
    assert replaced.state == "running", "a crashed server's name is free again"


def test_a_process_that_dies_before_it_is_ready_is_an_error_with_its_words(registry):
    with pytest.raises(PrerequisiteError, match="ended before it was ready: the reason"):
        start(registry, command=bad)


def test_a_process_that_never_gets_ready_is_an_error(registry):
    server = registry.start("slow", backend="train", model="tiny", command=lambda n, ready: ["sleep", "600"])
    with pytest.raises(PrerequisiteError, match=r"not ready after 0\.1 s"):
        registry.wait(server, health="/", timeout_s=0.1)


def test_a_running_servers_name_is_taken(registry):
    start(registry)
    with pytest.raises(UsageError, match="is running"):
        start(registry)
    assert registry.free_name("one") == "one-2"
    assert registry.free_name("two") == "two"


def test_of_those_who_ask_for_one_name_at_the_same_moment_one_gets_it(registry):
    def ask(_number):
        try:
            return registry.start("one", backend="train", model="tiny", command=lambda n, ready: ["sleep", "600"])
        except UsageError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    (server,) = [answer for answer in answers if not isinstance(answer, str)]
    assert registry.find("one") == server and server.processes[0].alive


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x"])
def test_odd_names_are_refused(registry, name):
    with pytest.raises(UsageError):
        registry.start(name, backend="train", model="tiny", command=good)
    with pytest.raises(IncompleteDataError):
        registry.find(name)


def test_an_id_used_again_by_another_process_is_not_ours(registry, tmp_path):
    server = start(registry)
    registry.stop(server)
    other = subprocess.Popen(["sleep", "600"])
    try:
        folder = tmp_path / "servers" / "one"
        folder.mkdir()
        process = {"pid": other.pid, "created": 1.0, "log": "x", "ready": "x"}
        facts = {"name": "one", "backend": "train", "model": "tiny", "folder": str(folder), "started_at": 0.0}
        (folder / "server.json").write_text(json.dumps(facts | {"processes": [process]}))
        found = registry.find("one")
        assert found.state == "crashed"
        registry.stop(found)
        assert other.poll() is None, "a stranger is not killed"
    finally:
        other.kill()
        other.wait()


def left_from_an_earlier_boot(home, name, pid, created, address):
    """An entry as it lies there after the machine was started again; a service has the server's old address now."""
    folder = home / "servers" / name
    folder.mkdir(parents=True)
    (folder / "0.ready").write_text(json.dumps({"pid": pid, "address": address}))
    process = {"pid": pid, "created": created, "log": str(folder / "0.log"), "ready": str(folder / "0.ready")}
    facts = {"name": name, "backend": "train", "model": "tiny", "folder": str(folder), "health": "/"}
    facts |= {"started_at": psutil.boot_time() - 3600, "processes": [process]}
    (folder / "server.json").write_text(json.dumps(facts))
    return folder


def test_what_an_earlier_boot_of_the_machine_left_is_removed_and_strangers_are_spared(registry, tmp_path):
    running = start(registry)
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        old = psutil.boot_time() - 3500
        reused = left_from_an_earlier_boot(tmp_path, "reused", stranger.pid, old, running.addresses[0])
        gone = left_from_an_earlier_boot(tmp_path, "gone", 2**22 + 1, old, running.addresses[0])
        assert registry.probe([registry.find("reused")]) == [["crashed"]], "somebody else answers at its address"
        assert [server.name for server in registry.servers()] == ["one"]
        assert not reused.exists() and not gone.exists()
        left_from_an_earlier_boot(tmp_path, "again", stranger.pid, old, "127.0.0.1:1")
        assert start(registry, "again").state == "running", "its name is free, without looking first"
        assert stranger.poll() is None, "a stranger is not killed"
    finally:
        stranger.kill()
        stranger.wait()


def test_a_damaged_entry_says_which_file(registry, tmp_path):
    folder = tmp_path / "servers" / "x"
    folder.mkdir(parents=True)
    (folder / "server.json").write_text("{")
    with pytest.raises(IncompleteDataError, match=r"server\.json is damaged"):
        registry.find("x")
    (folder / "server.json").unlink()
