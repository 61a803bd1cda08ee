"""Pairs of clean runs: those that must be equal, and those that differ for a known reason that is not a bug."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rldbg.analysis import VERDICTS
from rldbg.core import Environment, IncompleteDataError
from rldbg.trainer.zoo.expert_bugs import RECORDED_EXPERTS
from rldbg.trainer.zoo.judging import compared, failed_checks
from rldbg.trainer.zoo.runs import ZooRunner

_SERVICE_START_S = 120.0
# Verdicts that are not false alarms.
SILENT = ("equal", "equal within noise", "drift")
# One optimizer step per step and no KL: what a training service and a trainer of one rank do alike.
_REMOTE_SHAPE = (
    "algorithm.kl_coeff=0",
    "policy.ranks=1",
    "policy.mini_batches=1",
    "policy.epochs=1",
    "model.tiny.hidden_size=64",
)
_REPLICAS = ("++inference.servers=2", "++debug.dump_options.weights=true")
_REMOTE = (
    "mode=remote_api",
    "++debug.remote_api_dump_options.prepared_trajectories=true",
    "++debug.remote_api_dump_options.datums=true",
    "++debug.remote_api_dump_options.training_metrics=true",
)


@dataclass(frozen=True, slots=True)
class CleanPair:
    """Two clean runs, the second changed by `overrides`, from its own samples or from those of the first."""

    name: str
    verdict: str
    causes: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    base: tuple[str, ...] = ()
    replayed: bool = True
    remote: bool = False


PAIRS: tuple[CleanPair, ...] = (
    CleanPair("same-seed", "equal", replayed=False),
    CleanPair("replayed", "equal"),
    CleanPair("other-rank-count", "equal", overrides=("policy.ranks=1",)),
    CleanPair("other-micro-batch-size", "equal", overrides=("policy.micro_batch_size=3",)),
    CleanPair("remote-mode", "equal", overrides=_REMOTE, base=_REMOTE_SHAPE, remote=True),
    CleanPair("other-seed", "different", ("seed",), ("seed=1",), replayed=False),
    CleanPair("bfloat16", "different", ("precision",), ("model.dtype=bfloat16",), replayed=False),
    CleanPair("two-replicas", "equal", base=_REPLICAS, replayed=False),
    CleanPair("experts", "equal", base=RECORDED_EXPERTS, replayed=False),
)


@dataclass(frozen=True, slots=True)
class PairScore:
    """The verdict of compare on a clean pair, and whether it is right; check must find nothing in the second run."""

    name: str
    expected: str
    verdict: str
    stage: str | None
    causes: tuple[str, ...]
    checks: tuple[str, ...]
    right: bool
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def score_pair(name: str, number: int, recipe: Path, folder: Path) -> PairScore:
    """Runs both sides of a pair and compares them."""
    started = time.perf_counter()
    pair = next(item for item in PAIRS if item.name == name)
    runner = ZooRunner(recipe, folder)
    first = runner.run(2 * number, pair.base)
    replay = (
        "++rollout_worker.type=mock",
        "++rollout_worker.need_llm_inference=false",
        f"++rollout_worker.trajectory_load_path={first.recording}",
    )
    overrides = [*pair.base, *pair.overrides, *(replay if pair.replayed else ())]
    if pair.remote:
        recordings = _remote_run(runner, 2 * number + 1, overrides, folder)
    else:
        recordings = [runner.run(2 * number + 1, overrides).recording]
    results = [compared(first.recording, recording) for recording in recordings]
    verdict, stage, causes = min(results, key=lambda item: VERDICTS.index(item[0]))
    checks = tuple(dict.fromkeys(check for recording in recordings for check in failed_checks(recording)))
    right = (
        (verdict if verdict not in SILENT else "equal") == pair.verdict
        and set(causes) == set(pair.causes)
        and not checks
    )
    seconds = time.perf_counter() - started
    return PairScore(name, pair.verdict, verdict, stage, causes, checks, right, seconds)


def _remote_run(runner: ZooRunner, number: int, overrides: list[str], folder: Path) -> list[Path]:
    """A run against a training service of its own; what the trainer recorded, and what the service did."""
    place = folder / f"service-{number}"
    dumps = place / "recording"
    if runner.has_made(number) and dumps.is_dir():
        return [runner.run(number, overrides).recording, dumps]
    shutil.rmtree(place, ignore_errors=True)
    with _service(place, dumps) as url:
        run = runner.run(number, [*overrides, f"++remote.url={url}"])
    return [run.recording, dumps]


@contextmanager
def _service(place: Path, dumps: Path) -> Iterator[str]:
    """A training service in its own process that records all it does."""
    place.mkdir(parents=True)
    announcement = place / "announcement.json"
    kinds = "forward_data,loss,is_loss_debug,gradient,param"
    environment = {
        **Environment().everything(),
        "WEAVER_DEBUG_DUMP_ENABLED": "1",
        "WEAVER_DEBUG_DUMP_DIR": str(dumps),
        "WEAVER_DEBUG_DUMP_OPTIONS": kinds,
    }
    options = ["--model", "tiny", "--folder", str(place), "--announce", str(announcement), "--deterministic"]
    with (place / "service.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "rldbg.training_service", *options], env=environment, stdout=log, stderr=log
        )
    try:
        yield f"http://{_announced(process, announcement, place)}"
    finally:
        process.terminate()
        process.wait(30)


def _announced(process: subprocess.Popen[bytes], announcement: Path, place: Path) -> str:
    deadline = time.monotonic() + _SERVICE_START_S
    while not announcement.is_file():
        if process.poll() is not None or time.monotonic() > deadline:
            raise IncompleteDataError("the training service did not start", f"see {place / 'service.log'}")
        time.sleep(0.05)
    return str(json.loads(announcement.read_text(encoding="utf-8"))["address"])
