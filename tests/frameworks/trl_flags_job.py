"""A script as TRL's own examples are: everything comes from the command line."""

import trl
from datasets import Dataset

parser = trl.TrlParser((trl.GRPOConfig, trl.ModelConfig))
settings, model = parser.parse_args_and_config()
trl.GRPOTrainer(
    model=model.model_name_or_path,
    reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
    args=settings,
    train_dataset=Dataset.from_list([{"prompt": f"{number}+1="} for number in range(8)]),
).train()
