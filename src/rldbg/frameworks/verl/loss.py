"""verl's policy losses (`register_policy_loss`) and the older `compute_policy_loss`."""

import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from rldbg.frameworks.loss_form import LossForm, LossSettings, Quantities


def _config(_quantities: Quantities, given: Mapping[str, Any]) -> LossSettings:
    """The actor's configuration: verl's own defaults where verl is loaded, as it is if the loss is verl's."""
    own: dict[str, Any] = {}
    actor = getattr(sys.modules.get("verl.workers.config"), "ActorConfig", None)
    for item in fields(actor) if actor is not None else ():
        if item.default is not MISSING:
            own[item.name] = item.default
        elif item.default_factory is not MISSING:
            own[item.name] = item.default_factory()
    # Some losses assert the class. Without its global batch, a loss is that of the rows it is given.
    kind: type[LossSettings] = LossSettings if actor is None else type("ActorSettings", (LossSettings, actor), {})
    return kind("config", own | {"global_batch_info": {}} | dict(given))


LOSS = LossForm(
    recognised_by=(frozenset({"old_log_prob", "log_prob", "response_mask"}),),
    arguments={"config": _config},
    settings={
        "cliprange": 0.2,
        "config.clip_ratio": 0.2,
        "config.clip_ratio_low": 0.2,
        "config.clip_ratio_high": 0.2,
        "config.clip_ratio_c": 3.0,
    },
)
