"""A user's loss on a saved batch: autograd, references, gradient norms; on CPU or GPU, on one rank or several."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.replay.loss.evaluation import LossRequest, rerun_loss
    from rldbg.replay.loss.ranks import choose_device
    from rldbg.replay.loss.results import LossReport, ModelGradients

__getattr__, __dir__ = lazy_names(__name__)

__all__ = ["LossReport", "LossRequest", "ModelGradients", "choose_device", "rerun_loss"]
