"""An ordinary training script with TRL: nothing of rldbg in it. The first argument is its settings (JSON)."""

import json
import sys

import trl
from datasets import Dataset
from transformers import AutoTokenizer

SETTINGS = json.loads(sys.argv[1])


def digits(completions, **_):
    return [float(sum(character.isdigit() for character in text)) for text in completions]


def short(completions, **_):
    return [None if not text else -0.1 * len(text) for text in completions]


class WrongMask(trl.GRPOTrainer):
    """Leaves the last token of each response out of the loss."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        mask = batch["completion_mask"].clone()
        mask.scatter_(1, mask.sum(1, keepdim=True).clamp(min=1) - 1, 0)
        return batch | {"completion_mask": mask}


class WrongSign(trl.GRPOTrainer):
    """Trains away from what was rewarded."""

    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs | {"advantages": -inputs["advantages"]})


TRAINERS = {"GRPO": trl.GRPOTrainer, "RLOO": trl.RLOOTrainer, "wrong mask": WrongMask, "wrong sign": WrongSign}


def adapter():
    """A LoRA adapter, if the settings ask for one; a trainer that forgets to merge it, too."""
    if "lora" not in SETTINGS:
        return {}
    import peft

    if SETTINGS["lora"] == "forgotten":
        peft.LoraModel.merge_adapter = peft.LoraModel.unmerge_adapter = lambda *_, **__: None
    return {"peft_config": peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)}


def main():
    name = SETTINGS.get("trainer", "GRPO")
    configuration = trl.RLOOConfig if name == "RLOO" else trl.GRPOConfig
    common = {
        "output_dir": "out", "max_steps": 2, "per_device_train_batch_size": 8, "num_generations": 4, "seed": 3,
        "max_completion_length": 6, "learning_rate": 1e-3, "report_to": [], "use_cpu": True, "bf16": False,
        "logging_steps": 1, "save_strategy": "no", "gradient_checkpointing": False, "disable_tqdm": True,
    }  # fmt: skip
    trainer = TRAINERS[name](
        model=SETTINGS["model"],
        processing_class=AutoTokenizer.from_pretrained(SETTINGS["model"]),
        reward_funcs=[digits, short],
        args=configuration(**common | SETTINGS.get("args", {})),
        **adapter(),
        train_dataset=Dataset.from_list([{"prompt": f"{a}+{b}="} for a in range(4) for b in range(4)]),
    )
    trainer.train()


main()
