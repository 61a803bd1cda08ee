"""Runs in a framework's environment: its own losses on a saved batch, by their own signatures."""

import json
import sys

from missing_packages import stub

from rldbg.replay.loss import LossRequest, rerun_loss

if any(name.startswith("openrlhf") for name in sys.argv):
    stub("flash_attn", "vllm", "deepspeed", "torchdata", without=("flash_attn.ops.triton.cross_entropy",))
batch, *names = sys.argv[1:]
found = {}
for name in names:
    report, _ = rerun_loss(LossRequest(batch, name, device="cpu"), load_model=lambda *_: None)
    found[name] = {
        point.name: {item.reference: item.verdict for item in point.comparisons} | {"loss": point.loss}
        for point in report.points
    }
print("found", json.dumps(found))
