"""A module of Lightning, recorded by the one line that the documentation gives. The argument is the folder."""

import sys

import lightning
import torch

import rldbg


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def on_train_start(self):
        self.recorded = rldbg.record_loop(self, self.optimizers(), sys.argv[1])

    def on_train_end(self):
        self.recorded.close()

    def training_step(self, batch, _):
        loss = self.layer(batch).pow(2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.manual_seed(0)
trainer = lightning.Trainer(
    max_steps=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, gradient_clip_val=float(sys.argv[2]), accumulate_grad_batches=2,
)  # fmt: skip
trainer.fit(Module(), torch.utils.data.DataLoader(torch.arange(32.0).view(8, 4), batch_size=2))
