"""Records generations as trajectories: one row per generation, filed under the policy version as its step.

Rows are recorded after some number of generations and every few seconds: a killed proxy loses little, and its recording
can be opened while it runs.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from rldbg.core import Finding, Identity, Severity
from rldbg.inference.proxy.captured import Captured
from rldbg.recording import Recorder

_ROWS = 256
# Routes that never generate: a replay does not need them.
_NO_GENERATION = (
    "/tokenize", "/detokenize", "/pause", "/resume", "/continue_generation", "/abort", "/flush_cache", "/sleep",
    "/wake_up", "/update_", "/init_", "/start_weight", "/destroy_", "/release_", "/resume_", "/reset_", "/areal_",
    "/workers", "/add_worker", "/remove_worker", "/get_", "/close_", "/v1/messages/count_tokens", "/set_", "/health",
    "/v1/responses/input_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Row:
    """One generation with its policy version, the name of its sample, and the number of its request and choice."""

    version: int
    sample: tuple[str, int]
    item: Captured
    arrival: tuple[int, int]


class GenerationRecorder:
    """Used by the event loop alone."""

    def __init__(self, folder: Path) -> None:
        self._recorder = Recorder(folder, identity=Identity(role="proxy"), kinds=frozenset({"trajectory"}))
        self._version = 0
        self._rows: list[_Row] = []
        self._occurrences: dict[str, int] = {}
        self._batches = 0
        self._arrivals = 0
        self.recorded = 0
        # Answers that had no token ids or an unknown form, and requests of routes that no reader knows.
        self._lost: Counter[str] = Counter()
        self._passed: Counter[str] = Counter()

    @property
    def unreadable(self) -> int:
        return self._lost.total()

    def arrived(self) -> int:
        """A number for a request: answers come in another order than requests, and are replayed in that of these."""
        self._arrivals += 1
        return self._arrivals

    def cannot_record(self, route: str) -> None:
        self._lost[route] += 1

    def passed(self, route: str) -> None:
        """A request that no reader knows; it may have generated something."""
        if not any(route.startswith(known) for known in _NO_GENERATION):
            self._passed[route] += 1

    def weights_changed(self, label: str | None) -> None:
        self._version = int(label) if label is not None and label.isdecimal() else self._version + 1

    def add(self, items: Sequence[Captured], route: str = "", arrival: int = 0) -> None:
        if not items:
            self.cannot_record(route)
        for number, item in enumerate(items):
            if not item.tokens:
                self.cannot_record(route)
                continue
            version = int(item.version) if item.version and item.version.isdecimal() else self._version
            group = _group(item)
            run = self._occurrences.get(group, 0)
            self._occurrences[group] = run + 1
            self._rows.append(_Row(version, (group, run), item, (arrival, number)))
            self.recorded += 1
        if len(self._rows) >= _ROWS:
            self.write()

    def write(self) -> None:
        rows, self._rows = self._rows, []
        for version in sorted({row.version for row in rows}):
            self._write_version(version, [row for row in rows if row.version == version])
        if rows:
            self._recorder.flush(timeout_s=10)

    def close(self) -> None:
        self.write()
        self._recorder.close()

    def report(self) -> dict[str, object]:
        """What `rldbg serve down` shows."""
        where, findings = str(self._recorder.settings.directory), []
        if self.unreadable:
            findings.append(
                Finding(
                    "serve.not_recorded",
                    Severity.WARNING,
                    where,
                    evidence=tuple(f"{count} of {route}" for route, count in self._lost.most_common()),
                    cause=f"{self.unreadable} answers cannot be replayed: no token ids, an unknown form or no end",
                    fix=("use /generate, or an engine that knows return_token_ids (vLLM, rldbg serve)",),
                )
            )
        if self._passed:
            evidence = tuple(f"{count} of {route}" for route, count in self._passed.most_common(20))
            cause = f"{self._passed.total()} requests of routes that are not recorded were forwarded"
            findings.append(Finding("serve.passed_by", Severity.INFO, where, evidence=evidence, cause=cause))
        if self._recorder.stopped is not None:
            findings.append(Finding("serve.recorder_stopped", Severity.ERROR, where, cause=self._recorder.stopped))
        text = f"{self.recorded} generations are recorded in {where}; {self.unreadable} could not be"
        return {"summary": text, "findings": [finding.to_dict() for finding in findings]}

    def _write_version(self, version: int, rows: "Sequence[_Row]") -> None:
        items = [row.item for row in rows]
        self._recorder.record(
            "trajectory",
            step=version,
            micro=self._batches,
            samples=[row.sample for row in rows],
            tokens=[np.array([*item.prompt, *item.tokens], np.int64) for item in items],
            loss_mask=[np.array([0] * len(item.prompt) + [1] * len(item.tokens), np.int64) for item in items],
            logprobs=[np.array([0.0] * len(item.prompt) + _logprobs(item), np.float32) for item in items],
            policy_versions=[
                np.array([-1] * len(item.prompt) + [version] * len(item.tokens), np.int64) for item in items
            ],
            # The proxy does not see rewards.
            reward=[float("nan")] * len(items),
            extra_fields=[_extra(row) for row in rows],
        )
        self._batches += 1


def _logprobs(item: Captured) -> list[float]:
    values = [float("nan") if value is None else float(value) for value in item.logprobs]
    return values if len(values) == len(item.tokens) else [float("nan")] * len(item.tokens)


def _group(item: Captured) -> str:
    """A name for the prompt."""
    content = item.prompt_text.encode() if not item.prompt and item.prompt_text else bytes(str(item.prompt), "ascii")
    return blake2b(content, digest_size=8).hexdigest()


def _extra(row: _Row) -> dict[str, object]:
    item = row.item
    known = {
        "prompt_text": item.prompt_text,
        "response_text": item.text,
        "finish_reason": item.finish,
        "stop_reason": item.stop,
        "answer": None if item.answer is None else json.dumps(item.answer.message()),
        "seed": None if item.seed is None else str(item.seed),
        "top_logprobs": json.dumps(item.top) if any(item.top) and len(item.top) == len(item.tokens) else None,
        "arrival": row.arrival[0],
        "choice": row.arrival[1],
    }
    return {"group_id": row.sample[0], "run_id": row.sample[1]} | {
        name: value for name, value in known.items() if value is not None
    }
