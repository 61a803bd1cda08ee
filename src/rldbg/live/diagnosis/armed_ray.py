"""Ray's own view of an armed run, asked of the dashboard that its driver knows."""

from collections.abc import Sequence
from typing import Any

from rldbg.agent import Message
from rldbg.core import RldbgError


def ray_view_of(stacks: Sequence[Message]) -> dict[str, Any] | None:
    """None where the run uses no Ray, or Ray does not answer: the stacks are explained without it."""
    url = next((url for stack in stacks if (url := (stack.get("ray") or {}).get("dashboard"))), "")
    if not url:
        return None
    # Not loaded where there is no Ray.
    from rldbg.live.unarmed.ray_cluster import look_at_ray

    try:
        return look_at_ray(str(url), stacks=False)
    except RldbgError:
        return None
