"""What recording costs the default recipe: all kinds, every step, held against the same steps without recording.

One process and one rank (`cluster.in_process`), so that nothing but the steps is measured. Two trainers take turns,
step by step, in one run. Prints both, the limit (no recording is 0 %) and the ratio; the goal is at most 5 %.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

from rldbg.core import Identity, Run, SampleId
from rldbg.trainer import read_recipe
from rldbg.trainer.in_process import InProcessPolicy, InProcessRollouts
from rldbg.trainer.learner import SelfHostedLearner
from rldbg.trainer.observer import Observer
from rldbg.trainer.rollout import Task
from rldbg.trainer.tasks import groups_of_step, load_problems

RECIPE = Path(__file__).parents[1] / "recipes" / "arithmetic.yaml"
KINDS = ("trajectory", "old_log_probs", "forward_data", "loss", "param", "gradient")
STEPS = 24


class Side:
    """A whole trainer with or without recording."""

    def __init__(self, folder, *, recording):
        switches = [f"++debug.dump_options.{kind}=true" for kind in KINDS] if recording else []
        overrides = ["policy.ranks=1", "++cluster.in_process=true", "warm_start.max_steps=5"]
        loaded = read_recipe(RECIPE, [*overrides, f"++debug.enable_data_dump={str(recording).lower()}", *switches])
        self.recipe = loaded.recipe
        plan = loaded.recording_plan(Run.create(name="bench", path=folder).path, {})
        policy = InProcessPolicy(self.recipe, plan)
        policy.start()
        self.rollouts = InProcessRollouts(self.recipe)
        self.learner = SelfHostedLearner(
            recipe=self.recipe, policy=policy, observer=Observer(plan.records, Identity(role="controller"))
        )
        self.problems = load_problems(self.recipe.data)
        self.rollouts.publish(self.learner.weights(), 0)

    def step(self, step):
        """Seconds of wall clock and of this process's own computing time, writer threads included."""
        groups = groups_of_step(self.problems, self.recipe.data, self.recipe.seed, step)
        count = self.recipe.data.samples_per_prompt
        tasks = [Task(SampleId(group.group_id, run), group.problem) for group in groups for run in range(count)]
        wall, computing = time.perf_counter(), time.process_time()
        trajectories = self.rollouts.collect(step, tasks)
        self.learner.train(step, trajectories)
        self.rollouts.publish(self.learner.weights(), step + 1)
        return time.perf_counter() - wall, time.process_time() - computing


def main():
    with tempfile.TemporaryDirectory() as folder:
        sides = {name: Side(Path(folder) / name, recording=name == "recorded") for name in ("plain", "recorded")}
        times = {name: [] for name in sides}
        for step in range(STEPS):
            order = list(sides) if step % 2 else list(sides)[::-1]
            for name in order:
                times[name].append(sides[name].step(step))
        for side in sides.values():
            side.learner.close()
    pairs = list(zip(times["recorded"][2:], times["plain"][2:], strict=True))
    wall, computing = (statistics.median(ours[kind] / theirs[kind] for ours, theirs in pairs) for kind in (0, 1))
    print(
        json.dumps(
            {
                "recorded_step_s": round(statistics.median(ours[0] for ours, _ in pairs), 4),
                "plain_step_s": round(statistics.median(theirs[0] for _, theirs in pairs), 4),
                "overhead_wall_percent": round(100 * (wall - 1), 2),
                "overhead_computing_percent": round(100 * (computing - 1), 2),
                "limit_percent": 0.0,
                "goal_percent": 5.0,
            }
        )
    )


if __name__ == "__main__":
    main()
