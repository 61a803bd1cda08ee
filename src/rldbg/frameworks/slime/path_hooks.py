"""Functions for the `--*-path` options of slime and miles, which load them by name in their own processes.

    --rollout-all-samples-process-path rldbg.frameworks.slime.path_hooks.all_samples
    --custom-megatron-before-log-prob-hook-path rldbg.frameworks.slime.path_hooks.before_log_prob

Both load the hooks of this process where no agent has: rldbg must be installed there. Without RLDBG_RECORD_DIR, or a
run's own RLDBG_RECORD_HOOKS, they do nothing.
"""

import sys
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import numpy as np

from rldbg.agent import say
from rldbg.frameworks.plugin import register
from rldbg.frameworks.recorded import Recorded, process_hooks
from rldbg.frameworks.sequences import Sequences, named
from rldbg.recording import Ragged

_rollouts = count()
register()


def all_samples(args: Any, groups: Any, data_source: Any = None) -> None:
    """Every sample of a rollout, also those that a filter dropped, as the rollout manager has them."""
    number, hooks = next(_rollouts), process_hooks()
    if hooks is None:
        return
    try:
        _record(hooks.recorded, list(_flat(groups)), _rollout_id(number))
    except Exception as error:  # noqa: BLE001 - the hook inside the user's training, which must never kill it
        say(f"cannot record rollout_samples: {error!r}; training continues")


def before_log_prob(args: Any, model: Any, store_prefix: str = "", *_: Any) -> None:
    """In the ranks of the actor: what matters is that this module was imported."""


def _record(recorded: Recorded, samples: list[Any], step: int) -> None:
    masks = [[1] * each.response_length if each.loss_mask is None else each.loss_mask for each in samples]
    known = all(each.rollout_log_probs is not None for each in samples)
    rows = Sequences.listed(each.tokens for each in samples).rows(
        loss_mask=masks, logprobs=[each.rollout_log_probs for each in samples] if known else None
    )
    names = [each.sample for each in named(rows, step)]
    about = [
        {
            "group_id": name.group_id,
            "run_id": name.run_id,
            "group_index": each.group_index,
            "index": each.index,
            "status": each.status.value,
            "weight_versions": list(each.weight_versions),
        }
        for name, each in zip(names, samples, strict=True)
    ]
    dtypes = {"tokens": np.int64, "loss_mask": np.int64, "logprobs": np.float32}
    columns: dict[str, Any] = {
        name: Ragged.from_rows(rows[name], dtype) for name, dtype in dtypes.items() if name in rows
    }
    recorder = recorded.recorder()
    recorder.record(
        "rollout_samples",
        step=step,
        samples=names,
        reward=np.asarray([_reward(each) for each in samples], np.float32),
        extra_fields=about,
        **columns,
    )
    recorder.end_step(step)


def _reward(sample: Any) -> float:
    """A mapping of several rewards has no one number; the trainer's own records say which it took."""
    return float(sample.reward) if isinstance(sample.reward, int | float) else float("nan")


def _flat(groups: Iterable[Any]) -> Iterator[Any]:
    """Groups of samples; where one rollout became several samples, groups of lists of them."""
    for each in groups:
        if isinstance(each, list | tuple):
            yield from _flat(each)
        else:
            yield each


def _rollout_id(number: int) -> int:
    """The rollout id, given by newer versions of slime, else counted from 0."""
    said = getattr(sys.modules.get("slime.rollout.sample_hooks"), "_current_rollout_id", None)
    return number if said is None else int(said)
