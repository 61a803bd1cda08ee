"""Log probs of a batch under a model, and gradients of a loss carried from the log probs into the parameters.

Rows go through the model a few at a time, while the loss sees them all: d loss / d parameters is put together from
d loss / d log_probs, which is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rldbg.algorithms import entropy, log_softmax, token_log_probs
from rldbg.replay.loss.ranks import LossRanks
from rldbg.replay.trajectory import TrajectoryBatch

if TYPE_CHECKING:
    import torch


class ModelPass:
    """A causal model over this rank's rows."""

    def __init__(self, model: Any, batch: TrajectoryBatch, rows: slice, *, ranks: LossRanks, micro_batch: int) -> None:
        self.model = model
        self._batch = batch
        self._rows = rows
        self._ranks = ranks
        self._micro = micro_batch
        self.parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}

    def log_probs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Log prob and entropy of every response token of the rows, without a graph."""
        import torch

        with torch.no_grad():
            parts = [self._forward(rows) for rows in self._parts()]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def logits(self) -> torch.Tensor:
        """The logits of all rows at once, with a graph, for a loss that asks for them."""
        return self._logits(self._rows)

    def carry(
        self, log_probs_gradient: torch.Tensor, entropy_gradient: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """The gradient of the parameters, summed over the ranks, for a gradient of this rank's log probs."""
        self.model.zero_grad(set_to_none=True)
        start = self._rows.start
        for rows in self._parts():
            log_probs, entropies = self._forward(rows)
            own = slice(rows.start - start, rows.stop - start)
            total = (log_probs * log_probs_gradient[own]).sum()
            if entropy_gradient is not None:
                total = total + (entropies * entropy_gradient[own]).sum()
            total.backward()  # type: ignore[no-untyped-call]
        return self.collected()

    def collected(self) -> dict[str, torch.Tensor]:
        """The gradients that lie in the parameters, summed over the ranks; parameters without one have none."""
        import torch

        found = {}
        for name, parameter in self.parameters.items():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().clone()
            found[name] = gradient
        self._ranks.summed(list(found.values()))
        self.model.zero_grad(set_to_none=True)
        return found

    def _parts(self) -> Iterator[slice]:
        for first in range(self._rows.start, self._rows.stop, self._micro):
            yield slice(first, min(first + self._micro, self._rows.stop))

    def _logits(self, rows: slice) -> torch.Tensor:
        batch = self._batch
        logits: torch.Tensor = self.model(
            input_ids=batch.input_ids[rows],
            attention_mask=batch.attention_mask[rows],
            position_ids=batch.position_ids[rows],
            use_cache=False,
        ).logits
        return logits

    def _forward(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        first = self._batch.input_ids.shape[1] - self._batch.response_width
        normalised = log_softmax(self._logits(rows)[:, first - 1 : -1].float())
        return token_log_probs(normalised, self._batch.input_ids[rows, first:]), entropy(normalised)
