"""The switches of single kinds in a recipe's `debug:` block, and which of them records a kind."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """Which kinds a self-hosted trainer records; an absent entry means off."""

    trajectory: bool = False
    """Rollout trajectories."""
    old_log_probs: bool = False
    """Log probs of the policy before the update."""
    forward_data: bool = False
    """Log probs and entropy of each forward pass."""
    loss: bool = False
    """Loss values."""
    param: bool = False
    """Parameters that match target_param_pattern, after the optimizer step."""
    gradient: bool = False
    """Gradients of the same parameters, before the optimizer step."""
    is_loss_debug: bool = False
    """The importance-sampling loss element by element (trainer service)."""
    batch_inputs: bool = False
    """What went into the model (trainer service)."""
    weights: bool = False
    """Fingerprints of the weights that the trainer sends and that each engine replica holds, per version."""
    routing: bool = False
    """The experts that the trainer's forward pass chose, per token and layer."""
    rollout_routing: bool = False
    """The experts that the engine chose."""


# What a trainer service can record.
_OF_SERVICE = frozenset({"forward_data", "loss", "is_loss_debug", "batch_inputs", "param", "gradient"})


@dataclass(frozen=True, slots=True)
class RemoteApiDumpOptions:
    """Which kinds a trainer with a remote training API records."""

    prepared_trajectories: bool = False
    """Trajectories with their advantages."""
    datums: bool = False
    """What was sent to the training service."""
    training_metrics: bool = False
    """What the training service answered."""


def how_to_record(kind: str) -> tuple[str, ...]:
    """What switches a kind on: the recipe's option that has it, a trainer service's variable, else a call."""
    call = {"gradient": "record_gradients(step, model)", "param": "record_parameters(step, model)"}.get(kind)
    lines = [
        f"debug.{block}.{kind}: true"
        for block, options in (("dump_options", DumpOptions), ("remote_api_dump_options", RemoteApiDumpOptions))
        if kind in {item.name for item in fields(options)}
    ]
    lines = [f"{line}, or in your own loop recorder.{call or f'record({kind!r}, ...)'}" for line in lines]
    if kind in _OF_SERVICE:
        lines.append(f"in a trainer service, name it in WEAVER_DEBUG_DUMP_OPTIONS: {kind}")
    return tuple(lines) or (f"in your own loop, recorder.record({kind!r}, ...)",)
