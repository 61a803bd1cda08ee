"""Programs in which work fails, is logged or printed, and is waited for: `python said_scenes.py SCENE FOLDER` writes
FOLDER/SCENE when it is about to wait."""

import asyncio
import logging
import multiprocessing
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path

FOLDER = Path(sys.argv[2])
logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
logger = logging.getLogger("engine")


def ready():
    (FOLDER / sys.argv[1]).write_text(str(os.getpid()))


def score(text):
    return int(text)


class Engine:
    """Takes requests and gives results, but for the one that fails."""

    def __init__(self, say):
        self.requests, self.results, self.say = queue.Queue(), queue.Queue(), say

    def serve(self):
        while True:
            text = self.requests.get()
            try:
                self.results.put(score(text))
            except ValueError as error:
                self.say(error)


def _ask(say):
    engine = Engine(say)
    threading.Thread(target=engine.serve, name="engine-loop", daemon=True).start()
    engine.requests.put("4")
    assert engine.results.get() == 4
    engine.requests.put("four")
    ready()
    engine.results.get()


def logged_with_traceback():
    _ask(lambda _error: logger.exception("a request failed"))


def logged_as_text():
    _ask(lambda error: logger.warning("a request failed: %s", error))


def printed():
    _ask(lambda _error: traceback.print_exc())


def printed_as_text():
    _ask(lambda _error: print("a request failed:", traceback.format_exc(), flush=True))


def only_logged():
    """No exception: the program itself says that it gives up."""

    def refuse(error):
        del error
        threading.Thread(target=logger.error, args=("the request is dropped",), name="logger").start()

    _ask(refuse)


def said_by_a_task():
    async def serve(requests, results):
        while True:
            text = await requests.get()
            try:
                await results.put(score(text))
            except ValueError:
                logger.exception("a request failed")

    async def main():
        requests, results = asyncio.Queue(), asyncio.Queue()
        serving = asyncio.create_task(serve(requests, results), name="engine-task")
        await requests.put("four")
        ready()
        await results.get()
        serving.cancel()

    asyncio.run(main())


def _worker(requests, results):
    Engine.serve(_Shared(requests, results))


class _Shared:
    def __init__(self, requests, results):
        self.requests, self.results = requests, results

    def say(self, error):
        logger.error("a request failed", exc_info=error)


def said_by_a_child():
    """Both processes print into one file."""
    requests, results = multiprocessing.Queue(), multiprocessing.Queue()
    multiprocessing.Process(target=_worker, args=(requests, results), name="engine", daemon=True).start()
    requests.put("four")
    ready()
    results.get()


def _die_of(parent, requests):
    try:
        score(requests.get())
    except ValueError:
        print("the scheduler failed:", traceback.format_exc(), flush=True)
        os.kill(parent, signal.SIGQUIT)


def _control(requests, results):
    scheduler = multiprocessing.Process(target=_die_of, args=(os.getpid(), requests), name="scheduler")
    scheduler.start()
    time.sleep(3600)
    results.put(1)


def said_before_it_ended():
    """The child of a child fails, ends its parent and itself."""
    requests, results = multiprocessing.Queue(), multiprocessing.Queue()
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    controller = multiprocessing.Process(target=_control, args=(requests, results), name="controller")
    controller.start()
    requests.put("four")
    ready()
    results.get()


def _save(wanted, saved):
    saved.put(score(wanted.get()))


def raised_by_a_child():
    """Python itself prints what has ended the child."""
    wanted, saved = multiprocessing.Queue(), multiprocessing.Queue()
    multiprocessing.Process(target=_save, args=(wanted, saved), name="saver").start()
    wanted.put("four")
    ready()
    saved.get()


def healthy():
    """Fails often, says so, and goes on."""
    engine = Engine(lambda _error: logger.exception("a request failed"))
    threading.Thread(target=engine.serve, name="engine-loop", daemon=True).start()
    ready()
    for number in range(1 << 30):
        engine.requests.put("four")
        engine.requests.put("4")
        engine.results.get()
        sum(range(20_000 + number % 7))


class Core:
    """One end of two connections: what comes is put into a queue, which another thread works through."""

    def __init__(self, inputs, outputs):
        self.inputs, self.outputs, self.work = inputs, outputs, queue.Queue()
        threading.Thread(target=self.take_requests, name="take-requests", daemon=True).start()

    def take_requests(self):
        while True:
            data = self.inputs.recv(64)
            try:
                self.work.put(score(data.decode()))
            except ValueError:
                logger.exception("a request failed")

    def run(self):
        while True:
            self.outputs.sendall(str(self.work.get()).encode())


def _run_core(inputs, outputs):
    Core(inputs, outputs).run()


class Client:
    def __init__(self, requests, answers):
        self.requests, self.answers, self.results = requests, answers, {}

    def take_answers(self):
        while True:
            answer = self.answers.recv(64)
            self.loop.call_soon_threadsafe(self.results.pop(answer.decode()).put_nowait, answer)

    async def ask(self, text):
        result = self.results[text] = asyncio.Queue()
        self.requests.sendall(text.encode())
        return await result.get()

    async def ask_all(self):
        self.loop = asyncio.get_running_loop()
        threading.Thread(target=self.take_answers, name="take-answers", daemon=True).start()
        await self.ask("4")
        ready()
        await asyncio.gather(asyncio.create_task(self.ask("four"), name="ask-four"))


def idle_loops():
    """At each end of two connections a thread waits for what the other end would send only on request."""
    (requests, inputs), (answers, outputs) = socket.socketpair(), socket.socketpair()
    core = multiprocessing.get_context("fork").Process(
        target=_run_core, args=(inputs, outputs), name="core", daemon=True
    )
    core.start()
    inputs.close()
    outputs.close()
    asyncio.run(Client(requests, answers).ask_all())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
