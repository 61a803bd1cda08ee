"""Programs that wait because of a step that was skipped, or beside helpers that only have nothing to do: `python
helper_wait_scenes.py SCENE FOLDER` writes FOLDER/SCENE when it is about to."""

import asyncio
import logging
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

FOLDER = Path(sys.argv[2])


def ready():
    (FOLDER / sys.argv[1]).write_text(str(os.getpid()))


CLIENT = """
import asyncio
import threading

class Service:
    def __init__(self):
        self.lifecycle = threading.Lock()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="client-loop", daemon=True).start()

    def session(self):
        with self.lifecycle:
            return "session"

    async def create_model(self):
        return self.session()

    async def create_session(self):
        return "rest"

    def open(self, told):
        with self.lifecycle:
            created = asyncio.run_coroutine_threadsafe(self.create_model(), self.loop)
            told()
            found = asyncio.run_coroutine_threadsafe(
                self.create_session(), self.loop
            )
            return found.result()
"""


def library_lock():
    """A client library takes a lock around a request that its own event loop answers, where a task wants the lock."""
    package = FOLDER / "site-packages" / "training_client"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(CLIENT)
    sys.path.insert(0, str(package.parent))
    import training_client

    training_client.Service().open(ready)


class Controller:
    """Rollouts look at a flag that an update sets, and sets back unless it fails."""

    def __init__(self):
        self.paused = False

    async def rollout(self):
        while self.paused:
            await asyncio.sleep(0.05)

    async def update(self):
        self.paused = True
        await self.push()
        self.paused = False

    async def push(self):
        raise ConnectionError("engine 2 refused the weights")


def flag_stays():
    async def main():
        controller = Controller()
        try:
            await controller.update()
        except ConnectionError:
            ready()
        await asyncio.gather(*(asyncio.create_task(controller.rollout(), name=f"rollout-{n}") for n in range(2)))

    asyncio.run(main())


class Engine:
    def __init__(self):
        self.slots = asyncio.Semaphore(2)

    async def generate(self, prompt):
        await self.slots.acquire()
        if not prompt:
            return None
        await asyncio.sleep(0)
        self.slots.release()
        return prompt


def early_return():
    async def main():
        engine = Engine()
        for _ in range(2):
            await engine.generate("")
        ready()
        await engine.generate("1+1=")

    asyncio.run(main())


class Gate:
    def __init__(self):
        self.mutex, self.version = threading.Lock(), 0

    def begin_update(self):
        self.mutex.acquire()

    def end_update(self):
        self.version += 1
        self.mutex.release()

    def read(self):
        with self.mutex:
            return self.version


class WeightSync(threading.Thread):
    """It logs what fails, and waits for the next step."""

    def __init__(self, gate):
        super().__init__(name="weight-sync", daemon=True)
        self.gate, self.tick, self.failed = gate, threading.Event(), threading.Event()

    def copy(self, shape):
        if shape % 4:
            raise ValueError(f"cannot shard {shape} rows over 4 ranks")

    def sync_once(self, shape):
        self.gate.begin_update()
        self.copy(shape)
        self.gate.end_update()

    def run(self):
        while True:
            self.tick.wait()
            self.tick.clear()
            try:
                self.sync_once(6)
            except ValueError:
                logging.getLogger("sync").exception("weight sync failed")
                self.failed.set()


def skipped_end():
    """A helper begins and another one ends; what fails in between leaves the lock taken."""
    gate = Gate()
    sync = WeightSync(gate)
    sync.start()
    for step in range(100):
        if step == 1:
            ready()
        gate.read()
        sync.tick.set()
        sync.failed.wait()


def _engine(inbox, outbox, dies):
    for prompt in iter(inbox.get, None):
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        outbox.put(prompt)


def idle_neighbour():
    """Of two engines one has died; the other has nothing to do."""
    start = multiprocessing.get_context("fork")
    channels = {name: (start.Queue(), start.Queue()) for name in ("policy", "reference")}
    for name, (inbox, outbox) in channels.items():
        start.Process(target=_engine, args=(inbox, outbox, name == "policy"), name=f"{name}-engine").start()
    channels["reference"][0].put("1+1=")
    channels["reference"][1].get()
    channels["policy"][0].put("1+1=")
    ready()
    channels["policy"][1].get()


class Prefetcher:
    """Its thread fills a queue that `next` empties."""

    def __init__(self):
        self.slots = {"ready": queue.Queue(2)}
        threading.Thread(target=self.work, name="prefetch", daemon=True).start()

    def work(self):
        for number in range(100):
            self.slots["ready"].put(number)

    def __next__(self):
        return self.slots["ready"].get()


class Trainer:
    def __init__(self):
        self.loader, self.synced = Prefetcher(), threading.Event()

    def step(self):
        return self.train(next(self.loader))

    def train(self, batch):
        if batch:
            ready()
            self.synced.wait()


def taken_by_next():
    trainer = Trainer()
    for _ in range(5):
        trainer.step()


def polled_server():
    """A client asks again and again; the handlers of its connections, one of them unused, are no hang."""

    async def answer(reader, writer):
        while await reader.readline():
            writer.write(b"busy\n")

    async def main():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        unused = await asyncio.open_connection(*server.sockets[0].getsockname())

        async def ask():
            writer.write(b"done?\n")
            return await reader.readline()

        ready()
        while await ask() == b"busy\n":
            await asyncio.sleep(0.3)
        return unused

    asyncio.run(main())


def begun_already():
    """Threads that a list has started are not started again by who waits for them."""
    together = threading.Barrier(3)

    def work(shard):
        if shard:
            together.wait()

    shards = [[1], [2], []]
    threads = [threading.Thread(target=work, args=(shard,), name=f"shard-{n}") for n, shard in enumerate(shards)]
    for thread in threads:
        thread.start()
    threads[2].join()
    time.sleep(0.1)
    ready()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
