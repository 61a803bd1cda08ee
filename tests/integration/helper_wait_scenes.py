"""Programs that wait because of a step that was skipped, or beside helpers that only have nothing to do: `python
helper_wait_scenes.py SCENE FOLDER` writes FOLDER/SCENE when it is about to."""

import asyncio
import datetime
import errno
import logging
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(sys.argv[2])


def ready():
    (FOLDER / sys.argv[1]).write_text(str(os.getpid()))


CLIENT = """
import asyncio
import datetime
import errno
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


def _numbered_engine(requests, answers):
    while (request := requests.get()) is not None:
        if request == "too long":
            os._exit(3)
        answers.put(request)


def numbered_engines():
    """Of two engines that put their answers into one queue one has died."""
    start = multiprocessing.get_context("spawn")
    answers, inboxes = start.Queue(), [start.Queue(), start.Queue()]
    for number, inbox in enumerate(inboxes):
        start.Process(target=_numbered_engine, args=(inbox, answers), name=f"engine-{number}").start()
    inboxes[1].put("1+1=")
    answers.get()
    inboxes[0].put("too long")
    ready()
    answers.get()


def _told_rank(rank, world, file):
    import torch
    import torch.distributed as dist

    limit = datetime.timedelta(hours=1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world, timeout=limit)
    evaluation = dist.new_group(list(range(world)))
    dist.barrier()
    if rank == 1:
        ready()
        dist.broadcast(torch.zeros(2), src=0, group=evaluation)
    else:
        dist.all_reduce(torch.zeros(2))


def told_ranks():
    """Ranks that were told their number in a call, and not in the environment."""
    start = multiprocessing.get_context("spawn")
    own = [start.Process(target=_told_rank, args=(n, 3, FOLDER / "store"), name=f"ppo-{n}") for n in range(3)]
    for each in own:
        each.start()
    own[0].join()


class Replay:
    """Its samples, and the condition for them, are new with each version."""

    def __init__(self):
        self.renew()

    def renew(self):
        self.samples, self.changed = [], threading.Condition()

    def put(self, sample):
        with self.changed:
            self.samples.append(sample)
            self.changed.notify_all()

    def take(self, count):
        changed = self.changed
        with changed:
            while len(self.samples) < count:
                ready()
                changed.wait()
            return self.samples[:count]


def renewed_condition():
    replay = Replay()

    def rollout():
        while not (FOLDER / sys.argv[1]).exists():
            time.sleep(0.05)
        time.sleep(0.3)
        replay.renew()
        for sample in range(4):
            replay.put(sample)

    threading.Thread(target=rollout, name="rollout").start()
    replay.take(2)


class Quota:
    """So many calls in each window of time; who comes when it is used up waits for the next one."""

    def __init__(self, calls, window_s):
        self.calls, self.window_s, self.turn = calls, window_s, threading.Condition()
        self.left, self.ends_at = calls, time.monotonic() + window_s

    def take(self):
        with self.turn:
            while True:
                now = time.monotonic()
                if now >= self.ends_at:
                    self.left, self.ends_at = self.calls, now + self.window_s
                if self.left > 0:
                    self.left -= 1
                    return
                self.turn.wait(timeout=self.ends_at - now)


def quota_of_a_window():
    """A judge waits until its quota begins anew; nobody has to tell it."""
    quota, scores = Quota(2, 3600.0), queue.Queue()

    def judge():
        for score in range(3):
            quota.take()
            scores.put(score)

    threading.Thread(target=judge, name="judge").start()
    for _ in range(2):
        scores.get()
    ready()
    scores.get()


def limited_condition():
    """A batch is waited for until it is full or its time is over; nobody has to fill it."""
    batch, changed, ends_at = [], threading.Condition(), time.monotonic() + 3600.0
    with changed:
        while len(batch) < 4:
            left = ends_at - time.monotonic()
            if left <= 0:
                raise TimeoutError("the batch is not full")
            ready()
            changed.wait(left)


def paced_by_clock():
    """A step takes its time, and the next batch only then."""
    prepared = queue.Queue(1)

    def prepare():
        for number in range(10):
            prepared.put(number)

    threading.Thread(target=prepare, name="preparer", daemon=True).start()
    ready()
    for _ in range(10):
        end = time.monotonic() + 3600
        while time.monotonic() < end:
            time.sleep(0.2)
        prepared.get()


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


def serve_model(connection):
    """Answers that it is not ready until its model is loaded, which fails."""
    state = {"ready": False}

    class Health(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if state["ready"] else 503)
            self.end_headers()

        def log_message(self, *_):
            pass

    def load():
        state["ready"] = bool(Path("/no/such/model.bin").read_bytes())

    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        threading.Thread(target=load, name="model-loader").start()
        connection.send(server.server_address[1])
        server.serve_forever()


def never_healthy():
    here, there = multiprocessing.Pipe()
    multiprocessing.Process(target=serve_model, args=(there,), name="engine", daemon=True).start()
    url = f"http://127.0.0.1:{here.recv()}/health"
    ready()
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            break
        except urllib.error.URLError:
            time.sleep(0.2)


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


class Component:
    def __init__(self):
        self._lock = threading.RLock()


class Weights(Component):
    def __init__(self, engine):
        super().__init__()
        self.engine = engine

    def publish(self):
        with self._lock:
            time.sleep(0.2)
            self.engine.load()

    def version(self):
        with self._lock:
            return 1


class CountingEngine:
    """Its condition is entered by three, each with a lock of another one in its hand."""

    def __init__(self, monitor):
        self.idle = threading.Condition()
        self.monitor = monitor

    def generate(self):
        with self.idle:
            time.sleep(0.2)
            self.monitor.record()

    def load(self):
        with self.idle:
            self.idle.wait_for(lambda: True)


def guarded(attribute):
    def decorate(method):
        def call(self):
            with getattr(self, attribute):
                return method(self)

        return call

    return decorate


class Guarded:
    def __init__(self):
        self._mutex, self.other = threading.RLock(), None

    @guarded("_mutex")
    def version(self):
        return 1

    @guarded("_mutex")
    def publish(self):
        time.sleep(0.2)
        return self.other.version()


def guarded_methods():
    """A decorator takes the lock of the object whose method it calls."""
    store, buffer = Guarded(), Guarded()
    store.other, buffer.other = buffer, store
    threading.Thread(target=buffer.publish, name="publisher", daemon=True).start()
    ready()
    store.publish()


class Monitor(Component):
    weights = None

    def record(self):
        with self._lock:
            pass

    def snapshot(self):
        with self._lock:
            time.sleep(0.2)
            self.weights.version()


def entered_condition():
    monitor = Monitor()
    engine = CountingEngine(monitor)
    monitor.weights = Weights(engine)
    threading.Thread(target=engine.generate, name="rollout", daemon=True).start()
    threading.Thread(target=monitor.snapshot, name="reporter", daemon=True).start()
    ready()
    monitor.weights.publish()


class Scorer(threading.Thread):
    """What it cannot score, it leaves out; who waits for the scores counts on all of them."""

    def __init__(self, domain, outbox):
        super().__init__(name=f"scorer-{domain}", daemon=True)
        self.inbox = queue.Queue()
        self.outbox = outbox

    def run(self):
        while True:
            sample = self.inbox.get()
            if sample < 0:
                continue
            self.outbox.put(sample)


class Router:
    def __init__(self):
        self.scores = queue.Queue()
        self.scorers = [Scorer(domain, self.scores) for domain in ("math", "logic")]
        for scorer in self.scorers:
            scorer.start()

    def dispatch(self, samples):
        for sample in samples:
            self.scorers[sample % 2].inbox.put(sample)

    def gather(self, count):
        return [self.scores.get() for _ in range(count)]


def left_out():
    router, samples = Router(), [1, 2, -1, 4]
    ready()
    router.dispatch(samples)
    router.gather(len(samples))


class Writer:
    """Ends at the first end of a producer, though there are two."""

    def __init__(self, experience):
        self.experience = experience

    def run(self):
        while self.experience.get() is not None:
            pass


class Rollouts:
    def __init__(self, experience, count):
        self.experience = experience
        self.count = count

    def run(self):
        for number in range(self.count):
            self.experience.put(number)
            time.sleep(0.01)
        self.experience.put(None)


def _write(experience):
    Writer(experience).run()


def _collect(experience, count):
    Rollouts(experience, count).run()


def writer_over():
    experience = multiprocessing.Manager().Queue(maxsize=2)
    processes = [multiprocessing.Process(target=_write, name="writer", args=(experience,))]
    for number, count in enumerate((3, 200)):
        name = f"rollout-{number}"
        processes.append(multiprocessing.Process(target=_collect, name=name, args=(experience, count)))
    for process in processes:
        process.start()
    ready()
    for process in processes[1:]:
        process.join()


class EnginesClient:
    """An answer under an id that nobody waits for is left out; both ends then wait for the next message."""

    def __init__(self):
        self.pending = {}

    async def connect(self, port):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        self.receiver = asyncio.create_task(self.receive(), name="receiver")

    async def receive(self):
        while line := await self.reader.readline():
            answer = self.pending.pop(line, None)
            if answer is not None:
                answer.set_result(line)

    async def generate(self, prompt):
        self.pending[prompt] = asyncio.get_running_loop().create_future()
        self.writer.write(prompt)
        return await self.pending[prompt]


async def answer_prompts(reader, writer):
    while line := await reader.readline():
        writer.write(line.lower())


async def _ask_engine():
    server = await asyncio.start_server(answer_prompts, "127.0.0.1", 0)
    client = EnginesClient()
    await client.connect(server.sockets[0].getsockname()[1])
    await client.generate(b"prove it\n")
    ready()
    await client.generate(b"Prove it\n")


def dropped_answer():
    asyncio.run(_ask_engine())


async def use_tools(slots, finished):
    while True:
        async with slots:
            tool = await asyncio.create_subprocess_shell("sleep 0.3; echo ok", stdout=asyncio.subprocess.PIPE)
            await tool.communicate()
        await finished.put(1)


async def _roll_out_with_tools():
    slots, finished = asyncio.Semaphore(2), asyncio.Queue()
    agents = [asyncio.create_task(use_tools(slots, finished)) for _ in range(4)]
    await finished.get()
    ready()
    while agents:
        await finished.get()


def tools_that_end():
    asyncio.run(_roll_out_with_tools())


def _step_environment(commands, number):
    while True:
        action = commands.recv()
        commands.send(action / (number - 1))


def environment_failed():
    pairs = [multiprocessing.Pipe() for _ in range(3)]
    for number, (_, commands) in enumerate(pairs):
        name, arguments = f"env-{number}", (commands, number)
        multiprocessing.Process(target=_step_environment, name=name, args=arguments, daemon=True).start()
    for ours, _ in pairs:
        ours.send(1)
    ready()
    [ours.recv() for ours, _ in pairs]


def _tokenize(words):
    return [{"solve": 1}[word] for word in words]


class Tokenizer:
    def __init__(self):
        self.batches = queue.Queue(maxsize=2)
        threading.Thread(target=self.fill, name="prefetch", daemon=True).start()

    def fill(self):
        for words in (["solve"], ["integrate"]):
            self.batches.put(_tokenize(words))

    def take(self):
        return self.batches.get()


def prefetcher_failed():
    tokenizer = Tokenizer()
    tokenizer.take()
    ready()
    tokenizer.take()


class Checkpoints:
    """A pool writes them, and nobody asks its futures how that went."""

    def __init__(self):
        self.pool, self.saved, self.begun = ThreadPoolExecutor(2), queue.Queue(), []

    def write(self, step):
        if step:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.saved.put(step)

    def save(self, steps):
        self.begun = [self.pool.submit(self.write, step) for step in range(steps)]
        return [self.saved.get() for _ in range(steps)]


def failed_save():
    ready()
    Checkpoints().save(2)


def _write_step(store, step):
    if step > 1:
        raise OSError(errno.ENOSPC, "No space left on device")
    store.set(f"saved/{step}", "1")


def failed_key():
    import torch.distributed

    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, timeout=datetime.timedelta(hours=1))
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(_write_step, store, 2)
        ready()
        store.wait(["saved/2"])
        written.result()


class Exchange:
    """Two threads hand on one item after the other, until a file is there; then each takes the other's lock."""

    def __init__(self):
        self.there, self.back = queue.Queue(), queue.Queue()
        self.weights, self.buffer = threading.Lock(), threading.Lock()
        threading.Thread(target=self.answer, name="updater", daemon=True).start()

    def answer(self):
        while self.there.get():
            time.sleep(0.01)
            self.back.put(1)
        with self.buffer:
            self.back.put(0)
            with self.weights:
                pass

    def ask(self):
        while not (FOLDER / "go").exists():
            self.there.put(1)
            self.back.get()
        with self.weights:
            self.there.put(0)
            self.back.get()
            with self.buffer:
                pass


def closing_late():
    exchange = Exchange()
    ready()
    exchange.ask()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
