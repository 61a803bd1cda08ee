"""OpenRLHF: DeepSpeed and vLLM on Ray."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="openrlhf",
    title="OpenRLHF",
    package=__name__,
    modules=("openrlhf",),
    programs=("train_ppo_ray.py", "train_ppo.py", "train_sft.py", "train_rm.py", "train_dpo.py"),
    tested="real modules of OpenRLHF 0.11.2",
)
