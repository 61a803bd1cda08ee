"""Where in TRL's loop a record belongs: which generation, which iteration over it, which optimizer step of that."""

import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass(frozen=True, slots=True)
class TrainerPlace:
    """`step` is one generation (or one optimizer step, where that takes several generations)."""

    step: int
    epoch: int = 0
    mini_batch: int = 0
    micro: int = 0
    generation: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {"step": self.step, "epoch": self.epoch, "mini_batch": self.mini_batch, "micro": self.micro}

    def of_update(self) -> dict[str, Any]:
        return {"step": self.step, "epoch": self.epoch, "mini_batch": self.mini_batch}


def place_of(trainer: Any, optimizer_step: int, micro: int) -> TrainerPlace:
    """The place of a micro-batch of an optimizer step, both counted from 0.

    A generation is used for `num_iterations` passes over `steps_per_generation` micro-batches; an optimizer step takes
    `gradient_accumulation_steps` of them.
    """
    accumulated = trainer.args.gradient_accumulation_steps
    per_pass = getattr(trainer.args, "steps_per_generation", None)
    if per_pass is None:
        return TrainerPlace(optimizer_step, micro=micro)
    per_generation = per_pass * getattr(trainer, "num_iterations", 1)
    generation, offset = divmod(optimizer_step * accumulated + micro, per_generation)
    epoch, within = divmod(offset, per_pass)
    if per_pass % accumulated:
        return TrainerPlace(optimizer_step, epoch, 0, micro, generation)
    return TrainerPlace(generation, epoch, within // accumulated, within % accumulated, generation)


def first_update(trainer: Any, step: int) -> int:
    """The first optimizer step of a step."""
    number = 0
    while place_of(trainer, number, 0).step < step:
        number += 1
    return number


def frame_of(function: str, depth: int = 6) -> FrameType | None:
    """The frame of a function of this name that calls the one that is hooked."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(depth):
        if frame is None or frame.f_code.co_name == function:
            return frame
        frame = frame.f_back
    return None
