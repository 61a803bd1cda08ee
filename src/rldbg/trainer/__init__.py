"""The embedded GRPO trainer: small and readable, the default subject of the other verbs.

The step functions (`forward`, `compute_loss`, `train_micro_batch`, `apply_gradients`) and what they need run without
Ray; only `rldbg.trainer.cluster` imports it. Names are loaded when they are first used.
"""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.replay.loss import choose_device
    from rldbg.trainer.cluster import Cluster
    from rldbg.trainer.determinism import fix_threads, random_state, restore_random_state, seed_everything
    from rldbg.trainer.metrics import Tracker, open_tracker
    from rldbg.trainer.model import build_model, check_model
    from rldbg.trainer.recipe import LoadedRecipe, parse_recipe, read_recipe, recipe_from_data
    from rldbg.trainer.rerun import changed_recipe
    from rldbg.trainer.rerun.capsule_model import capsule_model, fill
    from rldbg.trainer.rerun.capsule_reader import Capsule
    from rldbg.trainer.settings import AlgorithmSettings, ClusterSettings, ModelSettings, OptimizerSettings, Recipe
    from rldbg.trainer.steps import (
        Forward,
        LossTerms,
        MicroBatch,
        apply_gradients,
        compute_loss,
        forward,
        make_optimizer,
        train_micro_batch,
    )
    from rldbg.trainer.tiny_files import tiny_folder, write_tiny_tokenizer
    from rldbg.trainer.tokenizer import CharacterTokenizer, Tokenizer, load_tokenizer
    from rldbg.trainer.training import Reporting, TrainResult, train

__getattr__, __dir__ = lazy_names(__name__)

__all__ = ["Cluster", "ClusterSettings", "Recipe", "TrainResult", "read_recipe", "train"]
