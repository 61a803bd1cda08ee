"""What makes a run repeatable bit for bit: thread counts, deterministic kernels, and seeds by name.

Random numbers of the rollout do not come from here but are keyed by sample and position (`rldbg.inference`), so that
neither the order of requests nor a restarted worker changes them.
"""

import random
from typing import Any

import numpy as np

from rldbg.core import Environment


def fix_threads(threads: int, *, deterministic: bool) -> dict[str, Any]:
    """Sets this process's thread counts and kernels; returns the settings for run.json and the capsule."""
    import torch

    torch.set_num_threads(threads)
    if deterministic:
        # `use_deterministic_algorithms` does the same and imports torch's compiler first, 1.6 s of CPU time.
        torch.set_deterministic_debug_mode("error")
        if torch.cuda.is_available():
            # cuBLAS reads this once, before its first call; without it deterministic mode refuses matrix products.
            Environment().export("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.backends.cudnn.benchmark = False
    return {"torch_threads": torch.get_num_threads(), "deterministic": deterministic}


def seed_everything(seed: int) -> None:
    """Seeds the global generators, for initialisation and anything a model draws by itself (dropout)."""
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """The state of the global torch generator, as bytes of a tensor."""
    import torch

    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    import torch

    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
