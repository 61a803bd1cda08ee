"""GRPOTrainer on the trajectories of a recording, its prompts in the recorded order. The argument is its settings."""

import json
import sys

import trl
from datasets import Dataset
from transformers import AutoTokenizer

from rldbg.replay import ReplayRollout, rollout_function

SETTINGS = json.loads(sys.argv[1])


class Trainer(trl.GRPOTrainer):
    """With `wrong_mask` the last token of each response is left out of the loss."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        if not SETTINGS.get("wrong_mask"):
            return batch
        mask = batch["completion_mask"].clone()
        mask.scatter_(1, mask.sum(1, keepdim=True).clamp(min=1) - 1, 0)
        return batch | {"completion_mask": mask}


tokenizer = AutoTokenizer.from_pretrained(SETTINGS["model"])
prompts = [
    tokenizer.decode(trajectory.tokens[: int(trajectory.loss_mask.argmax())])
    for _, trajectories in ReplayRollout(SETTINGS["recorded"])
    for trajectory in trajectories
    if trajectory.sample.run_id == 0
]
args = trl.GRPOConfig(
    output_dir="out", report_to=[], use_cpu=True, bf16=False, save_strategy="no", gradient_checkpointing=False,
    disable_tqdm=True, shuffle_dataset=False, lr_scheduler_type="constant", max_steps=2, beta=0.0,
    per_device_train_batch_size=16, num_generations=4, max_completion_length=4, learning_rate=1e-3, adam_epsilon=1e-3,
    **{"loss_type": "dapo"} | SETTINGS["args"],
)  # fmt: skip
trainer = Trainer(
    model=SETTINGS["model"],
    processing_class=tokenizer,
    reward_funcs=lambda recorded_reward, **_: recorded_reward,
    args=args,
    train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
    rollout_func=rollout_function(SETTINGS["recorded"]),
)
trainer.train()
