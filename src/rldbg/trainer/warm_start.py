"""The supervised phase before the first step: the model learns the form of an answer, and part of its content.

It runs in one process, from the seed alone, and is not counted as training steps. Hundreds of optimizer steps amplify
the rounding of one CPU's kernels into different weights, so a run saves the weights it starts from, and a run that
replays its trajectories on another machine starts from the same ones.
"""

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.core import SampleId
from rldbg.replay import Trajectory, TrajectoryBatch
from rldbg.trainer.settings import WarmStartSettings
from rldbg.trainer.steps import forward
from rldbg.trainer.tasks import Problem, supervised_texts
from rldbg.trainer.tokenizer import Tokenizer

_CHECK_EVERY = 5


@dataclass(frozen=True, slots=True)
class StartingWeights:
    """Where a run keeps the weights it starts from, and where the run that it replays has kept its own.

    One file per key (see `start_key`), made under a temporary name, so that one with its name is whole.
    """

    keep_in: Path | None = None
    replayed: Path | None = None

    def load(self, model: Any, key: str) -> tuple[int, float] | None:
        """Takes over weights that were kept from the same settings; else None."""
        from safetensors import SafetensorError, safe_open

        for folder in () if self.replayed is None else (self.replayed, *self.replayed.parents[:2]):
            try:
                with safe_open(folder / _file_name(key), framework="pt") as file:
                    facts = file.metadata()
                    model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
                    return int(facts["steps"]), float(facts["success"])
            except (OSError, SafetensorError):
                continue
        return None

    def save(self, model: Any, key: str, steps: int, success: float) -> None:
        from safetensors.torch import save_file

        if self.keep_in is None or not self.keep_in.is_dir():  # a node without the run folder keeps nothing
            return
        made = self.keep_in / f".{_file_name(key)}.{os.getpid()}"
        save_file(model.state_dict(), made, metadata={"steps": str(steps), "success": repr(success)})
        made.replace(self.keep_in / _file_name(key))


def _file_name(key: str) -> str:
    return f"starting_weights_{key}.safetensors"


def start_key(model: Any, problems: tuple[Problem, ...], settings: WarmStartSettings, *, seed: int) -> str:
    """What the weights after a warm start depend on, besides the rounding of the machine."""
    shapes = [(name, tuple(parameter.shape), str(parameter.dtype)) for name, parameter in model.named_parameters()]
    return sha256(repr((seed, settings, shapes, problems)).encode()).hexdigest()[:16]


def warm_start(
    model: Any, tokenizer: Tokenizer, problems: tuple[Problem, ...], settings: WarmStartSettings, *, seed: int
) -> tuple[int, float]:
    """Trains the model in place on answers of which a share is wrong; how many steps, and the success they led to.

    Ends as soon as the expected success rate is reached, so that every seed starts training from the same level.
    """
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0, foreach=False)
    texts = supervised_texts(
        problems, seed=seed, batch_size=settings.batch_size, wrong_fraction=settings.wrong_fraction
    )
    for step in range(settings.max_steps):
        if step % _CHECK_EVERY == 0 and expected_success(model, tokenizer, problems) >= settings.until_success:
            return step, expected_success(model, tokenizer, problems)
        batch = _batch(tokenizer, next(texts))
        log_probs = forward(model, batch).log_probs
        loss = -(log_probs * batch.response_mask).sum() / batch.response_mask.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return settings.max_steps, expected_success(model, tokenizer, problems)


def expected_success(model: Any, tokenizer: Tokenizer, problems: tuple[Problem, ...]) -> float:
    """The probability that a sampled answer is the right one, over all problems, without sampling any."""
    import torch

    batch = _batch(tokenizer, [(problem.prompt, problem.answer) for problem in problems])
    with torch.no_grad():
        log_probs = forward(model, batch).log_probs * batch.response_mask
    return float(log_probs.sum(1).exp().mean())


def _batch(tokenizer: Tokenizer, texts: list[tuple[str, str]]) -> TrajectoryBatch:
    trajectories = []
    for prompt, answer in texts:
        question, response = tokenizer.encode(prompt), [*tokenizer.encode(answer), tokenizer.eos_id]
        trajectories.append(
            Trajectory(
                sample=SampleId(prompt, 0),
                tokens=np.asarray(question + response, dtype=np.int64),
                loss_mask=np.asarray([0] * len(question) + [1] * len(response), dtype=np.int64),
                reward=0.0,
            )
        )
    return TrajectoryBatch.from_trajectories(trajectories, pad_id=tokenizer.pad_id)
