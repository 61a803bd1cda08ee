"""What an armed process pays: on a call-heavy Python loop and on the trainer's step, before any stop and after detach.

Three processes take turns, one measurement each: one gets an agent on the way, is stopped, attached to and let go; the
other two get none. Each is compared with itself: a process's speed depends by several per cent on where its memory
happens to lie (an `import dis` alone can make a loop 15 % slower), so everything is loaded beforehand, and each
workload is measured in several processes of different memory layouts, of which the median decides. What remains between
the two plain processes is the noise. The peer is `debugpy.listen()`, which is what Ray's debugger and most guides call;
the limit is a process without an agent, 1 x.

    python benchmarks/bench_live_overhead.py loop [--python PYTHON]    another interpreter for the measured processes
    python benchmarks/bench_live_overhead.py step                      a small step of the trainer's default recipe
    python benchmarks/bench_live_overhead.py --quick                   one process of few measurements: does it run
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rldbg.agent import STARTUP, armed_environment
from rldbg.core import Run
from rldbg.live import BrokerClient, start_broker, stop_broker

GOAL = 1.01
RECIPE = Path(__file__).parents[1] / "recipes" / "arithmetic.yaml"
LOADED = f"""
import os, sys, time
sys.path.insert(0, {STARTUP!r})
import rldbg_startup
agent = rldbg_startup.load_agent()
import rldbg_agent.debugger
rldbg_agent.debugger.load_debugpy(os.environ["RLDBG_DEBUGPY"])
import random
random.seed(int(os.environ["LAYOUT"]))
held = [bytearray(random.randrange(400)) for _ in range(random.randrange(3000))]
held += [float(n) for n in range(random.randrange(3000))] + list(range(1000, 1000 + random.randrange(3000)))
"""
LOOP = """
def body(i, total):
    return total + i & 255
def measure():
    begin = time.thread_time(); total = 0
    for i in range(100_000): total = body(i, total)
    return time.thread_time() - begin
"""
# Between two steps the trainer waits for its next command.
STEP = f"""
import tempfile
from pathlib import Path
from rldbg.core import Run
from rldbg.trainer import Reporting, read_recipe, train
folder = Path(tempfile.mkdtemp())
overrides = ["policy.ranks=1", "++cluster.in_process=true", "warm_start.max_steps=5", "steps=1000"]
small = ["data.prompts_per_step=16", "++debug.enable_data_dump=false"]
loaded = read_recipe(Path({str(RECIPE)!r}), [*overrides, *small])
begin = 0.0
def after_step(_step, _metrics):
    global begin
    if begin: print(time.process_time() - begin, flush=True)
    obey(sys.stdin.readline())
    begin = time.process_time()
"""
OBEY = """
def obey(line):
    word = line.strip()
    if word == "listen": import debugpy; debugpy.listen(("127.0.0.1", 0))
    if word.startswith("arm "): os.environ["RLDBG_RUN"] = word[4:]; agent.start()
    if word == "stop": breakpoint(); word = ""
"""
AGAIN = """
for line in sys.stdin:
    obey(line)
    print(measure(), flush=True)
"""
TRAIN = """
train(loaded, Run.create(name="bench", path=folder), reporting=Reporting(on_step=after_step))
"""
WARMING = 4
PHASES = ("before", "armed", "after detach")


class Subject:
    """A process that measures itself when asked, and keeps the times of each phase."""

    def __init__(self, command, environment, errors):
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        self.pid = self._process.pid
        self.times = {}

    def tell(self, word):
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def answer(self):
        return float(self._process.stdout.readline())

    def measure(self, phase):
        self.tell("measure")
        self.times.setdefault(phase, []).append(self.answer())

    def end(self):
        self._process.kill()
        self._process.wait()


def stop_and_let_go(subject, client, rounds=3):
    """Stops the process as a breakpoint does, looks at it, continues; its session is closed when this returns."""
    for _ in range(rounds):
        subject.tell("stop")
        _wait(lambda: _facts(client, subject)["state"] == "stopped")
        client.request("attach", who=f"@{subject.pid}", stop=True)
        client.request("detach", who=f"@{subject.pid}")
        client.request("continue", who=f"@{subject.pid}")
        subject.answer()
        _wait(lambda: not _facts(client, subject)["debugged"])


def _facts(client, subject):
    return next((p for p in client.request("ps")["processes"] if p["pid"] == subject.pid), {"state": "", "debugged": 1})


def _wait(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "too slow"
        time.sleep(0.02)


def one_set(start, run, rounds):
    """The times of the process that gets an agent, and of two that do not."""
    ours, plain, again = subjects = [start() for _ in range(3)]
    try:
        with BrokerClient(run.path) as client:
            for phase in PHASES:
                if phase == "armed":
                    _everywhere(subjects, f"arm {run.path}")
                    _wait(lambda: _facts(client, ours)["state"] == "running")
                elif phase == "after detach":
                    stop_and_let_go(ours, client)
                    _everywhere((plain, again), *["measure"] * 3)
                for number in range(rounds + WARMING):
                    for subject in subjects if number % 2 else subjects[::-1]:
                        subject.measure(phase if number >= WARMING else "warming up")
        return ours.times, plain.times, again.times
    finally:
        for subject in subjects:
            subject.end()


def _everywhere(subjects, *words):
    """All take the same number of measurements; only the first is really armed."""
    for word in words:
        for number, subject in enumerate(subjects):
            subject.tell(word if number == 0 else "measure")
            subject.answer()


def peer(start):
    """How many times slower a process gets by listening for a debugger."""
    subject = start()
    try:
        for _ in range(4):
            subject.measure("before")
        subject.tell("listen")
        for _ in range(4):
            subject.times.setdefault("listening", []).append(subject.answer())
            subject.tell("measure")
        return min(subject.times["listening"]) / min(subject.times["before"])
    finally:
        subject.end()


def ratio(times, control, phase, *, steady):
    """How much slower than before the process is in a phase, beside a process that only went on."""

    def relative(name):
        if steady:
            return min(times[name]) / min(control[name])
        return statistics.median(a / b for a, b in zip(times[name], control[name], strict=True))

    return relative(phase) / relative("before")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", nargs="?", choices=["loop", "step"], default="loop")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    options = parser.parse_args()
    # A pass of the loop is like every other, and the fastest is its cost. A step is compared with the same step of the
    # others, and single pairs differ by some per cent: many of them in few processes, for starting one takes seconds.
    steady = options.workload == "loop"
    sets, rounds = (1, 2) if options.quick else (15, 12) if steady else (2, 30)
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as errors:
        script = Path(folder) / "subject.py"
        script.write_text(LOADED + (LOOP + OBEY + AGAIN if steady else STEP + OBEY + TRAIN))
        run = Run.create(name="bench", path=Path(folder) / "run")
        start_broker(run, owner_pid=os.getpid())
        environment = os.environ | {"RLDBG_DEBUGPY": armed_environment(run.path)["RLDBG_DEBUGPY"]}
        command = [options.python, str(script)]

        def start(layout=0):
            return Subject(command, environment | {"LAYOUT": str(layout)}, errors)

        times = [one_set(lambda n=number: start(n), run, rounds) for number in range(sets)]
        beside = f"  peer {peer(start):6.2f} x" if steady else ""
        stop_broker(run.path)
    version = subprocess.run([options.python, "-V"], capture_output=True, text=True, check=True).stdout.strip()
    print(json.dumps({"workload": options.workload, "python": version, "load": os.getloadavg()[0]}))
    for phase in PHASES[1:]:
        cost = statistics.median(ratio(ours, plain, phase, steady=steady) for ours, plain, _ in times)
        noise = statistics.median(ratio(again, plain, phase, steady=steady) for _, plain, again in times)
        verdict = "ok" if cost <= GOAL else "OVER"
        print(f"{phase:<14} ours {cost:7.4f} x  limit 1 x (noise {noise:.4f}){beside}  goal {GOAL:g} x  {verdict}")


if __name__ == "__main__":
    main()
