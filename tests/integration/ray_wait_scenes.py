"""A Ray job in which many things wait for ever, each in actors of its own. Prints READY when all of them do."""

import asyncio
import json
import logging
import multiprocessing
import os
import queue as queues
import sys
import tempfile
import threading
import time
from pathlib import Path

import ray
from ray.util.queue import Queue


@ray.remote(num_cpus=0)
class Partner:
    """One of two actors that call each other and wait for the answer."""

    def meet(self, other, mine, theirs):
        self.other, self.mine, self.theirs = other, Path(mine), Path(theirs)

    def call(self):
        # Both are in here before one of them is asked.
        self.mine.touch()
        while not self.theirs.exists():
            time.sleep(0.01)
        return ray.get(self.other.answer.remote())

    def answer(self):
        return 1


@ray.remote(num_cpus=0)
class Consumer:
    def consume(self, queue):
        return queue.get()


@ray.remote(num_cpus=0)
class Producer:
    """Fills a queue, if it lives."""

    def produce(self, queue):
        os._exit(3)

    def pid(self):
        return os.getpid()


@ray.remote(num_cpus=0)
class Router:
    """Puts an item into another queue of its table than the one that is waited for."""

    def __init__(self, queues):
        self.queues = queues

    def route(self, key):
        self.queues[key.strip()].put(1)


@ray.remote(num_cpus=0, num_gpus=8)
class Huge:
    def ping(self):
        return 1


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Mortal:
    """Its process ends in its constructor, again and again."""

    def __init__(self):
        os._exit(7)

    def ping(self):
        return 1


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Loading:
    """Its process ends once, and its constructor does not end when Ray starts it again."""

    def __init__(self, job):
        self.seen = Path(tempfile.gettempdir(), f"rldbg-loading-{job}")
        if self.seen.exists():
            self.seen.unlink()
            threading.Event().wait()

    def ping(self):
        self.seen.touch()
        os._exit(1)


@ray.remote(num_cpus=0)
class Caller:
    """Waits for a method of another actor."""

    def wait_for(self, other, method):
        return ray.get(getattr(other, method).remote())

    def wait_for_ready(self, group):
        return ray.get(group[0].ready())


def serve(requests, results):
    while True:
        results.put(requests.get())


@ray.remote(num_cpus=0)
class Generator:
    """An inference engine in a process of its own, behind queues; the engine dies."""

    def __init__(self):
        context = multiprocessing.get_context("fork")
        self.requests, self.results = context.Queue(), context.Queue()
        self.engine = context.Process(target=serve, args=(self.requests, self.results), name="engine")
        self.engine.start()

    def kill_engine(self):
        self.engine.kill()
        return self.engine.pid

    def generate(self):
        self.requests.put("prompt")
        return self.results.get()


@ray.remote(num_cpus=0)
class RewardModel:
    async def score(self):
        self.verdict = asyncio.get_running_loop().create_future()
        return await self.verdict


@ray.remote(num_cpus=0)
class Controller:
    async def collect(self, reward):
        return await asyncio.gather(reward.score.remote())


@ray.remote(num_cpus=0)
class Locks:
    def __init__(self):
        self.weights, self.cache = threading.Lock(), threading.Lock()

    def sync(self):
        met = threading.Barrier(2)
        other = threading.Thread(target=self.flush, args=(met,), name="flusher")
        other.start()
        with self.weights:
            met.wait()
            with self.cache:
                pass

    def flush(self, met):
        with self.cache:
            met.wait()
            with self.weights:
                pass


@ray.remote(num_cpus=0)
class Learner:
    """Waits for a result whose argument it would have to make itself."""

    def fit(self, me, judge):
        weights = me.export.remote()
        samples = judge.sample.remote(weights)
        return ray.get(judge.grade.remote(samples))

    def export(self):
        return 1


@ray.remote(num_cpus=0)
class Grader:
    def sample(self, weights):
        return weights

    def grade(self, samples):
        return samples


@ray.remote(num_cpus=0)
class Rollouts:
    """One coroutine awaits with a lock of threads, which another one of the same event loop wants."""

    def __init__(self):
        self.lock = threading.Lock()

    async def process(self):
        with self.lock:
            await asyncio.sleep(1)

    async def reset(self):
        # Ray may start the second call of an async actor before the first.
        while not self.lock.locked():
            await asyncio.sleep(0.01)
        with self.lock:
            return 1


@ray.remote(num_cpus=0)
class Refitter:
    """A thread of it fails, logs that, and takes the next request, while a call waits for its answer."""

    def __init__(self):
        self.wanted, self.shards = queues.Queue(), queues.Queue()
        threading.Thread(target=self.gather, name="gather-shards", daemon=True).start()

    def gather(self):
        while True:
            name = self.wanted.get()
            try:
                self.shards.put({"embed": 1}[name])
            except KeyError:
                logging.getLogger("refit").exception("a shard is missing")

    def refit(self):
        self.wanted.put("lm_head")
        return self.shards.get()


def main():
    options = json.loads(os.environ["SCENE_RAY"])
    context = ray.init(**options)
    address = context.dashboard_url or ray.get_runtime_context().gcs_address
    first, second = Partner.options(name="first").remote(), Partner.options(name="second").remote()
    begun = [f"{options['_temp_dir']}/{name}-is-called" for name in ("first", "second")]
    ray.get([first.meet.remote(second, *begun), second.meet.remote(first, *reversed(begun))])
    waiting = [first.call.remote(), second.call.remote()]

    queue, abandoned = Queue(actor_options={"num_cpus": 0}), Queue(actor_options={"num_cpus": 0})
    waiting.append(Consumer.options(name="consumer").remote().consume.remote(queue))
    queues = {"policy": queue, "critic": Queue(actor_options={"num_cpus": 0})}
    router = Router.options(name="router").remote(queues)
    ray.get(router.route.remote("critic "))
    producer = Producer.options(name="producer").remote()
    ray.get(producer.pid.remote())
    producer.produce.remote(abandoned)
    waiting.append(Consumer.options(name="abandoned").remote().consume.remote(abandoned))

    waiting.append(Caller.options(name="waits_for_huge").remote().wait_for.remote(Huge.remote(), "ping"))
    group = ray.util.placement_group([{"CPU": 500}])
    waiting.append(Caller.options(name="waits_for_group").remote().wait_for_ready.remote([group]))

    apart = ray.util.placement_group([{"CPU": 0.1}] * 2, strategy="STRICT_SPREAD", name="apart")
    waiting.append(Caller.options(name="waits_for_nodes").remote().wait_for_ready.remote([apart]))
    mortal = Mortal.options(name="mortal").remote()
    waiting.append(Caller.options(name="waits_for_mortal").remote().wait_for.remote(mortal, "ping"))

    loading = Loading.options(name="loading").remote(str(os.getpid()))
    waiting.append(Caller.options(name="waits_for_loading").remote().wait_for.remote(loading, "ping"))

    generator = Generator.options(name="generator").remote()
    ray.get(generator.kill_engine.remote())
    waiting.append(Caller.options(name="trainer").remote().wait_for.remote(generator, "generate"))
    waiting.append(Caller.options(name="rollout").remote().wait_for.remote(RewardModel.remote(), "score"))
    judge = RewardModel.options(name="judge").remote()
    waiting.append(Controller.options(name="controller").remote().collect.remote(judge))
    waiting.append(Locks.options(name="locks").remote().sync.remote())
    learner, grader = Learner.options(name="learner").remote(), Grader.options(name="grader").remote()
    waiting.append(learner.fit.remote(learner, grader))
    rollouts = Rollouts.options(name="rollouts").remote()
    waiting += [rollouts.process.remote(), rollouts.reset.remote()]
    waiting.append(Refitter.options(name="refitter").remote().refit.remote())
    # Ray reports the state of tasks once per second.
    time.sleep(3)
    print("READY", address, flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    ray.get(waiting)


if __name__ == "__main__":
    main()
