"""torch's own phases, whatever program runs them."""

from rldbg.agent.profiling import Hook

_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)

HOOKS = (
    Hook("torch.autograd", "backward", phase="backward", seen="2.13.0"),
    *(Hook("torch.distributed.distributed_c10d", name, phase="sync", seen="2.13.0") for name in _COLLECTIVES),
)
