"""Two that wait for each other without a lock: `python pair_wait_scenes.py SCENE FOLDER` writes FOLDER/SCENE when they
are about to."""

import asyncio
import datetime
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

FOLDER = Path(sys.argv[2])
# As where nobody has set it.
BUFFERED = os.environ | {"PYTHONUNBUFFERED": ""}


def ready():
    (FOLDER / sys.argv[1]).write_text(str(os.getpid()))


def judge():
    """The other program of these pairs: an answer for each line."""
    for line in sys.stdin:
        sys.stdout.write(f"{len(line)}\n")


def _judge_command(flushing):
    command = [sys.executable, __file__, "judge", str(FOLDER)]
    return [*command[:1], "-u", *command[1:]] if flushing else command


class Judge:
    """A task reads what the program answers, and completes the futures of those who have asked."""

    def __init__(self):
        self.pending = []

    async def start(self):
        command = _judge_command(False)
        self.program = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1, env=BUFFERED)
        self.reader = asyncio.create_task(self.read(), name="judge-reader")

    async def read(self):
        while line := await self.program.stdout.readline():
            self.pending.pop(0).set_result(int(line))

    async def score(self, text):
        answer = asyncio.get_running_loop().create_future()
        self.pending.append(answer)
        self.program.stdin.write(text)
        await self.program.stdin.drain()
        return await answer


async def _ask_judge():
    judge = Judge()
    await judge.start()
    ready()
    await judge.score(b"2 + 2 = 4\n")


def kept_answer():
    asyncio.run(_ask_judge())


def kept_question():
    program = subprocess.Popen(_judge_command(True), stdin=-1, stdout=-1, text=True, env=BUFFERED)
    program.stdin.write("2 + 2 = 4\n")
    ready()
    program.stdout.readline()


class Client:
    """Asks a thread of its own over a connection, by a file that is made of it."""

    def __init__(self, server):
        self.file = socket.create_connection(server.getsockname()).makefile("rw")

    def ask(self):
        self.file.write("version?\n")
        ready()
        return self.file.readline()


def _serve_versions(server):
    connection, _ = server.accept()
    for _ in connection.makefile("rb"):
        connection.sendall(b"7\n")


def kept_request():
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve_versions, args=(server,), name="version-server", daemon=True).start()
    Client(server).ask()


class Versions:
    """Two loops, each of which goes on only after the other one."""

    def __init__(self):
        self.trained, self.rolled, self.turn = 0, 0, "train"

    def train(self):
        while self.rolled <= self.trained:
            time.sleep(0.02)
        self.trained += 1

    def roll(self):
        while True:
            if self.trained > self.rolled:
                break
            print("no new version yet")
            time.sleep(0.02)
        self.rolled += 1

    def take_turns(self, own, other):
        """This goes on for ever."""
        while True:
            while self.turn != own:
                time.sleep(0.02)
            self.turn = other

    async def train_in_task(self):
        while not self.rolled:
            await asyncio.sleep(0.02)
        self.trained += 1

    async def roll_in_task(self):
        while not self.trained:
            await asyncio.sleep(0.02)
        self.rolled += 1


def loops_of_threads():
    versions = Versions()
    threading.Thread(target=versions.roll, name="roller", daemon=True).start()
    ready()
    versions.train()


def loops_in_turn():
    versions = Versions()
    threading.Thread(target=versions.take_turns, args=("roll", "train"), name="roller", daemon=True).start()
    ready()
    versions.take_turns("train", "roll")


async def _train_and_roll():
    versions = Versions()
    ready()
    async with asyncio.TaskGroup() as group:
        group.create_task(versions.train_in_task(), name="train")
        group.create_task(versions.roll_in_task(), name="roll")


def loops_of_tasks():
    asyncio.run(_train_and_roll())


def _load(version, loaded):
    while version.value < 1:
        time.sleep(0.02)
    loaded.value = True


def loops_of_processes():
    version, loaded = multiprocessing.Value("i", 0), multiprocessing.Value("b", False)
    multiprocessing.Process(target=_load, args=(version, loaded), name="engine", daemon=True).start()
    ready()
    while not loaded.value:
        time.sleep(0.02)
    version.value += 1


def until(test):
    while not test():
        time.sleep(0.02)


SAVED = LOADED = False


class Phases:
    """The same in other words: by an event that only paces, by a helper, by variables of the module."""

    def __init__(self, other):
        self.rolled, self.trained, self.tick = False, False, threading.Event()
        threading.Thread(target=other, args=(self,), name="other", daemon=True).start()
        ready()

    def roll_by_ticks(self):
        while not self.trained:
            self.tick.wait(0.02)
        self.rolled = True

    def train_by_ticks(self):
        while not self.rolled:
            self.tick.wait(0.02)
        self.trained = True

    def roll_by_helper(self):
        until(lambda: self.trained)
        self.rolled = True

    def train_by_helper(self):
        until(lambda: self.rolled)
        self.trained = True

    def save(self):
        global SAVED
        while not LOADED:
            time.sleep(0.02)
        SAVED = True

    def load(self):
        global LOADED
        while not SAVED:
            time.sleep(0.02)
        LOADED = True


def loops_by_ticks():
    Phases(Phases.roll_by_ticks).train_by_ticks()


def loops_by_helper():
    Phases(Phases.roll_by_helper).train_by_helper()


def loops_by_globals():
    Phases(Phases.save).load()


class Board:
    """Two kinds of threads wait for one condition."""

    def __init__(self):
        self.changed, self.weights, self.samples = threading.Condition(), 0, 0

    def await_weights(self):
        with self.changed:
            while self.weights < 1:
                self.changed.wait()

    def await_samples(self):
        with self.changed:
            while self.samples < 1:
                self.changed.wait()

    def add_sample(self):
        with self.changed:
            self.samples += 1
            self.changed.notify()


def woke_the_other():
    board = Board()
    threading.Thread(target=board.await_weights, name="engine", daemon=True).start()
    time.sleep(0.3)
    learner = threading.Thread(target=board.await_samples, name="learner", daemon=True)
    learner.start()
    time.sleep(0.3)
    board.add_sample()
    ready()
    learner.join()


def _publish(store):
    store.get("weights/1")


def one_client():
    import torch.distributed

    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, timeout=datetime.timedelta(hours=1))
    threading.Thread(target=_publish, args=(store,), name="publisher", daemon=True).start()
    time.sleep(1)
    ready()
    store.set("weights/1", "1")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
