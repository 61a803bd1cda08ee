"""What recording costs the default recipe: all kinds, every step, held against the same steps without recording.

The recipe as users run it: two policy ranks, rollout workers and an inference server on one Ray cluster. Trainings with
and without recording follow each other in pairs, the order changing from pair to pair, on one cluster. Prints both, the
limit (no recording is 0 %) and the overhead; the goal is at most 5 %.

    python benchmarks/bench_train_overhead.py [--pairs 3] [--quick]
"""

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from rldbg.core import Run
from rldbg.trainer import Reporting, read_recipe, train
from rldbg.trainer.cluster import Cluster
from rldbg.trainer.settings import ClusterSettings

RECIPE = Path(__file__).parents[1] / "recipes" / "arithmetic.yaml"
KINDS = ("trajectory", "old_log_probs", "batch_inputs", "forward_data", "loss", "is_loss_debug", "param", "gradient")
STEPS, WARM_STEPS = 30, 6
# Without a cluster, as small as it gets.
QUICK = ("++cluster.in_process=true", "policy.ranks=1", "data.prompts_per_step=4", "steps=8")


def step_seconds(cluster: Cluster | None, folder: Path, *, recording: bool) -> float:
    """The median step of one training, once it is warm."""
    switches = [f"++debug.dump_options.{kind}=true" for kind in KINDS] if recording else []
    overrides = ["warm_start.max_steps=5", f"steps={STEPS}", f"++debug.enable_data_dump={str(recording).lower()}"]
    loaded = read_recipe(RECIPE, [*overrides, *switches, *(() if cluster else QUICK)])
    seconds: list[float] = []
    reporting = Reporting(on_step=lambda _step, metrics: seconds.append(metrics["time/step"]))
    train(loaded, Run.create(name="bench", path=folder), cluster=cluster, reporting=reporting)
    return statistics.median(seconds[WARM_STEPS:])


def measure(pairs: int, *, quick: bool) -> dict[str, float]:
    plain, recorded = [], []
    used = nullcontext() if quick else Cluster(ClusterSettings(), name="bench")
    with tempfile.TemporaryDirectory() as folder, used as cluster:
        for number in range(pairs):
            for recording in (False, True) if number % 2 else (True, False):
                place = Path(folder) / f"{number}-{recording}"
                (recorded if recording else plain).append(step_seconds(cluster, place, recording=recording))
    overheads = [100 * (ours / theirs - 1) for ours, theirs in zip(recorded, plain, strict=True)]
    return {
        "recorded_step_s": round(statistics.median(recorded), 4),
        "plain_step_s": round(statistics.median(plain), 4),
        "overhead_percent": round(statistics.median(overheads), 2),
        "lowest_percent": round(min(overheads), 2),
        "highest_percent": round(max(overheads), 2),
        "limit_percent": 0.0,
        "goal_percent": 5.0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    options = parser.parse_args()
    result = measure(1 if options.quick else options.pairs, quick=options.quick)
    print(json.dumps(result))
    return 0 if options.quick or result["overhead_percent"] <= result["goal_percent"] else 1


if __name__ == "__main__":
    sys.exit(main())
