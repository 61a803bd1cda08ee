"""Programs that wait for ever: `python wait_scenes.py SCENE FOLDER` writes FOLDER/SCENE when it is about to."""

import asyncio
import contextlib
import ctypes
import fcntl
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(sys.argv[2])


def ready():
    (FOLDER / sys.argv[1]).write_text(str(os.getpid()))


class Weights:
    """Two locks that two threads take in different orders."""

    def __init__(self):
        self.tensors, self.version = threading.Lock(), threading.RLock()
        self.met = threading.Barrier(2)

    def push(self):
        with self.tensors:
            self.met.wait()
            with self.version:
                pass

    def pull(self):
        with self.version:
            self.met.wait()
            ready()
            self.tensors.acquire()


class Sandboxes:
    """A queue that is used as a pool."""

    def __init__(self):
        self.free = queue.Queue()
        self.free.put(object())

    def borrow(self):
        return self.free.get()

    def give_back(self, sandbox):
        self.free.put(sandbox)


def episode(sandboxes, text):
    sandbox = sandboxes.borrow()
    reward = int(text)
    sandboxes.give_back(sandbox)
    return reward


def leaked_item():
    sandboxes = Sandboxes()
    with ThreadPoolExecutor(1) as pool:
        rewards = [pool.submit(episode, sandboxes, text) for text in ("no number", "1")]
        rewards[0].exception()
        ready()
        rewards[1].result()


class Collector:
    """A loop counts what a thread accepts, which gets its work from the same loop."""

    def __init__(self):
        self.prompts, self.accepted, self.done = queue.Queue(), [], 0
        threading.Thread(target=self.run, name="collector", daemon=True).start()

    def run(self):
        while True:
            prompt = self.prompts.get()
            self.done += 1
            if prompt % 2:
                self.accepted.append(prompt)

    def collect(self, count):
        for prompt in range(count):
            self.prompts.put(prompt)
        while len(self.accepted) < count:
            if self.done == count:
                ready()
            time.sleep(0.05)


def polled_container():
    collector = Collector()
    for _ in range(3):
        collector.collect(4)


def meet(together, connection):
    together.wait()
    connection.send("ready")


def one_after_the_other():
    """All must be there before the first is, which is started alone."""
    context = multiprocessing.get_context("fork")
    together = context.Barrier(2)
    for number in range(2):
        ours, theirs = context.Pipe()
        context.Process(target=meet, args=(together, theirs), name=f"meets-{number}", daemon=True).start()
        ready()
        ours.recv()


def started_afterwards():
    items = queue.Queue()
    ready()
    items.get()
    threading.Thread(target=lambda: None).start()
    threading.Thread(target=fill, args=(items,), name="late-filler").start()


def fill(items):
    items.put(1)


class Commands:
    """A thread of asyncio's own pool waits for a command after everything else is over."""

    def __init__(self):
        self.entered = queue.Queue()

    def enter(self, command):
        self.entered.put(command)

    async def listen(self):
        while True:
            await asyncio.to_thread(self.entered.get)


def thread_of_asyncio_left():
    async def main():
        listening = asyncio.create_task(Commands().listen())
        while not any(thread.name.startswith("asyncio_") for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
        listening.cancel()
        ready()

    asyncio.run(main())


def file_lock_of_a_thread():
    """Each thread has an object of its own for the same file."""
    from filelock import FileLock

    path, locked, loaded = str(FOLDER / "cache.lock"), threading.Event(), threading.Event()

    def warm_up():
        with FileLock(path):
            locked.set()
            loaded.wait()

    threading.Thread(target=warm_up, name="warm-up").start()
    locked.wait()
    ready()
    own = FileLock(path)
    with own:
        loaded.set()


def lock_deadlock():
    weights = Weights()
    threading.Thread(target=weights.push, name="pusher").start()
    threading.Thread(target=weights.pull, name="puller").start()


def closure_locks():
    first, second, met = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def one():
        with first:
            met.wait()
            with second:
                pass

    def two():
        with second:
            met.wait()
            ready()
            with first:
                pass

    thread = threading.Thread(target=one, name="one")
    thread.start()
    two()


def own_lock():
    lock = threading.Lock()
    lock.acquire()
    ready()
    lock.acquire()


class Rollouts:
    def __init__(self):
        self.finished = queue.Queue()

    def produce(self):
        raise SystemExit

    def fill(self):
        self.finished.put(1)

    def collect(self):
        return self.finished.get()


def empty_queue():
    """The thread that should have filled it has ended."""
    rollouts = Rollouts()
    producer = threading.Thread(target=rollouts.produce, name="rollout-producer")
    producer.start()
    producer.join()
    ready()
    rollouts.collect()


def busy_producer():
    """The thread that should fill the queue sleeps."""
    items = queue.Queue()

    def produce():
        while True:
            time.sleep(3600)
            items.put(1)

    threading.Thread(target=produce, name="slow-producer", daemon=True).start()
    ready()
    items.get()


def full_queue():
    items = queue.Queue(maxsize=2)
    for number in range(2):
        items.put(number)
    ready()
    items.put(3)


def serve(requests, results):
    while True:
        results.put(requests.get())


def dead_engine():
    context = multiprocessing.get_context("fork")
    requests, results = context.Queue(), context.Queue()
    engine = context.Process(target=serve, args=(requests, results), name="engine")
    engine.start()
    engine.kill()
    requests.put("prompt")
    ready()
    results.get()


def lost_future():
    class Pending:
        def __init__(self):
            self.answers = {}

        def answer(self, number):
            self.reply.set_result(number)

        async def ask(self):
            self.reply = asyncio.get_running_loop().create_future()
            return await self.reply

    async def main():
        asking = asyncio.create_task(Pending().ask(), name="ask-reward")
        await asyncio.sleep(0)
        ready()
        await asking

    asyncio.run(main())


def completed_elsewhere():
    """A thread fills an asyncio queue directly: the event loop of the one who waits is not woken."""

    async def consume(results):
        return await results.get()

    async def main():
        results = asyncio.Queue()
        threading.Timer(0.5, lambda: (results.put_nowait("text"), ready())).start()
        await asyncio.create_task(consume(results), name="consumer")

    asyncio.run(main())


def async_queue():
    async def consume(items):
        return await items.get()

    async def main():
        items = asyncio.Queue()
        consuming = asyncio.create_task(consume(items), name="consume")
        await asyncio.sleep(0)
        ready()
        await asyncio.gather(consuming)

    asyncio.run(main())


def async_locks():
    async def take(mine, other):
        async with mine:
            await asyncio.sleep(0.01)
            async with other:
                pass

    async def main():
        first, second = asyncio.Lock(), asyncio.Lock()
        both = [
            asyncio.create_task(take(first, second), name="left"),
            asyncio.create_task(take(second, first), name="right"),
        ]
        await asyncio.sleep(0.1)
        ready()
        await asyncio.gather(*both)

    asyncio.run(main())


def child_process():
    child = subprocess.Popen([sys.executable, "-c", "import time\ntime.sleep(3600)"])
    ready()
    child.wait()


def file_lock():
    """Another process holds the lock."""
    path = FOLDER / "weights.lock"
    code = (
        f"import fcntl, time\nf = open({str(path)!r}, 'w')\nfcntl.flock(f, 2)\nprint(1, flush=True)\ntime.sleep(3600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    holder.stdout.readline()
    file = path.open("w")
    ready()
    fcntl.flock(file, fcntl.LOCK_EX)


def silent_peer():
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    ready()
    client.recv(1)


def unset_event():
    loaded = threading.Event()
    ready()
    loaded.wait()


def lost_join():
    never = threading.Event()
    worker = threading.Thread(target=never.wait, name="evaluator")
    worker.start()
    ready()
    worker.join()


def executor():
    def work():
        time.sleep(3600)

    pool = ThreadPoolExecutor(1, thread_name_prefix="scorer")
    scored = pool.submit(work)
    ready()
    scored.result()


def broken_barrier():
    """One of two parties has ended."""
    together = threading.Barrier(2)
    gone = threading.Thread(target=int, name="second-party")
    gone.start()
    gone.join()
    ready()
    together.wait()


class Meeting:
    """Two should arrive; one of them waits for a lock that the other has taken there with it."""

    def __init__(self):
        self.together, self.lock, self.taken = threading.Barrier(2), threading.Lock(), threading.Event()

    def trainer(self):
        with self.lock:
            self.taken.set()
            self.together.wait()

    def evaluator(self):
        self.taken.wait()
        ready()
        with self.lock:
            pass
        self.together.wait()


def barrier_and_lock():
    meeting = Meeting()
    for party in (meeting.trainer, meeting.evaluator):
        threading.Thread(target=party, name=party.__name__).start()


def lost_semaphore():
    """Who had it has ended without releasing it."""
    slots = threading.Semaphore(1)

    def ask(last):
        slots.acquire()
        if last:
            slots.release()

    first = threading.Thread(target=ask, args=(False,), name="client-0")
    first.start()
    first.join()
    ready()
    ask(True)


def both_read():
    """What the parent writes is never flushed."""
    serve = "import sys\nfor line in sys.stdin: print(line)"
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", serve], **options) as sandbox:
        sandbox.stdin.write("1 + 1\n")
        ready()
        sandbox.stdout.readline()


def standard_input():
    ready()
    input()


def sleeps():
    ready()
    while True:
        time.sleep(1)


def computes():
    ready()
    while True:
        sum(range(1000))


def raised_with_thread():
    """The main program has raised; another thread keeps the process alive."""
    threading.Thread(target=threading.Event().wait, name="heartbeat").start()
    ready()
    raise ValueError("reward is not a number")


def import_deadlock():
    """Two modules that import each other in two threads."""
    for name, other in (("left_half", "right_half"), ("right_half", "left_half")):
        (FOLDER / f"{name}.py").write_text(
            f"import time\ntime.sleep(0.5)\nimport threading\nthreading.Event().wait()\nimport {other}"
        )
    sys.path.insert(0, str(FOLDER))
    first = threading.Thread(target=__import__, args=("left_half",), name="first-import")
    first.start()
    time.sleep(0.2)
    ready()
    import left_half  # noqa: F401


class Slow:
    """A dataset whose workers never answer."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        (FOLDER / f"worker{os.getpid()}").write_text("")
        time.sleep(3600)


def data_loader():
    """A worker of a data loader is killed while it loads, and nobody notices."""
    import signal

    from torch.utils.data import DataLoader, dataloader

    # torch itself looks for dead workers every few seconds.
    dataloader._MultiProcessingDataLoaderIter._try_get_data.__defaults__ = (3600.0,)
    loader = iter(DataLoader(Slow(), num_workers=1))
    while not (workers := list(FOLDER.glob("worker*"))):
        time.sleep(0.01)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.kill(int(workers[0].name.removeprefix("worker")), signal.SIGKILL)
    ready()
    while True:
        next(loader)


class Reads:
    """A dataset whose second item waits for somebody to write it."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 1:
            (FOLDER / "item.fifo").read_bytes()
        return index


def next_batch():
    """The worker that has the next batch is stuck; the other one waits for its next order."""
    from torch.utils.data import DataLoader

    os.mkfifo(FOLDER / "item.fifo")
    loader = iter(DataLoader(Reads(), num_workers=2, batch_size=None, multiprocessing_context="fork"))
    next(loader)
    ready()
    next(loader)


def process_locks():
    """Two processes that take two locks in different orders."""
    context = multiprocessing.get_context("fork")
    params, grads, met = context.Lock(), context.Lock(), context.Barrier(2)

    def update():
        with grads:
            met.wait()
            with params:
                pass

    context.Process(target=update, name="updater").start()
    with params:
        met.wait()
        ready()
        with grads:
            pass


def blocked_loop():
    """A task that sleeps without giving the loop back."""

    async def load():
        ready()
        time.sleep(3600)

    async def main():
        loading = asyncio.create_task(load(), name="load")
        await loading

    asyncio.run(main())


class Engine:
    """A thread that fails and leaves those who wait for its answers."""

    def __init__(self):
        self.requests, self.answers = queue.Queue(), queue.Queue()

    def loop(self):
        self.requests.get()
        raise RuntimeError("out of pages")

    def generate(self):
        self.requests.put("prompt")
        return self.answers.get()


def dead_thread():
    engine = Engine()
    loop = threading.Thread(target=engine.loop, name="engine-loop", daemon=True)
    loop.start()
    engine.requests.put("first")
    loop.join()
    ready()
    engine.generate()


def polls_for_file():
    checkpoint = "/nowhere/step_4"
    ready()
    while not os.path.exists(checkpoint):  # noqa: PTH110 - as training scripts have it
        time.sleep(1)


def async_semaphore():
    """The task that has the only slot waits for something else."""

    async def rollout(slots, reply):
        async with slots:
            await reply

    async def main():
        slots, loop = asyncio.Semaphore(1), asyncio.get_running_loop()
        tasks = [asyncio.create_task(rollout(slots, loop.create_future()), name=f"rollout-{n}") for n in range(2)]
        loop.call_soon(ready)
        await tasks[1]

    asyncio.run(main())


def pooled_library_call():
    """What was submitted is a function of a library."""
    with ThreadPoolExecutor(1, thread_name_prefix="judge") as pool:
        judged = pool.submit(threading.Event().wait)
        ready()
        judged.result()


def killed_in_pool(number):
    if number == 1:
        os.kill(os.getpid(), 9)
    return number


def killed_pool_worker():
    """The pool starts another worker, and nobody learns that one item was lost."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        ready()
        pool.map(killed_in_pool, range(4), chunksize=1)


def process_event():
    """The process that should say that it is ready has ended."""
    context = multiprocessing.get_context("fork")
    loaded = context.Event()
    engine = context.Process(target=sys.exit, args=(3,), name="engine")
    engine.start()
    engine.join()
    ready()
    loaded.wait()


def named_pipe():
    os.mkfifo(FOLDER / "weights.fifo")
    ready()
    (FOLDER / "weights.fifo").read_bytes()


def loop_in_itself():
    """A result of the event loop is waited for in its own thread."""

    async def score():
        return 1

    async def main():
        scored = asyncio.run_coroutine_threadsafe(score(), asyncio.get_running_loop())
        ready()
        scored.result()

    asyncio.run(main())


def blocked_client_loop():
    """A client with an event loop in a thread of its own calls its blocking method from that loop."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="client-loop", daemon=True).start()

    async def post():
        return 1

    async def generate():
        ready()
        return asyncio.run_coroutine_threadsafe(post(), loop).result()

    asyncio.run_coroutine_threadsafe(generate(), loop).result()


def _ask(port):
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /generate HTTP/1.1\r\nhost: engine\r\n\r\n")
            ready()
            client.recv(100)


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def served_stream():
    """The task of a server in another process that has the connection waits itself."""
    port = _free_port()

    async def answer(reader, writer):
        loaded = asyncio.Event()
        await loaded.wait()

    async def serve():
        server = await asyncio.start_server(answer, "127.0.0.1", port)
        await server.serve_forever()

    if os.fork() == 0:
        asyncio.run(serve())
    _ask(port)


def served_request():
    """The same under a server whose event loop is written in C and tells no connections."""
    port = _free_port()

    async def application(scope, receive, send):
        if scope["type"] == "http":
            loaded = asyncio.Event()
            await loaded.wait()

    if os.fork() == 0:
        import uvicorn

        uvicorn.run(application, port=port, log_level="error")
    _ask(port)


def hung_server():
    """An async client of a server in another process, whose thread for the request sleeps."""

    def answer(connection):
        connection.recv(100)
        time.sleep(3600)

    server = socket.create_server(("127.0.0.1", 0))
    if os.fork() == 0:
        while True:
            threading.Thread(target=answer, args=(server.accept()[0],), name="request").start()
    address = server.getsockname()
    server.close()

    async def generate():
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /generate\n")
        ready()
        await reader.readline()

    asyncio.run(generate())


def forked_with_lock():
    """A thread holds a lock while the process forks; the child's copy of it is never released."""
    lock, taken = threading.Lock(), threading.Event()

    def hold():
        with lock:
            taken.set()
            time.sleep(3600)

    def tokenize():
        with lock:
            pass

    threading.Thread(target=hold, name="log-writer", daemon=True).start()
    taken.wait()
    worker = multiprocessing.get_context("fork").Process(target=tokenize, name="tokenizer")
    worker.start()
    ready()
    worker.join()


def silent_pipe():
    """A named pipe whose writer does something else."""
    path = FOLDER / "silent_pipe_of_weights"
    os.mkfifo(path)

    def upload():
        with open(path, "wb"):
            time.sleep(3600)

    worker = multiprocessing.get_context("fork").Process(target=upload, name="uploader")
    worker.start()
    with open(path, "rb") as pipe:
        ready()
        pipe.read()


def loop_waits_for_its_task():
    """A call that blocks, in the event loop whose task would end it."""
    results = queue.Queue()

    async def produce():
        await asyncio.sleep(0.1)
        results.put(1)

    async def train():
        producing = asyncio.create_task(produce(), name="producer")
        await asyncio.sleep(0)
        ready()
        results.get()
        await producing

    asyncio.run(train())


def retries():
    """A server that always says that it is busy."""

    def update_weights():
        raise ConnectionError("503 Service Unavailable")

    while True:
        try:
            return update_weights()
        except ConnectionError as error:
            status = str(error)[:3]
        ready()
        time.sleep(3600 if status else 0)


def locked_database():
    """Another process has locked the file, and a library in C sleeps and tries again."""
    import sqlite3

    path = FOLDER / "runs.db"
    code = (
        f"import sqlite3, time\nc = sqlite3.connect({str(path)!r}, isolation_level=None)\n"
        "c.execute('create table t(x)')\nc.execute('begin exclusive')\nprint(1, flush=True)\ntime.sleep(3600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    holder.stdout.readline()
    connection = sqlite3.connect(path, timeout=3600)
    ready()
    connection.execute("insert into t values (1)")


def abandoned_socket():
    """The child at the other end of a local socket has ended; its end is still open here."""
    mine, theirs = socket.socketpair()
    if os.fork() == 0:
        os._exit(theirs.recv(1)[0])
    mine.sendall(b"\x09")
    ready()
    mine.recv(1)


def failed_task():
    """The task that should mark the items as done has raised."""

    async def work(items):
        raise RuntimeError(f"reward of item {await items.get()} is missing")

    async def main():
        items = asyncio.Queue()
        items.put_nowait(7)
        working = asyncio.create_task(work(items), name="reward-worker")
        await asyncio.wait([working])
        ready()
        await items.join()

    asyncio.run(main())


def stale_lock_file():
    """A file that a killed process has left, as compilers' caches and checkpoint writers use them."""
    with subprocess.Popen(["true"]) as writer:
        pass
    lock = FOLDER / "kernel_cache.lock"
    lock.write_text(f"{writer.pid}\n")
    ready()
    while lock.exists():
        time.sleep(0.1)


def cancelled_producer():
    """The task that would set the event was cancelled, and nothing else sets it."""

    async def main():
        loaded = asyncio.Event()

        async def load():
            await asyncio.sleep(3600)
            loaded.set()

        loading = asyncio.create_task(load(), name="weights-loader")
        await asyncio.sleep(0)
        loading.cancel()
        await asyncio.wait([loading])
        ready()
        await loaded.wait()

    asyncio.run(main())


async def fetch(number):
    if number == 0:
        await asyncio.get_running_loop().create_future()


def task_group():
    async def main():
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(fetch(number), name=f"fetch-{number}")
            ready()

    asyncio.run(main())


def managed_queue():
    with multiprocessing.get_context("fork").Manager() as manager:
        scores = manager.Queue()
        ready()
        scores.get()


def _take_prompt(name, prompts):
    (FOLDER / f"takes_{name}").write_text("")
    prompts.get()


def killed_reader():
    """A worker is killed while it waits for an item; it keeps the lock with which workers take turns."""
    context = multiprocessing.get_context("fork")
    prompts = context.Queue()
    first, second = (context.Process(target=_take_prompt, args=(n, prompts), name=f"worker-{n}") for n in (1, 2))
    first.start()
    while prompts._rlock.acquire(block=False):
        prompts._rlock.release()
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGKILL)
    second.start()
    while not (FOLDER / "takes_2").exists():
        time.sleep(0.01)
    prompts.put("a")
    ready()
    second.join()


def _learn(lock, samples):
    with lock:
        ready()
        samples.get()


def _act(lock, samples):
    with lock:
        samples.put(1)


def managed_circle():
    manager = multiprocessing.Manager()
    lock, samples = manager.Lock(), manager.Queue()
    learner = multiprocessing.Process(target=_learn, args=(lock, samples))
    learner.start()
    while not (FOLDER / sys.argv[1]).exists():
        time.sleep(0.01)
    multiprocessing.Process(target=_act, args=(lock, samples)).start()
    learner.join()


def _wait_for_go(go, done):
    ready()
    go.wait()
    done.set()


def _wait_for_done(go, done):
    done.wait()
    go.set()


def shared_events():
    go, done = multiprocessing.Event(), multiprocessing.Event()
    both = [multiprocessing.Process(target=each, args=(go, done)) for each in (_wait_for_go, _wait_for_done)]
    for each in both:
        each.start()
    both[0].join()


def _give(turn, free):
    ready()
    with turn:
        turn.wait()
    free.release()


def _take(turn, free):
    free.acquire()
    with turn:
        turn.notify_all()


def shared_signal():
    """A semaphore that is released by another process, not by who took it."""
    turn, free = multiprocessing.Condition(), multiprocessing.Semaphore(0)
    both = [multiprocessing.Process(target=each, args=(turn, free)) for each in (_give, _take)]
    for each in both:
        each.start()
    both[0].join()


def _grade():
    ready()
    subprocess.run(["sleep", "3600"], check=False)


def pooled_in_loop():
    async def score():
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            await asyncio.get_running_loop().run_in_executor(pool, _grade)

    async def main():
        await asyncio.create_task(score())

    asyncio.run(main())


RELAY = """
import asyncio, threading

class Queue:
    def __init__(self):
        self._queue, self._maxsize = [], 0
        self._filled, self._awaited = threading.Condition(), asyncio.Condition()
        self._for_threads, self._for_tasks = ThreadsQueue(self), TasksQueue(self)

    @property
    def threads(self):
        return self._for_threads

    @property
    def tasks(self):
        return self._for_tasks

class ThreadsQueue:
    def __init__(self, parent):
        self._parent = parent

    def get(self):
        with self._parent._filled:
            self._parent._filled.wait()

class TasksQueue:
    def __init__(self, parent):
        self._parent = parent

    async def get(self):
        async with self._parent._awaited:
            await self._parent._awaited.wait()

    async def put(self, item):
        pass
"""


def library_queue():
    """A queue of another library between a thread and a task that wait for each other."""
    package = FOLDER / "site-packages" / "relay"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(RELAY)
    sys.path.insert(0, str(package.parent))
    import relay

    async def main():
        samples, weights = relay.Queue(), relay.Queue()

        def train():
            while True:
                samples.threads.get()
                weights.threads.put(1)

        async def rollout():
            await weights.tasks.get()
            await samples.tasks.put(1)

        threading.Thread(target=train, name="trainer").start()
        ready()
        await rollout()

    asyncio.run(main())


def interpreter_kept():
    libc, begun = ctypes.PyDLL(None), threading.Event()

    def tokenize():
        begun.wait()
        libc.sleep(3600)

    threading.Thread(target=tokenize, name="tokenizer").start()
    ready()
    begun.set()
    for _ in iter(int, 1):
        pass


def load_checkpoint():
    time.sleep(3600)


def slow_rank():
    """For torchrun: the last rank is elsewhere while the others reduce."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    (FOLDER / f"slow_rank{dist.get_rank()}").write_text("")
    if dist.get_rank() == dist.get_world_size() - 1:
        load_checkpoint()
    dist.all_reduce(torch.ones(2))


def remote_call():
    """A call of gRPC without a deadline, whose handler waits for weights that nobody loads."""
    port = _free_port()
    loaded = threading.Event()

    def generate(request, context):
        loaded.wait()
        return request

    if os.fork() == 0:
        import grpc

        handler = grpc.unary_unary_rpc_method_handler(generate)
        service = grpc.method_handlers_generic_handler("engine.Engine", {"Generate": handler})
        server = grpc.server(ThreadPoolExecutor(1))
        server.add_generic_rpc_handlers((service,))
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        server.wait_for_termination()
    import grpc

    ask = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/engine.Engine/Generate")
    ready()
    ask(b"prompt", wait_for_ready=True)


def begun_receive():
    """For torchrun: the first rank waits for a transfer that it began, the last one is elsewhere."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    (FOLDER / f"begun_receive{dist.get_rank()}").write_text("")
    if dist.get_rank() == 0:
        weights = dist.irecv(torch.ones(2), src=1)
        weights.wait()
    dist.broadcast(torch.ones(2), src=0)


def _join_at(port, rank):
    import torch.distributed as dist

    (FOLDER / f"ports_apart{rank}").write_text("")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)


def ports_apart():
    """Each rank is told another port."""
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_join_at, args=(_free_port(), rank), name=f"rank-{rank}") for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()


def roots_apart():
    """For torchrun: each rank takes itself for the one that sends to all."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    (FOLDER / f"roots_apart{dist.get_rank()}").write_text("")
    for step in range(3):
        dist.broadcast(torch.full((1 << 16,), float(step)), src=dist.get_rank())


def skipped_collective():
    """For torchrun: one rank passes by what the other one waits in."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    (FOLDER / f"skipped_collective{dist.get_rank()}").write_text("")
    tokens = 8 * dist.get_rank()
    if tokens > 0:
        dist.all_reduce(torch.ones(2))
    dist.all_gather_object([None, None], tokens)


def raised_rank():
    """For torchrun: the last rank raises, and a thread of its own keeps its process alive."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    (FOLDER / f"raised_rank{dist.get_rank()}").write_text("")
    if dist.get_rank() == dist.get_world_size() - 1:
        threading.Thread(target=threading.Event().wait, name="heartbeat").start()
        raise ValueError("the reward is not a number")
    dist.all_reduce(torch.ones(2))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
