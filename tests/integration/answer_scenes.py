"""Programs that wait because an answer was left out or dropped: `python answer_scenes.py SCENE FOLDER` writes
FOLDER/SCENE when it is about to."""

import asyncio
import json
import multiprocessing
import os
import queue
import socket
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

FOLDER = Path(sys.argv[2])


def ready():
    (FOLDER / sys.argv[1]).write_text(str(os.getpid()))


class RewardWorker:
    """It scores in a function of its own, which returns early."""

    def __init__(self):
        self.samples, self.scores = queue.Queue(), queue.Queue()
        threading.Thread(target=self.serve, name="reward-worker", daemon=True).start()

    def serve(self):
        while True:
            sample = self.samples.get()
            self.score(sample)

    def score(self, sample):
        if not sample["answer"]:
            return
        self.scores.put(len(sample["answer"]))

    def ask(self, answer):
        self.samples.put({"answer": answer})
        return self.scores.get()


def handler_returns():
    worker = RewardWorker()
    worker.ask("42")
    ready()
    worker.ask("")


class GroupFilter:
    """Groups whose rewards are all the same are no use, and are dropped without a word."""

    def __init__(self, work):
        self.groups, self.batch = queue.Queue(), queue.Queue()
        threading.Thread(target=work, args=(self,), name="group-filter", daemon=True).start()

    def drop_equal(self):
        while True:
            rewards = self.groups.get()
            mean = sum(rewards) / len(rewards)
            advantages = [each - mean for each in rewards]
            if any(abs(each) > 1e-6 for each in advantages):
                self.batch.put(advantages)

    def keep_useful(self):
        while groups := self.groups.get():
            useful = [each for each in groups if max(each) > min(each)]
            for each in useful:
                self.batch.put(each)

    def train(self, items, size):
        for each in items:
            self.groups.put(each)
        ready()
        return [self.batch.get() for _ in range(size)]


def equal_rewards():
    GroupFilter(GroupFilter.drop_equal).train([[1.0, 0.0], [1.0, 1.0]], 2)


def useful_groups():
    GroupFilter(GroupFilter.keep_useful).train([[[0.0, 1.0]], [[1.0, 1.0]]], 2)


def step_environment(commands):
    steps = 0
    while True:
        command, count = commands.recv()
        if command == "seed":
            continue
        steps += count
        commands.send(steps)


def pipe_continue():
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.Process(target=step_environment, args=(theirs,), name="env-0", daemon=True).start()
    theirs.close()
    ours.send(("step", 1))
    ours.recv()
    ours.send(("seed", 7))
    ready()
    ours.recv()


class RolloutEngine:
    def __init__(self, prompts, texts):
        self.prompts, self.texts = prompts, texts

    def run(self):
        while (prompt := self.prompts.get()) is not None:
            self.handle(prompt)

    def handle(self, prompt):
        tokens = prompt.split()
        if len(tokens) > 4:
            return
        self.texts.put(" ".join(tokens[::-1]))


def run_engine(prompts, texts):
    RolloutEngine(prompts, texts).run()


def process_returns():
    start = multiprocessing.get_context("fork")
    prompts, texts = start.Queue(), start.Queue()
    start.Process(target=run_engine, args=(prompts, texts), name="engine", daemon=True).start()
    every = ["a b", "c d e", "f g h i j"]
    for prompt in every:
        prompts.put(prompt)
    ready()
    for _ in every:
        texts.get()


class Batcher:
    def __init__(self):
        self.batch = asyncio.Queue()

    async def work(self):
        while True:
            prompt, reply = await self.batch.get()
            await self.run_one(prompt, reply)

    async def run_one(self, prompt, reply):
        if prompt.startswith("#"):
            return
        await asyncio.sleep(0)
        reply.set_result(prompt.upper())

    async def generate(self, prompt):
        reply = asyncio.get_running_loop().create_future()
        await self.batch.put((prompt, reply))
        return await reply


async def _generate_in_batches():
    batcher = Batcher()
    worker = asyncio.create_task(batcher.work(), name="batch-worker")
    await batcher.generate("a")
    ready()
    await batcher.generate("# b")
    worker.cancel()


def future_skipped():
    asyncio.run(_generate_in_batches())


def serve_parameters(listener):
    connection, _ = listener.accept()
    for line in connection.makefile("r"):
        if not line.startswith("{"):
            continue
        connection.sendall(b"{}\n")


def socket_continue():
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve_parameters, args=(listener,), name="param-server", daemon=True).start()
    client = socket.create_connection(listener.getsockname())
    lines = client.makefile("r")
    client.sendall(b"{}\n")
    lines.readline()
    client.sendall(b"ping\n")
    ready()
    lines.readline()


async def answer_messages(reader, writer):
    while line := await reader.readline():
        message = json.loads(line)
        if message["kind"] == "heartbeat":
            continue
        writer.write(line)


async def _beat():
    server = await asyncio.start_server(answer_messages, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    ready()
    writer.write(b'{"kind": "heartbeat"}\n')
    await reader.readline()


def stream_continue():
    asyncio.run(_beat())


class WeightServer(threading.Thread):
    """What fails, is caught, and nobody is told."""

    def __init__(self):
        super().__init__(name="weight-server", daemon=True)
        self.inbox, self.version = queue.Queue(), 0

    def run(self):
        for request in iter(self.inbox.get, None):
            try:
                self.apply(request)
            except KeyError:
                self.version -= 1

    def apply(self, request):
        self.version = request["version"]
        request["done"].set()


def exception_caught():
    server = WeightServer()
    server.start()
    done = threading.Event()
    ready()
    server.inbox.put({"step": 3, "done": done})
    done.wait()


def generate_texts(prompts, replies):
    while True:
        request = prompts.get()
        replies.put({"id": str(request["id"])})


class EngineClient:
    """It numbers its requests; the engine answers with texts."""

    def __init__(self):
        start = multiprocessing.get_context("fork")
        self.prompts, self.replies = start.Queue(), start.Queue()
        start.Process(target=generate_texts, args=(self.prompts, self.replies), name="engine-0", daemon=True).start()
        self.pending, self.count = {}, 0

    def dispatch(self, loop):
        while True:
            reply = self.replies.get()
            awaited = self.pending.pop(reply["id"], None)
            if awaited is None:
                continue
            loop.call_soon_threadsafe(awaited.set_result, reply)

    async def generate(self):
        self.count += 1
        awaited = self.pending[self.count] = asyncio.get_running_loop().create_future()
        self.prompts.put({"id": self.count})
        return await awaited


async def _generate_in_engine():
    client, loop = EngineClient(), asyncio.get_running_loop()
    threading.Thread(target=client.dispatch, args=(loop,), name="dispatcher", daemon=True).start()
    rollouts = [asyncio.create_task(client.generate(), name=f"rollout-{number}") for number in range(2)]
    ready()
    await asyncio.gather(*rollouts)


def dropped_by_type():
    asyncio.run(_generate_in_engine())


class Calls:
    def __init__(self, listener="listener"):
        self.asked, self.answered, self.open = queue.Queue(), queue.Queue(), {}
        threading.Thread(target=self.work, name="engine", daemon=True).start()
        threading.Thread(target=self.listen, name=listener, daemon=True).start()

    def work(self):
        while True:
            number, prompt = self.asked.get()
            self.answered.put((f"req-{number}", prompt[::-1]))

    def listen(self):
        while True:
            number, text = self.answered.get()
            if number not in self.open:
                continue
            self.open.pop(number).set_result(text)

    def call(self, number, prompt):
        outcome = self.open[number] = Future()
        self.asked.put((number, prompt))
        return outcome.result()


def dropped_not_in():
    calls = Calls()
    ready()
    calls.call(7, "abc")


def dropped_by_one_of_three():
    """Of three with tables of one name, the one in the middle is asked."""
    calls = [Calls(f"listener-{letter}") for letter in "abc"]
    ready()
    calls[1].call(7, "abc")


def answer_in_capitals(port):
    connection = socket.create_connection(("127.0.0.1", port))
    for line in connection.makefile("r"):
        connection.sendall(line.upper().encode())


class TcpRouter:
    def __init__(self):
        self.inflight, self.connected = {}, asyncio.Event()

    async def on_engine(self, reader, writer):
        self.writer = writer
        self.connected.set()
        async for line in reader:
            waiter = self.inflight.get(line)
            if waiter is not None and not waiter.done():
                waiter.set_result(line)

    async def submit(self, name):
        waiter = self.inflight[name] = asyncio.get_running_loop().create_future()
        self.writer.write(name)
        return await waiter


async def _route():
    router = TcpRouter()
    server = await asyncio.start_server(router.on_engine, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    start = multiprocessing.get_context("fork")
    start.Process(target=answer_in_capitals, args=(port,), name="engine-tcp", daemon=True).start()
    await router.connected.wait()
    ready()
    await router.submit(b"rollout-1a\n")


def dropped_over_tcp():
    asyncio.run(_route())


def score_texts(connection):
    while True:
        number, text = connection.recv()
        connection.send((number + 1, len(text)))


class Scores:
    def __init__(self):
        self.ours, theirs = multiprocessing.Pipe()
        multiprocessing.Process(target=score_texts, args=(theirs,), name="scorer", daemon=True).start()
        theirs.close()
        self.waiting, self.found = {}, {}
        threading.Thread(target=self.collect, name="collector", daemon=True).start()

    def collect(self):
        while True:
            number, score = self.ours.recv()
            arrived = self.waiting.get(number)
            if arrived is None:
                continue
            self.found[number] = score
            arrived.set()

    def score(self, number, text):
        arrived = self.waiting[number] = threading.Event()
        self.ours.send((number, text))
        arrived.wait()
        return self.found[number]


def dropped_over_pipe():
    scores = Scores()
    ready()
    scores.score(3, "abc")


def reverse_for(requests, clients):
    while True:
        client, text = requests.get()
        inbox = clients.get(client)
        if inbox is None:
            continue
        inbox.put(text[::-1])


def unknown_client():
    start = multiprocessing.get_context("fork")
    requests, clients = start.Queue(), {f"actor-{number}": start.Queue() for number in range(2)}
    start.Process(target=reverse_for, args=(requests, clients), name="rpc-server", daemon=True).start()
    requests.put(("Actor-1", "abc"))
    ready()
    clients["actor-1"].get()


class Saver(threading.Thread):
    def __init__(self):
        super().__init__(name="saver", daemon=True)
        self.jobs, self.saved = queue.Queue(), []

    def run(self):
        while True:
            job = self.jobs.get()
            if job["dry"]:
                continue
            self.saved.append(job)
            self.jobs.task_done()


def never_marked():
    saver = Saver()
    saver.start()
    saver.jobs.put({"dry": True})
    ready()
    saver.jobs.join()


class Slots:
    def __init__(self):
        self.free = asyncio.Queue()
        for number in range(2):
            self.free.put_nowait(number)

    async def hold(self):
        slot = await self.free.get()
        await asyncio.wait_for(asyncio.sleep(60), 0.01)
        self.free.put_nowait(slot)


async def _leak():
    slots = Slots()
    await asyncio.gather(slots.hold(), slots.hold(), return_exceptions=True)
    ready()
    await asyncio.gather(*(asyncio.create_task(slots.hold(), name=f"rollout-{number}") for number in range(3)))


def leaked_slots():
    asyncio.run(_leak())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
