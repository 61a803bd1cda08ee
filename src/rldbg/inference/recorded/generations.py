"""Every generation of a recording, found again by its prompt.

A generation is a run of tokens that the policy chose; everything before it is its prompt. A trajectory of several
turns is several generations. Equal prompts are told apart by their order in the recording.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.core import IncompleteDataError, SampleId
from rldbg.inference.conversation.answer import Answer
from rldbg.inference.generation import Likeliest
from rldbg.inference.keyed_random import sample_key
from rldbg.recording import Record, Recording
from rldbg.recording import open as open_recording

_KINDS = ("trajectory", "prepared_trajectories")


@dataclass(slots=True, eq=False)
class RecordedGeneration:
    """One recorded generation, and how often it was given out."""

    prompt: np.ndarray
    tokens: np.ndarray
    logprobs: np.ndarray | None
    version: int
    step: int
    sample: SampleId
    key: int | None
    text: str | None = None
    prompt_text: str | None = None
    answer: Answer | None = None
    finish: str | None = None
    stop: int | str | None = None
    seed: int | None = None
    arrival: tuple[int, int] | None = None
    top: Sequence[Likeliest] = ()
    given: int = 0

    @property
    def place(self) -> str:
        return f"step {self.step}, sample {self.sample.group_id}/{self.sample.run_id}"


@dataclass(frozen=True, slots=True)
class RecordedGenerations:
    """All of them, in the order they were recorded, and by prompt."""

    title: str
    all: list[RecordedGeneration]
    by_prompt: dict[bytes, list[RecordedGeneration]] = field(default_factory=dict)
    by_text: dict[str, list[RecordedGeneration]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | str) -> "RecordedGenerations":
        recording = open_recording(path)
        kind = next((kind for kind in _KINDS if recording.steps(kind)), None)
        if kind is None:
            found = ", ".join(recording.kinds()) or "nothing"
            raise IncompleteDataError(
                f"{path} has no trajectories to answer from, only {found}",
                "record with debug.dump_options.trajectory=true, or with `rldbg serve up --backend proxy`",
            )
        seed = recording.run_facts().get("seed")
        made = cls(str(path), list(_generations(recording, kind, seed if isinstance(seed, int) else None)))
        # A proxy files answers as they end; requests for one prompt are answered in the order in which they came.
        if all(item.arrival is not None for item in made.all):
            made.all.sort(key=lambda item: item.arrival or (0, 0))
        for item in made.all:
            if len(item.prompt):
                made.by_prompt.setdefault(prompt_key(item.prompt), []).append(item)
            if item.prompt_text is not None:
                made.by_text.setdefault(item.prompt_text, []).append(item)
        return made

    def nearest(self, prompt: Sequence[int]) -> RecordedGeneration:
        """The generation whose prompt agrees longest with this one; of equals the one nearest in length."""
        wanted = np.asarray(prompt, dtype=np.int64)
        firsts = [items[0] for items in self.by_prompt.values()] or self.all
        return max(firsts, key=lambda item: (_common(item.prompt, wanted), -abs(len(item.prompt) - len(wanted))))


def prompt_key(prompt: Sequence[int] | np.ndarray) -> bytes:
    return np.ascontiguousarray(prompt, dtype="<i8").tobytes()


def first_difference(one: np.ndarray, other: Sequence[int]) -> int:
    return _common(one, np.asarray(other, dtype=np.int64))


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """How many tokens two prompts have in common from the start."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length


def _generations(recording: Recording, kind: str, seed: int | None) -> Iterator[RecordedGeneration]:
    for record in recording.records(kind):
        for row in range(len(record.samples)):
            yield from _of_row(record, row, seed)


def _of_row(record: Record, row: int, seed: int | None) -> Iterator[RecordedGeneration]:
    tokens = np.asarray(_value(record, "tokens", row), dtype=np.int64)
    mask = np.asarray(_value(record, "loss_mask", row), dtype=bool)
    logprobs, versions = _value(record, "logprobs", row), _value(record, "policy_versions", row)
    extra = _value(record, "extra_fields", row) or {}
    sample = record.samples[row]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        yield RecordedGeneration(
            prompt=tokens[:start],
            tokens=tokens[start:end],
            logprobs=None if logprobs is None or not len(logprobs) else np.asarray(logprobs[start:end], np.float64),
            version=record.key.step if versions is None or not len(versions) else int(versions[start]),
            step=record.key.step,
            sample=sample,
            key=None if seed is None else sample_key(seed, record.key.step, sample),
            text=extra.get("response_text"),
            prompt_text=extra.get("prompt_text"),
            answer=Answer.of_message(json.loads(extra["answer"])) if extra.get("answer") else None,
            finish=extra.get("finish_reason"),
            stop=extra.get("stop_reason"),
            seed=int(extra["seed"]) if extra.get("seed") else None,
            top=[[(token, score) for token, score in place] for place in json.loads(extra.get("top_logprobs", "[]"))],
            arrival=(int(extra["arrival"]), int(extra.get("choice", 0))) if extra.get("arrival") else None,
        )


def _value(record: Record, name: str, row: int) -> Any:
    value = record.fields.get(name)
    return None if value is None else value[row]
