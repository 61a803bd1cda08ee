"""Records generations as trajectories: one row per generation, filed under the policy version as its step.

Rows are handed to the recorder every so many generations, and whenever the proxy says so, which it does every few
seconds: a proxy that is killed loses little, and its recording can be opened while it runs.
"""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from rldbg.core import Finding, Identity, Severity
from rldbg.inference.proxy.protocol_readers import Captured
from rldbg.recording import Recorder

_ROWS = 256


class GenerationRecorder:
    """Used by the event loop alone."""

    def __init__(self, folder: Path) -> None:
        self._recorder = Recorder(folder, identity=Identity(role="proxy"), kinds=frozenset({"trajectory"}))
        self._version = 0
        self._rows: list[tuple[int, tuple[str, int], Captured]] = []
        self._occurrences: dict[str, int] = {}
        self._batches = 0
        self.recorded = 0
        self.unreadable = 0

    def weights_changed(self, label: str | None) -> None:
        self._version = int(label) if label is not None and label.isdecimal() else self._version + 1

    def add(self, items: Sequence[Captured]) -> None:
        for item in items:
            if not item.tokens:
                self.unreadable += 1
                continue
            version = int(item.version) if item.version and item.version.isdecimal() else self._version
            group = _group(item)
            run = self._occurrences.get(group, 0)
            self._occurrences[group] = run + 1
            self._rows.append((version, (group, run), item))
            self.recorded += 1
        if len(self._rows) >= _ROWS:
            self.write()

    def write(self) -> None:
        rows, self._rows = self._rows, []
        for version in sorted({row[0] for row in rows}):
            self._write_version(version, [row for row in rows if row[0] == version])
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
                    cause=f"{self.unreadable} answers had no token ids or an unknown form",
                    fix=("use /generate, or an engine that knows return_token_ids (vLLM, rldbg serve)",),
                )
            )
        if self._recorder.stopped is not None:
            findings.append(Finding("serve.recorder_stopped", Severity.ERROR, where, cause=self._recorder.stopped))
        text = f"{self.recorded} generations are recorded in {where}; {self.unreadable} could not be"
        return {"summary": text, "findings": [finding.to_dict() for finding in findings]}

    def _write_version(self, version: int, rows: Sequence[tuple[int, tuple[str, int], Captured]]) -> None:
        items = [item for _, _, item in rows]
        self._recorder.record(
            "trajectory",
            step=version,
            micro=self._batches,
            samples=[sample for _, sample, _ in rows],
            tokens=[np.array([*item.prompt, *item.tokens], np.int64) for item in items],
            loss_mask=[np.array([0] * len(item.prompt) + [1] * len(item.tokens), np.int64) for item in items],
            logprobs=[np.array([0.0] * len(item.prompt) + _logprobs(item), np.float32) for item in items],
            policy_versions=[
                np.array([-1] * len(item.prompt) + [version] * len(item.tokens), np.int64) for item in items
            ],
            # What the framework made of an answer does not pass by here.
            reward=[float("nan")] * len(items),
            extra_fields=[_extra(sample, item) for _, sample, item in rows],
        )
        self._batches += 1


def _logprobs(item: Captured) -> list[float]:
    values = [float("nan") if value is None else float(value) for value in item.logprobs]
    return values if len(values) == len(item.tokens) else [float("nan")] * len(item.tokens)


def _group(item: Captured) -> str:
    """A name for the prompt."""
    content = item.prompt_text.encode() if not item.prompt and item.prompt_text else bytes(str(item.prompt), "ascii")
    return blake2b(content, digest_size=8).hexdigest()


def _extra(sample: tuple[str, int], item: Captured) -> dict[str, object]:
    known = {"prompt_text": item.prompt_text, "response_text": item.text, "finish_reason": item.finish}
    return {"group_id": sample[0], "run_id": sample[1]} | {
        name: value for name, value in known.items() if value is not None
    }
