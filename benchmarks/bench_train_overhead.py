"""What recording costs the default recipe: all kinds, every step, held against the same steps without recording.

The recipe as users run it: two policy ranks, rollout workers and an inference server on one Ray cluster. Two trainings
are alive at once and take turns of a few steps, so that both see the same machine. Prints both, the limit (no recording
is 0 %) and the overhead; the goal is at most 5 %.

    python benchmarks/bench_train_overhead.py [--turns 10]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rldbg.core import Run
from rldbg.trainer import Reporting, read_recipe, train
from rldbg.trainer.cluster import Cluster
from rldbg.trainer.settings import ClusterSettings

RECIPE = Path(__file__).parents[1] / "recipes" / "arithmetic.yaml"
KINDS = ("trajectory", "old_log_probs", "batch_inputs", "forward_data", "loss", "is_loss_debug", "param", "gradient")
STEPS_A_TURN = 4
WARM_TURNS = 1


class Side:
    """A training in a process of its own that takes a turn whenever it is told to."""

    def __init__(self, folder: Path, address: str, *, recording: bool) -> None:
        command = [sys.executable, __file__, "--trainer", str(folder), "--address", address]
        self._process = subprocess.Popen(
            [*command, *(["--recording"] if recording else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self) -> float:
        """Seconds a step, over one turn."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a training ended with {self._process.wait()}")
        return float(json.loads(line))

    def end(self) -> None:
        self._process.communicate()


def take_turns(folder: Path, address: str, *, recording: bool, turns: int) -> None:
    """A training that waits for its turn, then says how long its steps took."""
    switches = [f"++debug.dump_options.{kind}=true" for kind in KINDS] if recording else []
    overrides = ["warm_start.max_steps=5", f"++cluster.address={address}", f"steps={turns * STEPS_A_TURN}"]
    loaded = read_recipe(RECIPE, [*overrides, f"++debug.enable_data_dump={str(recording).lower()}", *switches])
    seconds: list[float] = []
    sys.stdin.readline()

    def on_step(step: int, metrics: dict[str, float]) -> None:
        seconds.append(metrics["time/step"])
        if len(seconds) == STEPS_A_TURN:
            print(json.dumps(statistics.mean(seconds)), flush=True)
            seconds.clear()
            if step + 1 < turns * STEPS_A_TURN:
                sys.stdin.readline()

    train(loaded, Run.create(name="bench", path=folder), reporting=Reporting(on_step=on_step))


def measure(turns: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, Cluster(ClusterSettings(), name="bench") as cluster:
        address = cluster.facts["address"]
        sides = {
            name: Side(Path(folder) / name, address, recording=name == "recorded") for name in ("plain", "recorded")
        }
        times: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(turns):
            for name in list(sides)[:: 1 if number % 2 else -1]:
                times[name].append(sides[name].turn())
        for side in sides.values():
            side.end()
    plain, recorded = times["plain"][WARM_TURNS:], times["recorded"][WARM_TURNS:]
    overhead = statistics.median(ours / theirs for ours, theirs in zip(recorded, plain, strict=True)) - 1
    return {
        "recorded_step_s": round(statistics.median(recorded), 4),
        "plain_step_s": round(statistics.median(plain), 4),
        "overhead_percent": round(100 * overhead, 2),
        "overhead_of_medians_percent": round(100 * (statistics.median(recorded) / statistics.median(plain) - 1), 2),
        "limit_percent": 0.0,
        "goal_percent": 5.0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--trainer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--recording", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trainer:
        take_turns(options.trainer, options.address, recording=options.recording, turns=options.turns)
        return 0
    result = measure(options.turns)
    print(json.dumps(result))
    return 0 if result["overhead_percent"] <= result["goal_percent"] else 1


if __name__ == "__main__":
    sys.exit(main())
