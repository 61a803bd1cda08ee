"""What `rldbg run --watch` costs a training: seconds of the training's own threads in recording, held against the step.

The default recipe in one process, recorded as `--watch` records it, with a watcher beside it. Measured in the same run:
all that the trainer does to record (columns, copies, orders), the part of it that looks for orders, and the step. The
limit is a training that records nothing, 0 %; the goal is at most 1 %.

Printed beside it: the processor time of the recorder's own threads, which a trainer loses as well while it is busy with
Python and not with a GPU, a network or a file (one interpreter runs one thread at a time), and that of the watcher, a
process of the lowest priority.

    python benchmarks/bench_watch.py [--quick] [KEY=VALUE ...]    # values of the recipe, such as a larger model
"""

import argparse
import functools
import itertools
import json
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rldbg.core import Run
from rldbg.recording.recorder.orders import Orders
from rldbg.trainer import Reporting, read_recipe, train
from rldbg.trainer.observer import Observer
from rldbg.tripwire import WATCHED_KINDS, WatcherProcess, WatchSettings

STEPS, WARM_STEPS = 24, 4
OVERRIDES = ("++cluster.in_process=true", "policy.ranks=1", "warm_start.max_steps=5", "++debug.enable_data_dump=true")
# As small as it gets.
QUICK = ("data.prompts_per_step=4", "steps=8")


class Clock:
    """Seconds that the calling threads spend in the methods it is put around; calls inside others count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def around(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(*args, **kwargs)
            self._inside, started = True, time.thread_time()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - started
                self._inside = False

        setattr(owner, name, timed)


def recorder_threads_s() -> float:
    """Processor time so far of the threads that put records together and write them."""
    own = [thread for thread in threading.enumerate() if "rldbg-" in thread.name]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0)) for thread in own)


def measure(folder: Path, *, quick: bool, overrides: Sequence[str] = ()) -> dict[str, float]:
    recorder, orders = Clock(), Clock()
    for name, value in vars(Observer).items():
        if callable(value) and not name.startswith("_"):
            recorder.around(Observer, name)
    orders.around(Orders, "obey")
    marks = [(0.0, 0.0, time.thread_time(), 0.0)]

    def ended(_step: int, _metrics: dict[str, float]) -> None:
        marks.append((recorder.seconds, orders.seconds, time.thread_time(), recorder_threads_s()))

    kinds = [f"++debug.dump_options.{kind}=true" for kind in WATCHED_KINDS if not kind.endswith("metrics")]
    recipe = read_recipe(
        "arithmetic",
        [*OVERRIDES, *kinds, "++debug.keep_last=8", f"steps={STEPS}", *(QUICK if quick else ()), *overrides],
    )
    process = WatcherProcess(folder / "recording", WatchSettings(), log=folder / "watch.log")
    train(recipe, Run.create(name="bench", path=folder), reporting=Reporting(on_step=ended))
    process.close()
    watcher = resource.getrusage(resource.RUSAGE_CHILDREN)
    steps = [[now - then for then, now in zip(*pair, strict=True)] for pair in itertools.pairwise(marks)]
    warm = steps[WARM_STEPS:]

    def percent(column: int) -> float:
        return round(100 * statistics.median(step[column] / step[2] for step in warm), 3)

    return {
        "step_s": round(statistics.median(step[2] for step in warm), 4),
        "recorder_percent": percent(0),
        "orders_percent": percent(1),
        "recorder_threads_percent": percent(3),
        "watcher_s_per_step": round((watcher.ru_utime + watcher.ru_stime) / len(steps), 4),
        "limit_percent": 0.0,
        "goal_percent": 1.0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="values of the recipe")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), quick=options.quick, overrides=options.overrides)
    print(json.dumps(result))
    return 0 if options.quick or result["recorder_percent"] <= result["goal_percent"] else 1


if __name__ == "__main__":
    sys.exit(main())
