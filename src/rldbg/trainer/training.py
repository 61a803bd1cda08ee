"""`train`: one run from a recipe, in its run folder. What the command line, the tour and the tests call."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rldbg.core import ExitCode, Identity, RldbgError, Run
from rldbg.trainer.checkpoint import FoundCheckpoint, find_checkpoint
from rldbg.trainer.controller import Controller, Learner, OnStep, Rollouts
from rldbg.trainer.in_process import InProcessPolicy, InProcessRollouts
from rldbg.trainer.inference_server import InferenceServer
from rldbg.trainer.learner import SelfHostedLearner
from rldbg.trainer.metrics import open_trackers
from rldbg.trainer.model import check_model
from rldbg.trainer.observer import Observer, RecordingPlan
from rldbg.trainer.recipe import LoadedRecipe
from rldbg.trainer.remote_api import RemoteLearner, check_remote
from rldbg.trainer.rollout import ReplayedRollouts
from rldbg.trainer.settings import Recipe
from rldbg.trainer.shards import check_divisible
from rldbg.trainer.tasks import load_problems
from rldbg.trainer.tokenizer import load_tokenizer, save_tokenizer

if TYPE_CHECKING:
    from rldbg.trainer.actors import RayPolicy
    from rldbg.trainer.cluster import Cluster

OnNote = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of a finished run."""

    run: Path
    steps: int
    metrics: Mapping[str, float]
    recording: Path | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"run": str(self.run), "recording": str(self.recording) if self.recording else None}


@dataclass(frozen=True, slots=True)
class Reporting:
    """Receives a run's progress: after each step, and on other events."""

    on_step: OnStep = lambda _step, _metrics: None
    on_note: OnNote = lambda _text: None


@dataclass(frozen=True, slots=True)
class _Beginning:
    """What a run starts from."""

    checkpoint: FoundCheckpoint | None
    first_step: int
    replay: ReplayedRollouts | None


def train(
    loaded: LoadedRecipe,
    run: Run,
    *,
    resume: Path | None = None,
    cluster: Cluster | None = None,
    reporting: Reporting | None = None,
) -> TrainResult:
    """Trains to the end, on the cluster given or on one of its own that ends with it."""
    reporting = reporting or Reporting()
    recipe = loaded.recipe
    check_model(recipe.model)
    problems = load_problems(recipe.data)
    check_divisible(recipe.data.samples_per_step, recipe)
    if recipe.mode == "remote_api":
        check_remote(recipe)
    # Workers of a cluster that was joined have another working directory.
    run.path = run.path.absolute()
    beginning = _beginning(recipe, resume.absolute() if resume else None)
    run.start(command=sys.argv, config=loaded.data, name=recipe.name, threads=recipe.threads, seed=recipe.seed)
    facts = run.read()
    plan = loaded.recording_plan(run.path, {key: facts[key] for key in ("git_commit", "versions")})
    recording = plan.records.directory.resolve() if plan.records.enabled or plan.capsules.enabled else None
    if recording is not None:
        recording.mkdir(parents=True, exist_ok=True)
        run.update(
            recording=os.path.relpath(recording, run.path) if recording.is_relative_to(run.path) else str(recording)
        )
        save_tokenizer(recipe.model.path, recording / "tokenizer")
    with _exit_code_kept(run), ExitStack() as stack:
        if recipe.zoo.bug is not None:
            from rldbg.trainer.zoo.catalogue import injected

            stack.enter_context(injected(recipe.zoo.bug))
        trackers = open_trackers(recipe.logging, run.path, name=recipe.name, config=loaded.data)
        for tracker in trackers:
            stack.callback(tracker.close)
        observer = Observer(plan.records, Identity(role="controller"))
        stack.enter_context(_closing(observer))
        learner, rollouts = _parts(recipe, run, plan, observer, beginning, cluster, reporting, stack)
        metrics = Controller(
            recipe=recipe,
            problems=problems,
            rollouts=rollouts,
            learner=learner,
            trackers=trackers,
            checkpoints=run.path / "checkpoints",
            observer=observer,
            on_step=reporting.on_step,
        ).train(beginning.first_step)
    return TrainResult(run.path, recipe.steps - beginning.first_step, metrics, recording)


def _beginning(recipe: Recipe, resume: Path | None) -> _Beginning:
    """Finds the checkpoint and the recording to replay before anything is started."""
    checkpoint = find_checkpoint(resume, mode=recipe.mode) if resume else None
    first_step = checkpoint.step if checkpoint else 0
    replay = None
    if recipe.rollout_worker.replay_from:
        tokenizer = load_tokenizer(recipe.model.path)
        replay = ReplayedRollouts(recipe.rollout_worker, tokenizer, steps=range(first_step, recipe.steps))
    return _Beginning(checkpoint, first_step, replay)


def _parts(
    recipe: Recipe,
    run: Run,
    plan: RecordingPlan,
    observer: Observer,
    beginning: _Beginning,
    cluster: Cluster | None,
    reporting: Reporting,
    stack: ExitStack,
) -> tuple[Learner, Rollouts]:
    """The learner and the source of trajectories the recipe asks for; the stack closes them in the right order."""
    needs_cluster = recipe.mode == "self_hosted" or beginning.replay is None
    if needs_cluster and not recipe.cluster.in_process:
        from rldbg.trainer.cluster import Cluster

        cluster = cluster or stack.enter_context(Cluster(recipe.cluster, name=recipe.name))
        run.update(ray=cluster.facts)
    if recipe.mode == "remote_api":
        learner = RemoteLearner(recipe=recipe, observer=observer)
        stack.enter_context(_closing(learner))
        rollouts = beginning.replay or _rollouts(recipe, cluster, reporting)
        stack.enter_context(_closing(rollouts))
        run.update(**learner.start(beginning.checkpoint))
        return learner, rollouts
    policy = _policy(recipe, plan, cluster)
    stack.enter_context(_closing(policy))
    rollouts = beginning.replay or _rollouts(recipe, cluster, reporting)
    stack.enter_context(_closing(rollouts))
    run.update(**policy.start(beginning.checkpoint.folder if beginning.checkpoint else None))
    return SelfHostedLearner(recipe=recipe, policy=policy, observer=observer), rollouts


def _policy(recipe: Recipe, plan: RecordingPlan, cluster: Cluster | None) -> RayPolicy | InProcessPolicy:
    if cluster is None:
        return InProcessPolicy(recipe, plan)
    from rldbg.trainer.actors import RayPolicy

    return RayPolicy(cluster, recipe, plan)


def _rollouts(recipe: Recipe, cluster: Cluster | None, reporting: Reporting) -> Rollouts:
    """Rollout workers of the cluster, or one of this process, and what they ask for generations."""
    from rldbg.trainer.actors import RayRollouts, RolloutPool, ServedRolloutPool, samplers

    is_remote = recipe.mode == "remote_api"
    servers = [] if is_remote else samplers(recipe)
    for server in servers:
        server.check()
    if cluster is not None:
        pool = RolloutPool if is_remote else ServedRolloutPool if servers else RayRollouts
        return pool(cluster, recipe, on_loss=reporting.on_note)
    if is_remote:
        return InProcessRollouts(recipe)
    if servers:
        return InProcessRollouts(recipe, servers[:1])
    numbers = range(recipe.inference.servers)
    return InProcessRollouts(recipe, [InferenceServer(recipe=recipe, number=number) for number in numbers])


class _Closable(Protocol):
    def close(self) -> None: ...


@contextmanager
def _closing(part: _Closable) -> Iterator[None]:
    """Closes a part at the end. An error then must not hide the one that ended the run."""
    try:
        yield
    except BaseException:
        with suppress(RldbgError):
            part.close()
        raise
    part.close()


@contextmanager
def _exit_code_kept(run: Run) -> Iterator[None]:
    """Writes how the run ended to run.json, however it ended."""
    code = int(ExitCode.INTERNAL)
    try:
        yield
        code = int(ExitCode.OK)
    except RldbgError as error:
        code = int(error.exit_code)
        raise
    except KeyboardInterrupt:
        code = int(ExitCode.INTERRUPTED)
        raise
    finally:
        run.finish(code)
