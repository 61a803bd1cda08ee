"""`rollout`: a workflow, its data and the servers, from beginning to end; what the command line calls."""

from __future__ import annotations

import json
import re
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.core import NoAnswerError, PrerequisiteError, Run, http_request, load_user_object
from rldbg.inference.workflows.data import EpisodeSpec, load_rows, specs_of
from rldbg.inference.workflows.episode import Episode
from rldbg.inference.workflows.episode_trace import write_episodes
from rldbg.inference.workflows.exchanges import ExchangeLog, Exchanges, RecordedExchanges
from rldbg.inference.workflows.faults import FaultOutcome, judged
from rldbg.inference.workflows.network_thread import NetworkThread
from rldbg.inference.workflows.outcome import EpisodeOutcome, RolloutReport
from rldbg.inference.workflows.recording_proxy import RecordingProxy
from rldbg.inference.workflows.request_formats import Protocol
from rldbg.inference.workflows.results import padded_batch, samples_of
from rldbg.inference.workflows.runner import EpisodeObserver, Runner
from rldbg.inference.workflows.servers import Servers, base_address
from rldbg.inference.workflows.settings import GenerationSettings
from rldbg.inference.workflows.shapes import (
    Construction,
    WorkflowShape,
    adapter_of,
    load_workflow,
    rewards_here,
    trace_parts,
)
from rldbg.inference.workflows.timeline import write_trace
from rldbg.recording import write_batch

_FILES_PER_EPISODE = 4  # connections of the agent, the proxy and the server, and one to spare
_OWN_FILES = 256


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """What to run. Fields are the options of `rldbg rollout`, under the same names."""

    workflow: str
    data: str
    addresses: Sequence[str]
    n: int = 1
    limit: int | None = None
    sample: str | None = None
    shape: WorkflowShape | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    reward: str | None = None
    tokenizer: str | None = None
    settings: GenerationSettings = field(default_factory=GenerationSettings)
    seed: int | None = None
    concurrency: int = 64
    timeout_s: float = 600.0
    request_timeout_s: float = 300.0
    server_wait_s: float = 60.0
    api_key: str = ""
    protocol: Protocol | None = None
    out: Path | None = None
    trace: bool = False
    pdb: bool = False
    replay: Path | None = None
    fuzz: bool = False
    # The command that runs one sample alone, for the failures; the command line knows how it was called.
    command_of: Callable[[str], str] = field(default=lambda sample: f"rollout(..., sample={sample!r})")


# Loads a tokenizer by the name or folder it was asked for.
TokenizerLoader = Callable[[str], Any]


def rollout(
    request: RolloutRequest,
    make_run: Callable[[], Run],
    *,
    load_tokenizer: TokenizerLoader,
    observer: EpisodeObserver | None = None,
) -> RolloutReport:
    """Runs every episode, saves the batch, the timelines and the report in the run folder.

    The run folder is made when the workflow, the data and the servers are known to be there.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        observer = observer or EpisodeObserver()
        opened = _OpenRollout(request, load_tokenizer, stack, observer)
        runner = opened.runner(observer)
        if request.out is not None:
            _check_place(request.out)
        run = make_run()
        opened.exchanges.log.open(run.path)
        outcomes = runner.run(opened.specs, finish=opened.finish)
    write_episodes(run.path, outcomes, opened.exchanges.log.entries())
    batch, notes = _save(request, run, outcomes)
    report = RolloutReport(
        workflow=request.workflow,
        shape=opened.shape,
        addresses=tuple(opened.servers.addresses),
        run=str(run.path),
        batch=str(batch) if batch else None,
        episodes=len(outcomes),
        rows=sum(len(outcome.rows) for outcome in outcomes),
        tokens=int(sum(row.loss_mask.sum() for outcome in outcomes for row in outcome.rows)),
        seconds=time.monotonic() - started,
        mean_reward=_mean_reward(outcomes),
        rejected=tuple(str(outcome.spec.sample) for outcome in outcomes if outcome.rejected),
        not_run=tuple(str(item.spec.sample) for item in outcomes if item.timeline is None),
        failures=tuple(outcome.failure for outcome in outcomes if outcome.failure is not None),
        notes=(*opened.notes, *notes),
        faults=opened.faults(outcomes),
        traces=_write_traces(run, outcomes) if request.trace else None,
        interrupted=runner.interrupted,
        hung=runner.hung,
    )
    (run.folder("reports") / "rollout.json").write_text(json.dumps(report.to_dict(), indent=1), encoding="utf-8")
    return report


class _OpenRollout:
    """Everything that is open while episodes run; closed by the stack in the opposite order."""

    def __init__(
        self, request: RolloutRequest, load_tokenizer: TokenizerLoader, stack: ExitStack, observer: EpisodeObserver
    ) -> None:
        self._request = request
        self._stack = stack
        self._load_tokenizer = load_tokenizer
        self._proxy: RecordingProxy | None = None
        self.tokenizer = cache(self._tokenizer)
        rows = load_rows(request.data, limit=request.limit)
        arguments = {name: _argument(value) for name, value in request.arguments.items()}
        construction = Construction(request.settings, arguments, self._found_tokenizer)
        self.shape, self._workflow = load_workflow(request.workflow, shape=request.shape, construction=construction)
        rewards_here(self._workflow)
        if request.trace:
            trace_parts(self._workflow)
        network = NetworkThread()
        stack.callback(network.close)
        connections = _room_for(request.concurrency)
        self.servers = Servers(
            request.addresses,
            network=network,
            api_key=request.api_key,
            request_timeout_s=request.request_timeout_s,
            server_wait_s=request.server_wait_s,
            connections=connections,
            protocol=request.protocol,
        )
        stack.callback(self.servers.close)
        recorded = RecordedExchanges(request.replay) if request.replay is not None else None
        self.exchanges = Exchanges(ExchangeLog(), recorded, (request.seed or 0) if request.fuzz else None)
        self._episodes: dict[str, Episode] = {}
        self.notes = self.servers.check(observer.on_wait) if recorded is None else []
        # TRL's functions take all samples of a prompt in one call.
        self.specs: list[EpisodeSpec] = specs_of(rows, n=1 if self.shape == "trl" else request.n, only=request.sample)

    def runner(self, observer: EpisodeObserver | None) -> Runner:
        request = self._request
        adapter = adapter_of(
            self.shape,
            self._workflow,
            n=request.n,
            proxy=self._open_proxy,
            reward=load_user_object(request.reward, what="reward function") if request.reward else None,
            tokenizer=self.tokenizer,
        )
        return Runner(
            adapter,
            make_episode=self._episode,
            command_of=lambda spec: request.command_of(spec.row.group_id if self.shape == "trl" else str(spec.sample)),
            concurrency=request.concurrency,
            timeout_s=request.timeout_s,
            debugger=request.pdb,
            observer=observer,
        )

    async def finish(self) -> None:
        if self._proxy is not None:
            await self._proxy.finish()

    def _episode(self, spec: EpisodeSpec) -> Episode:
        tokenizer = self.tokenizer() if self._request.tokenizer else None
        episode = Episode(
            spec,
            servers=self.servers,
            settings=self._request.settings,
            seed=self._request.seed,
            tokenizer=tokenizer,
            exchanges=self.exchanges,
        )
        self._episodes[str(spec.sample)] = episode
        return episode

    def faults(self, outcomes: Sequence[EpisodeOutcome]) -> tuple[FaultOutcome, ...]:
        """What became of the episodes that had a fault."""
        found = []
        for outcome in outcomes:
            episode = self._episodes.get(str(outcome.spec.sample))
            if episode is not None and episode.fault is not None:
                reward = _mean_reward([outcome])
                found.append(judged(str(episode.sample), episode.fault, episode.requests, outcome.failure, reward))
        return tuple(found)

    def _open_proxy(self) -> RecordingProxy:
        self._proxy = RecordingProxy(self.servers)
        self._stack.callback(self._proxy.stop)
        return self._proxy

    def _found_tokenizer(self) -> Any:
        """For a workflow that is made with one: the one that was given, else that of the model that is served."""
        place = "" if self._request.tokenizer or self._request.replay else _served_folder(self._request)
        return self._load_tokenizer(place) if place else self.tokenizer()

    def _tokenizer(self) -> Any:
        return self._load_tokenizer(self._request.tokenizer) if self._request.tokenizer else None


def _served_folder(request: RolloutRequest) -> str:
    """The folder of the served model, if a server names one that is on this machine."""
    for address in request.addresses:
        try:
            url = f"{base_address(address)}/model_info"
            answer = http_request("GET", url, token=request.api_key or "", timeout_s=request.server_wait_s)
            known = answer.json() if answer.status_code == 200 else {}
            path = str(known.get("tokenizer_path") or known.get("model_path") or "")
        except (NoAnswerError, ValueError, AttributeError):  # no server, or one with another protocol
            continue
        if path and (Path(path) / "tokenizer_config.json").is_file():
            return path
    return ""


def _room_for(concurrency: int) -> int:
    """How many connections may be open at once for that many episodes; further requests wait for their turn.

    The limit of open files is raised as far as this user may.
    """
    wanted = _FILES_PER_EPISODE * concurrency + _OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    available = wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)
    return max((available - _OWN_FILES) // _FILES_PER_EPISODE, 8)


def _argument(value: Any) -> Any:
    """A constructor's argument: YAML, or an object of the user by its name."""
    import yaml

    if isinstance(value, str) and re.fullmatch(r"[\w./]+:[A-Za-z_][\w.]*", value):
        return load_user_object(value, what="argument")
    return yaml.safe_load(value) if isinstance(value, str) else value


def _check_place(file: Path) -> None:
    """Checks that the batch can be written before the episodes run."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise PrerequisiteError(f"cannot write {file}: {error.strerror}", "choose another file with --out") from error


def _save(request: RolloutRequest, run: Run, outcomes: Sequence[EpisodeOutcome]) -> tuple[Path | None, list[str]]:
    samples = samples_of(outcomes)
    if not samples:
        return None, []
    file = request.out or run.path / "generated" / "batch_data.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    tensors, dropped = padded_batch([row for _, row in samples])
    write_batch(file, tensors, [sample for sample, _ in samples])
    if request.out is None and not (run.path / "recording").is_dir():
        run.update(recording="generated")
    notes = [f"{name} is not in the batch: not every row has it, or not in one form" for name in dropped]
    trained = [row for _, row in samples if row.loss_mask.any()]
    if any(np.isnan(row.reward) for _, row in samples):
        notes.append("rewards are NaN: the function gave none; return `reward`, or give --reward module:function")
    if any(np.isnan(row.logprobs[row.loss_mask != 0]).any() for row in trained):
        notes.append("logprobs are NaN where the workflow returned none")
    return file, notes


def _mean_reward(outcomes: Sequence[EpisodeOutcome]) -> float | None:
    rewards = [row.reward for outcome in outcomes for row in outcome.rows if not np.isnan(row.reward)]
    return float(np.mean(rewards)) if rewards else None


def _write_traces(run: Run, outcomes: Sequence[EpisodeOutcome]) -> str:
    folder = run.path / "traces"
    folder.mkdir(exist_ok=True)
    timelines = {place: item.timeline for place, item in enumerate(outcomes) if item.timeline is not None}
    for place, timeline in timelines.items():
        spec = outcomes[place].spec
        name = re.sub(r"[^A-Za-z0-9._+=-]+", "-", spec.row.group_id)[:100]
        write_trace(folder / f"{name}_{spec.run}.json", {place: timeline})
    write_trace(folder / "all.json", timelines)
    return str(folder)
