"""TRL: trainers of Hugging Face, plain processes."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="trl",
    title="TRL",
    package=__name__,
    modules=("trl",),
    programs=("trl", "TRL CLI"),
    classes="(?:GRPO|DPO|SFT|PPO|RLOO|ORPO|KTO|CPO|Reward|PRM|GKD|OnlineDPO)(?:Trainer|Config)",
    rerun="command",
    tested="runs of TRL 1.16.0",
)
