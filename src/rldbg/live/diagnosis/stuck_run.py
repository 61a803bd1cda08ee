"""Why a job does not move: two looks at its processes, and Ray's own view of them; another look, where what was seen
may be over by now: a process waits for what Ray does not list (yet), or all that went on between the looks wait now."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rldbg.agent import Message
from rldbg.core import RldbgError
from rldbg.live.client.broker_client import BrokerClient
from rldbg.live.diagnosis.explanation import LOOKS_APART_S, explain
from rldbg.live.diagnosis.hang import HangDiagnosis
from rldbg.live.diagnosis.ray.lasting import is_unclear, mark_lasting

if TYPE_CHECKING:
    from rldbg.live.unarmed.job import UnarmedJob, UnarmedView

_LOOK_S = 120.0


def explain_run(client: BrokerClient, who: str = "all", **wanted: bool) -> tuple[list[Message], list[HangDiagnosis]]:
    """The stacks of the last snapshot of an armed run, and the causes; `wanted` lists additional contents of the
    stacks."""
    asked: dict[str, Any] = {"who": who, "flight_record": True, "waits": True, "timeout_s": _LOOK_S, **wanted}
    before = client.request("stacks", **asked)["stacks"]
    time.sleep(LOOKS_APART_S)
    begun = time.monotonic()
    stacks = client.request("stacks", **asked)["stacks"]
    found = explain(stacks, before=before, ray=_ray_view_of(stacks))
    if is_unclear(found) or found[0].unsettled:
        time.sleep(max(LOOKS_APART_S - (time.monotonic() - begun), 0.0))
        before, stacks = stacks, client.request("stacks", **asked)["stacks"]
        mark_lasting(before, stacks, time.monotonic() - begun)
        found = explain(stacks, before=before, ray=_ray_view_of(stacks))
    return stacks, found


def explain_job(job: "UnarmedJob", **wanted: bool) -> tuple["UnarmedView", list[HangDiagnosis]]:
    """What was seen of a job that has no agents, and the causes."""
    # Not loaded for armed runs.
    from rldbg.live.unarmed.job import look_at_job

    view = look_at_job(job, **wanted, apart_s=LOOKS_APART_S)
    found = explain(view.stacks, ray=view.ray)
    if found[0].unsettled:
        view = look_at_job(job, **wanted, apart_s=LOOKS_APART_S)
        found = explain(view.stacks, ray=view.ray)
    return view, found


def _ray_view_of(stacks: Sequence[Message]) -> dict[str, Any] | None:
    """Ray's view, from the cluster that the driver has joined. None where the run uses no Ray, or Ray does not answer:
    the stacks are explained without it."""
    address = next((found for stack in stacks if (found := (stack.get("ray") or {}).get("cluster"))), "")
    if not address:
        return None
    # Not loaded where there is no Ray.
    from rldbg.live.unarmed.ray_cluster import look_at_ray

    try:
        return look_at_ray(str(address), stacks=False)
    except RldbgError:
        return None
