"""How often Ray has started an actor again, and why one has died."""

from rldbg.live.diagnosis.wait_graph import WaitFacts

# As several versions of Ray say it.
_ASKED = ("out of scope", "all references to the actor were removed", "ray.kill")


def times_restarted(actor: WaitFacts) -> str:
    count = int(actor.get("num_restarts") or 0)
    return "" if not count else "once" if count == 1 else f"{count} times"


def died_unasked(actor: WaitFacts) -> bool:
    """Whether an actor died unexpectedly: not because its last handle was dropped, or it was told to end."""
    return not any(words in death_cause(actor) for words in _ASKED)


def death_cause(actor: WaitFacts) -> str:
    causes = actor.get("death_cause")
    if not isinstance(causes, dict):
        return "no reason is recorded"
    for value in causes.values():
        if isinstance(value, dict) and value.get("error_message"):
            return str(value["error_message"]).strip().partition("\n")[0].partition(" Some common causes")[0][:200]
    return "no reason is recorded"
