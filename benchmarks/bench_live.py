"""The live plane: how long it takes to see, ask and stop processes. Ours, the peer, the limit.

Each goal is measured twice: as the command that a user types, with the start of Python, and inside a client that is
there already. The peer is plain debugpy: `debugpy.listen()` in the process and a debug adapter beside it, which is what
Ray and most guides use. The limit of a command is `rldbg --version`, that of a request a bare TCP round trip with as
many processes. What an agent costs its process is measured by bench_live_overhead.py.

    python benchmarks/bench_live.py [--agents 200] [--ranks 32] [--quick]
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from rldbg.agent import Decoder, armed_environment, encode
from rldbg.core import Run
from rldbg.live import BrokerClient, BrokerDebuggee, PdbCommands, broadcast, start_broker, stop_broker

WAIT = "import sys\nsys.stdin.readline()\n"
STOP = """
import os
rank = int(os.environ["RANK"])
loss = rank * 0.5
breakpoint()
rank = None
"""
PEER = """
import debugpy, os, sys
rank = int(os.environ["RANK"])
loss = rank * 0.5
print(debugpy.listen(("127.0.0.1", 0))[1], flush=True)
debugpy.wait_for_client()
debugpy.breakpoint()
x = 1
"""
ECHO = """
import socket
server = socket.create_server(("127.0.0.1", 0)); print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
while data := connection.recv(65536): connection.sendall(data)
"""
SPIN = """
import time
def body(i):
    time.sleep(0.001)
    return i + 1
i = 0
while True: i = body(i)
"""


class Bench:
    """A run with a broker, and children that end with it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.run = Run.create(name="bench", path=folder / "run")
        start_broker(self.run, owner_pid=os.getpid())
        self.armed = os.environ | armed_environment(self.run.path)
        self.children = []

    def start(self, name, text, *arguments, armed=True, **environment):
        path = self.folder / f"{name}.py"
        if not path.exists():
            path.write_text(text)
        child = subprocess.Popen(
            [sys.executable, str(path), *arguments],
            env=(self.armed if armed else dict(os.environ)) | {k: str(v) for k, v in environment.items()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.children.append(child)
        return child

    def clear(self):
        for child in self.children:
            child.kill()
            child.wait()
        self.children = []


def until(condition, timeout_s=300.0):
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "too slow"
        time.sleep(0.02)
    return value


# As for a user, whose Python keeps the bytecode that it compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def stopped(client):
    """Processes that stand still and can be asked."""
    return [p for p in client.request("ps")["processes"] if p["state"] == "stopped" and p["debugged"] and p["thread"]]


def timed(act, repeat=5):
    """The median of several goes, in seconds."""
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        act()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def row(name, ours, peer, limit, bound, unit="ms"):
    scale = 1e3 if unit == "ms" else 1.0
    verdict = "ok" if ours <= bound else "OVER"
    parts = [f"{name:<48}", f"ours {ours * scale:9.2f} {unit}"]
    parts.append(f"peer {peer * scale:9.2f} {unit} ({peer / ours:5.1f}x)" if peer is not None else " " * 26)
    parts.append(f"limit {limit * scale:8.2f} {unit} ({ours / limit:5.1f}x)" if limit else " " * 26)
    print("  ".join([*parts, f"bound {bound * scale:g} {unit}", verdict]), flush=True)


def command(bench, *arguments):
    """The seconds of one command as typed."""
    line = [sys.executable, "-m", "rldbg", *arguments, "--run", str(bench.run.path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start_of_a_run(bench, bare):
    """How much later a program begins under `rldbg run` than without."""
    script = bench.folder / "begin.py"
    script.write_text("import time\nprint('BEGAN', time.time(), flush=True)\n")
    armed = [sys.executable, "-m", "rldbg", "run", "--no-doctor", "--", sys.executable, str(script)]
    plain = statistics.median(_began([sys.executable, str(script)], bench) for _ in range(5))
    row("rldbg run, its program begins later by", _began_later(armed, plain, bench), None, bare, 1.5)


def _began_later(line, plain, bench):
    return statistics.median(_began(line, bench) for _ in range(5)) - plain


def _began(line, bench):
    """The seconds until the program's own first line."""
    begin = time.time()
    home = {"RLDBG_HOME": str(bench.folder / "home")}
    done = subprocess.run(
        line,
        env=os.environ | home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=bench.folder,
        check=True,
    )
    return float(next(text for text in done.stdout.splitlines() if text.startswith("BEGAN")).split()[1]) - begin


def _at_rest(pids):
    """Whether the processes have started: for a second they need less than a tenth of one core."""
    used = lambda: sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids if psutil.pid_exists(pid))  # noqa: E731
    before = used()
    time.sleep(1)
    return used() - before < 0.1


def many_agents(bench, count, bare):
    for _ in range(count):
        bench.start("wait", WAIT)
    with BrokerClient(bench.run.path) as client:
        until(lambda: len([p for p in client.request("ps")["processes"] if p["state"] == "running"]) >= count)
        until(lambda: _at_rest([p["pid"] for p in client.request("ps")["processes"]]))
        row(f"rldbg ps, {count} agents", timed(lambda: command(bench, "ps", "--json")), None, bare, 0.5)
        row("  of that the broker's answer", timed(lambda: client.request("ps")), None, None, 0.5)
    bench.clear()


def stopped_ranks(bench, count, bare):
    for rank in range(count):
        bench.start("stop", STOP, RANK=rank)
    with BrokerClient(bench.run.path) as client:
        until(lambda: len(stopped(client)) >= count)
        result = broadcast(client, "all", "p loss")
        assert len(result.answers) == count and result.ok
        typed = timed(lambda: command(bench, "cast", "all", "p loss"))
        inside = timed(lambda: broadcast(client, "all", "p loss"))
        who = f"@{stopped(client)[0]['pid']}"
        row("rldbg attach, stopped rank, locals", timed(lambda: _typed_prompt(bench, who)), None, bare, 1.0)
        row("  of that attach, prompt and locals", timed(lambda: _prompt_with_locals(bench, who)), None, None, 1.0)
    bench.clear()
    row(f"rldbg cast, {count} stopped ranks, one expression", typed, None, bare, 1.0)
    row("  of that the answers", inside, _peer_cast(bench, count), _echo(bench, count), 1.0)


def _typed_prompt(bench, who):
    assert " = " in command(bench, "attach", who, "-c", "locals")


def _prompt_with_locals(bench, who):
    with BrokerClient(bench.run.path) as client:
        words = PdbCommands(BrokerDebuggee(client, who, stop=True))
        assert words.here().ok and words.execute("locals").ok


def running_rank(bench, bare):
    script = bench.folder / "spin.py"
    first = _attach_running(bench, 3, lambda who: _typed_prompt(bench, who))
    row("rldbg attach, running rank, locals, first time", first[0], None, bare, 2.0)
    inside = _attach_running(bench, 3, lambda who: _prompt_with_locals(bench, who))
    row("  of that attach, prompt and locals, first time", inside[0], None, None, 2.0)
    row("  and again", statistics.median(inside[1:]), None, None, 2.0)
    bench.start("spin", SPIN)
    with BrokerClient(bench.run.path) as client:
        _spinning(client)
        begin = time.perf_counter()
        command(bench, "break", f"{script}:4", "--once")
        until(lambda: stopped(client))
        row("rldbg break until it hits", time.perf_counter() - begin, None, bare, 2.0)
    # A breakpoint keeps a debugger in every later process: the agents below would never be at rest.
    command(bench, "break", "--clear", "all")
    bench.clear()


def _attach_running(bench, times, attach):
    """The seconds of each of several attachments to one running process, which has never been debugged before."""
    bench.start("spin", SPIN)
    taken = []
    with BrokerClient(bench.run.path) as client:
        who = f"@{_spinning(client)}"
        for _ in range(times):
            taken.append(timed(lambda: attach(who), 1))
            client.request("continue", who=who)
            until(lambda: not [p for p in client.request("ps")["processes"] if p["debugged"]])
    bench.clear()
    return taken


def _spinning(client):
    alive = lambda p: p["role"] == "spin" and p["state"] == "running"  # noqa: E731 - one line says it
    return until(lambda: [p for p in client.request("ps")["processes"] if alive(p)])[0]["pid"]


class PeerClient:
    """A minimal client of a debug adapter, for the peer's figure only."""

    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.decoder, self.ready, self.seq = Decoder(), [], 0

    def send(self, command, **arguments):
        self.seq += 1
        self.sock.sendall(encode({"seq": self.seq, "type": "request", "command": command, "arguments": arguments}))
        return self.seq

    def wait(self, wanted):
        while True:
            for message in self.ready:
                if wanted(message):
                    self.ready.remove(message)
                    return message
            self.ready += self.decoder.feed(self.sock.recv(65536))

    def ask(self, command, **arguments):
        seq = self.send(command, **arguments)
        return self.wait(lambda m: m.get("type") == "response" and m.get("request_seq") == seq).get("body") or {}

    def attach(self):
        self.ask("initialize", adapterID="debugpy", clientID="bench")
        seq = self.send("attach", justMyCode=False, subProcess=False)
        self.wait(lambda m: m.get("event") == "initialized")
        self.ask("configurationDone")
        self.wait(lambda m: m.get("type") == "response" and m.get("request_seq") == seq)
        thread = self.wait(lambda m: m.get("event") == "stopped")["body"]["threadId"]
        self.frame = self.ask("stackTrace", threadId=thread, levels=1)["stackFrames"][0]["id"]
        return self


def _peer_cast(bench, count):
    """The same expression through one debug adapter a rank, all ranks at once.

    They are started one after the other: debugpy gives up when its adapter takes long to start on a busy machine.
    """
    clients = []
    for rank in range(count):
        port = int(bench.start("peer", PEER, armed=False, RANK=rank).stdout.readline())
        clients.append(PeerClient(port).attach())
    with ThreadPoolExecutor(count) as pool:
        cost = timed(lambda: list(pool.map(lambda c: c.ask("evaluate", expression="loss", frameId=c.frame), clients)))
    bench.clear()
    return cost


def _echo(bench, count):
    """Bytes there and back to as many processes: less is not possible over a socket."""
    children = [bench.start("echo", ECHO, armed=False) for _ in range(count)]
    sockets = [socket.create_connection(("127.0.0.1", int(child.stdout.readline()))) for child in children]

    def round_trip(sock):
        sock.sendall(b"x" * 200)
        sock.recv(65536)

    with ThreadPoolExecutor(count) as pool:
        cost = timed(lambda: list(pool.map(round_trip, sockets)))
    for sock in sockets:
        sock.close()
    bench.clear()
    return cost


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    options = parser.parse_args()
    agents, ranks = (3, 2) if options.quick else (options.agents, options.ranks)
    print(json.dumps({"python": sys.version.split()[0], "cpus": os.cpu_count(), "load": os.getloadavg()[0]}))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        bare = timed(lambda: subprocess.run([sys.executable, "-m", "rldbg", "--version"], capture_output=True))
        try:
            start_of_a_run(bench, bare)
            running_rank(bench, bare)
            stopped_ranks(bench, ranks, bare)
            many_agents(bench, agents, bare)
        finally:
            bench.clear()
            with contextlib.suppress(Exception):
                stop_broker(bench.run.path)


if __name__ == "__main__":
    main()
