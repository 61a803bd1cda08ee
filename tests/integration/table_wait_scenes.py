"""Programs that wait for something which is kept in a table, was given to others, or is reached by a call: `python
table_wait_scenes.py SCENE FOLDER` writes FOLDER/SCENE when it is about to."""

import asyncio
import collections
import gc
import http.server
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

FOLDER = Path(sys.argv[2])


def ready():
    (FOLDER / sys.argv[1]).write_text(str(os.getpid()))


def unfinished_extension():
    """Who compiled it was killed, as when memory runs out: the file that keeps others out stays."""
    from torch.utils.file_baton import FileBaton

    baton = FileBaton(str(FOLDER / "fused_kernel_lock"))
    compiler = multiprocessing.Process(target=lambda: (baton.try_acquire(), os._exit(9)), name="compiler")
    compiler.start()
    compiler.join()
    ready()
    baton.wait()


def both_send():
    """Each sends before it reads: once both buffers are full, nobody goes on."""

    async def answer(reader, writer):
        while prompt := await reader.readexactly(1024):
            writer.write(prompt * 64)
            await writer.drain()

    async def ask():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        full = asyncio.create_task(tell_when_full(writer.transport), name="tells")
        while not await_answers:
            writer.write(bytes(1024))
            await writer.drain()
        await full
        await reader.read()

    async def tell_when_full(transport):
        before = -1
        while (now := transport.get_write_buffer_size()) != before or not now:
            before = now
            await asyncio.sleep(0.5)
        ready()

    await_answers = False
    asyncio.run(ask())


class Lanes:
    def __init__(self):
        self.lanes = collections.defaultdict(queue.Queue)

    def deliver(self, lane, rollout):
        self.lanes[lane].put(rollout)

    def next_of(self, lane):
        return self.lanes[lane].get()


class Player(threading.Thread):
    def __init__(self, number, lanes):
        super().__init__(name=f"player-{number}")
        self.number, self.lanes = number, lanes

    def run(self):
        for step in range(3):
            self.lanes.deliver(str(self.number), step)


def other_key():
    """The threads have put into queues under texts, and have ended; it waits for one under a number."""
    lanes = Lanes()
    for number in range(2):
        player = Player(number, lanes)
        player.start()
        player.join()
    del player
    ready()
    lanes.next_of(1)


class Worker:
    def __init__(self):
        self.inbox = queue.Queue()


def other_worker():
    """Everything was sent to the inbox of another worker."""
    workers = [Worker() for _ in range(3)]

    def send(items):
        for item in items:
            workers[item % 2].inbox.put(item)

    send(range(4))
    ready()
    workers[2].inbox.get()


class Stream:
    def __aiter__(self):
        return self

    async def __anext__(self):
        self.arrived = asyncio.get_running_loop().create_future()
        return await self.arrived


class Engine:
    """Callers wait for futures in a table; who completes them is a task that Python has deleted."""

    def __init__(self):
        self.pending = {}

    def start(self):
        asyncio.create_task(self.hand_out())  # noqa: RUF006 - that nobody keeps it is the point

    async def hand_out(self):
        async for number in Stream():
            self.pending.pop(number).set_result(number)

    async def ask(self, number):
        answer = self.pending[number] = asyncio.get_running_loop().create_future()
        return await answer


def deleted_task():
    async def main():
        engine = Engine()
        engine.start()
        asking = asyncio.create_task(engine.ask(7), name="ask-7")
        await asyncio.sleep(0.1)
        gc.collect()
        ready()
        await asking

    asyncio.run(main())


class Pipeline:
    def __init__(self):
        self.samples = queue.Queue()

    def produce(self):
        while True:
            self.load()
            self.publish(1)

    def load(self):
        time.sleep(3600)

    def publish(self, item):
        self.samples.put(item)


def through_a_call():
    """The thread that would put an item in, in a method that it calls later, sleeps."""
    pipeline = Pipeline()
    threading.Thread(target=pipeline.produce, name="loader", daemon=True).start()
    ready()
    pipeline.samples.get()


def fill(target, count):
    for number in range(count):
        target.put(number)


def given_to_a_thread():
    """The thread knows the queue by another name, and has ended; nobody remembers it."""
    samples = queue.Queue()
    thread = threading.Thread(target=fill, args=(samples, 2), name="filler")
    thread.start()
    thread.join()
    del thread
    ready()
    while True:
        samples.get()


def has_put_already():
    """A thread that has put its only item sleeps now: it is not the one who should put the next."""
    samples = queue.Queue()

    def once():
        samples.put(1)
        time.sleep(3600)

    threading.Thread(target=once, name="put-once", daemon=True).start()
    ready()
    while True:
        samples.get()


def never_true():
    """The thread that raises the version has ended."""
    changed, version = threading.Condition(), [0]

    def raise_version():
        with changed:
            version.append(1)
            changed.notify_all()

    thread = threading.Thread(target=raise_version, name="raiser")
    thread.start()
    thread.join()
    ready()
    with changed:
        changed.wait_for(lambda: len(version) > 2)


def never_true_in_asyncio():
    async def main():
        changed, version = asyncio.Condition(), [0]
        ready()
        async with changed:
            await changed.wait_for(lambda: len(version) > 2)

    asyncio.run(main())


class Versions:
    def __init__(self):
        self.loaded = {}

    def event_of(self, version):
        return self.loaded.setdefault(version, threading.Event())

    def mark(self, version):
        self.event_of(version).set()

    def wait(self, version):
        self.event_of(version).wait()


def other_event():
    """What was set is under another key."""
    versions = Versions()
    versions.mark("v1")
    ready()
    versions.wait(1)


class Server:
    def __init__(self):
        self.loop, self.resumed = asyncio.new_event_loop(), asyncio.Event()
        threading.Thread(target=self.loop.run_forever, name="server-loop", daemon=True).start()

    async def generate(self):
        await self.resumed.wait()

    async def resume(self):
        self.resumed.set()

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()


def called_afterwards():
    """What would end the wait is called by the one who waits, further down."""
    server = Server()
    ready()
    server.call(server.generate())
    server.call(server.resume())


def single_threaded_server():
    """A handler asks its own server, which has one thread."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.wfile.write(urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").read())

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, name="judge-server", daemon=True).start()
    ready()
    urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/")


def score(tasks, results):
    for task in iter(tasks.get, None):
        if task != 1:
            results.put(task)


def dropped_result():
    """A worker drops a result; who waits for it has put all the tasks already."""
    context = multiprocessing.get_context("fork")
    tasks, results = context.Queue(), context.Queue()
    context.Process(target=score, args=(tasks, results), name="scorer").start()
    for number in range(3):
        tasks.put(number)
    ready()
    for _ in range(3):
        results.get()


def answer(connection):
    connection.recv()
    os.kill(os.getpid(), 9)


def kept_end_of_a_pipe():
    """The process at the other end was killed; that end is also in a variable here, of who does not use it."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    context.Process(target=answer, args=(there,), name="scheduler", daemon=True).start()

    def ask():
        here.send("prompt")
        ready()
        here.recv()

    thread = threading.Thread(target=ask, name="handler")
    thread.start()
    thread.join()


def handed_method():
    """The method that waits is called by the interpreter."""
    batches = queue.Queue()

    def consume():
        for batch in iter(batches.get, None):
            print(batch)

    ready()
    consume()


def idle_server():
    """Healthy: it serves, and its loop waits for what a request would bring."""
    requests = asyncio.Queue()

    async def handle(reader, writer):
        await requests.put(await reader.readline())

    async def work():
        while True:
            print(await requests.get())

    async def main():
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        loop = asyncio.create_task(work(), name="work")
        ready()
        await asyncio.gather(loop)
        server.close()

    asyncio.run(main())


class RewardWorkers:
    def __init__(self):
        self.to_reward = queue.Queue()
        for number in range(2):
            threading.Thread(target=self.take_rewarded, name=f"reward-{number}", daemon=True).start()

    def take_rewarded(self):
        while True:
            text, answer = self.to_reward.get()
            answer.put(len(text))

    def reward_of(self, text):
        answer = queue.Queue()
        self.to_reward.put((text, answer))
        return answer.get()


class RewardHandler(http.server.BaseHTTPRequestHandler):
    workers = None

    def do_POST(self):
        self.workers.reward_of("what a request brings")


def idle_workers():
    """Healthy: each request brings the queue for its answer; those who take them put nothing into their own one."""
    RewardHandler.workers = RewardWorkers()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), RewardHandler)
    ready()
    server.serve_forever()


class PromptScheduler(threading.Thread):
    def __init__(self):
        super().__init__(name="prompt-scheduler", daemon=True)
        self.has_prompt, self.prompts = threading.Condition(), []

    def add_prompt(self, prompt):
        with self.has_prompt:
            self.prompts.append(prompt)
            self.has_prompt.notify()

    def run(self):
        while True:
            with self.has_prompt:
                while not self.prompts:
                    self.has_prompt.wait()
                self.prompts.clear()


class PromptHandler(http.server.BaseHTTPRequestHandler):
    scheduler = None

    def do_POST(self):
        self.scheduler.add_prompt("what a request brings")


def parked_server():
    """Healthy: the main thread has given its own work away, and stays until the program is ended."""
    PromptHandler.scheduler = PromptScheduler()
    PromptHandler.scheduler.start()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), PromptHandler)
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    PromptHandler.scheduler.add_prompt("warm up")
    parked = threading.Event()
    ready()
    parked.wait()


def grade(tasks, results):
    while True:
        results.put(len(tasks.get()))


def idle_pipeline():
    """Healthy: a server with a thread and a process behind it, of which each waits for what the one before gives it."""
    requests, tasks, results = queue.Queue(), multiprocessing.Queue(), multiprocessing.Queue()

    def hand_on():
        while True:
            tasks.put(requests.get())

    def collect():
        while True:
            print(results.get())

    async def handle(reader, writer):
        requests.put(await reader.readline())

    async def main():
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        for target in (hand_on, collect):
            threading.Thread(target=target, daemon=True, name=target.__name__).start()
        multiprocessing.Process(target=grade, args=(tasks, results), daemon=True, name="grader").start()
        ready()
        await asyncio.Event().wait()
        server.close()

    asyncio.run(main())


class Filler(threading.Thread):
    def __init__(self, name, target_queue):
        super().__init__(name=name)
        self.out = target_queue

    def run(self):
        self.out.put(1)


def given_to_an_object():
    """The queue has another name in the object of a thread that has ended."""
    samples = queue.Queue()
    filler = Filler("filler", samples)
    filler.start()
    filler.join()
    del filler
    ready()
    while True:
        samples.get()


class Buffer:
    """Nobody notifies those who wait for an item."""

    def __init__(self):
        self.not_empty, self.items = threading.Condition(), []

    def put(self, item):
        with self.not_empty:
            self.items.append(item)

    def get(self):
        with self.not_empty:
            while not self.items:
                self.not_empty.wait()
            return self.items.pop()


def never_notified():
    buffer = Buffer()
    threading.Timer(0.5, buffer.put, (1,)).start()
    ready()
    buffer.get()


class Judge:
    def __init__(self, address):
        self.busy, self.connection = threading.Lock(), socket.create_connection(address)

    def ask(self, text):
        with self.busy:
            self.connection.sendall(text)
            return self.connection.recv(10)


def unanswered_request():
    """The server has dropped a request; the main thread waits for its turn at the same connection."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve():
        connection, _ = listening.accept()
        while connection.recv(10):
            pass

    threading.Thread(target=serve, name="server", daemon=True).start()
    judge = Judge(listening.getsockname())
    threading.Thread(target=judge.ask, args=(b"first",), name="rollout", daemon=True).start()
    time.sleep(0.5)
    ready()
    judge.ask(b"second")


def own_threads():
    """Healthy: a thread of the recorder waits for the next record."""
    jobs = queue.SimpleQueue()
    threading.Thread(target=jobs.get, name="rldbg-write-0", daemon=True).start()

    def write():
        jobs.get()

    threading.Thread(target=write, name="rldbg-write-1", daemon=True).start()
    ready()
    time.sleep(3600)


class Metrics:
    def __init__(self):
        self.lock = threading.Lock()

    def log(self, buffer, met):
        with self.lock:
            met.wait()
            buffer.size()

    def count(self):
        with self.lock:
            return 1


class Replay:
    def __init__(self, metrics):
        self.lock, self.metrics = threading.Lock(), metrics

    def size(self):
        with self.lock:
            return 1

    def sample(self, met):
        with self.lock:
            met.wait()
            self.metrics.count()


def locks_of_one_name():
    metrics, met = Metrics(), threading.Barrier(2)
    replay = Replay(metrics)
    threading.Thread(target=metrics.log, args=(replay, met), name="logger", daemon=True).start()
    ready()
    replay.sample(met)


class Requests:
    def __init__(self):
        self.requests = {}

    async def ask(self, number):
        reply = asyncio.get_running_loop().create_future()
        self.requests[number] = reply
        return await reply

    async def handle_outputs(self):
        while True:
            await asyncio.sleep(3600)
            for number in list(self.requests):
                self.requests.pop(number).set_result(number)

    def abort_all(self):
        self.requests.clear()


def dropped_request():
    """The request was dropped from the table in which those are that will be answered."""

    async def main():
        requests = Requests()
        handler = asyncio.create_task(requests.handle_outputs(), name="handler")
        asking = asyncio.create_task(requests.ask(1), name="ask-1")
        await asyncio.sleep(0.1)
        requests.abort_all()
        ready()
        await asyncio.gather(asking, handler)

    asyncio.run(main())


def cancelled_holders():
    """Those who have the semaphore were cancelled before they released it; who awaits the others does not do it."""
    slots = asyncio.Semaphore(2)

    async def ask(seconds):
        await slots.acquire()
        await asyncio.sleep(seconds)
        slots.release()

    async def main():
        holders = [asyncio.create_task(ask(3600), name=f"holder-{number}") for number in range(2)]
        await asyncio.sleep(0.1)
        for each in holders:
            each.cancel()
        ready()
        await asyncio.gather(*[ask(0) for _ in range(2)])

    asyncio.run(main())


def ended_program():
    """The program that is read from was killed; what it started has inherited its output, and keeps it open."""
    engine = subprocess.Popen(["sh", "-c", "sleep 3600 & kill -ABRT $$"], stdout=subprocess.PIPE, text=True)
    ready()
    for line in engine.stdout:
        print(line)


def ended_program_of_asyncio():
    async def main():
        engine = await asyncio.create_subprocess_exec("sh", "-c", "sleep 3600 & exit 3", stdout=asyncio.subprocess.PIPE)
        ready()
        await engine.stdout.readline()

    asyncio.run(main())


def _route_results(results):
    for slot in (0, 1, 1):
        results[slot].put(slot)
    time.sleep(3600)


def misrouted_result():
    """What one waits for lies in another queue of the same list."""
    results = [multiprocessing.Queue() for _ in range(2)]
    multiprocessing.Process(target=_route_results, args=(results,), name="router", daemon=True).start()
    results[0].get()
    ready()
    results[0].get()


def _collect(samples, begun):
    samples.put(b"0" * 1_000_000)
    begun.set()


def joined_before_drained():
    """The second of two processes waits until the first has written into the full pipe of their queue."""
    samples, begun = multiprocessing.Queue(), multiprocessing.Event()
    collectors = []
    for number in range(2):
        collectors.append(multiprocessing.Process(target=_collect, args=(samples, begun), name=f"collector-{number}"))
        collectors[-1].start()
        begun.wait()
        time.sleep(0.5)
        begun.clear()
    ready()
    collectors[1].join()


def lock_across_await():
    """A coroutine keeps a lock of threads while it awaits; another one blocks the event loop that both need."""
    lock = threading.Lock()

    async def one():
        await asyncio.sleep(3600)

    async def processor():
        with lock:
            await asyncio.wait({asyncio.create_task(one(), name="one")})

    async def main():
        processing = asyncio.create_task(processor(), name="processor")
        await asyncio.sleep(0.1)
        ready()
        with lock:
            processing.cancel()

    asyncio.run(main())


def undrained_queue():
    """The program is over, but nobody takes out what it has put in a queue."""
    samples = multiprocessing.Queue()
    samples.put(b"0" * 1_000_000)
    ready()


def cut_item():
    """A process was killed while it wrote an item that does not fit into the pipe of its queue."""
    samples = multiprocessing.Queue()
    writer = multiprocessing.Process(target=_collect, args=(samples, multiprocessing.Event()), name="collector")
    writer.start()
    while samples.empty():
        time.sleep(0.01)
    writer.kill()
    writer.join()
    ready()
    samples.get()


class Reports:
    """A report without a checkpoint is counted, and who waits for the count is not notified."""

    def __init__(self):
        self.index, self.condition = 0, asyncio.Condition()

    async def poll(self, saves):
        while True:
            self.index += 1
            if saves:
                async with self.condition:
                    self.condition.notify_all()
            if self.index == 2:
                ready()
            await asyncio.sleep(0.5)

    async def reported(self, expected):
        async with self.condition:
            await self.condition.wait_for(lambda: self.index >= expected)


def not_notified():
    async def main():
        reports = Reports()
        polling = asyncio.create_task(reports.poll(False), name="poll")
        await reports.reported(1)
        await polling

    asyncio.run(main())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
