"""Waits for results of Ray of which Ray lists no task. It learns of tasks with a delay, and a process may be between
two of them: such a wait is a hang only if it is seen again, after Ray was asked again."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from rldbg.agent import Message
from rldbg.agent.waits import mark_moved
from rldbg.live.diagnosis.graph.entries import all_entries, process_id
from rldbg.live.diagnosis.graph.wait_graph import WaitFacts
from rldbg.live.diagnosis.hang import HangDiagnosis
from rldbg.live.diagnosis.ray.arguments import DONE

NOT_LISTED = "not_listed"
"""The kind of such a finding, as long as it is not known that the wait lasts."""
_WHY = "Ray lists no unfinished task that it started"
_NOT_YET = "the call may be new, or over: Ray learns of its tasks with a delay"


def why_not_listed(wait: WaitFacts) -> dict[str, Any]:
    """What is added to a wait for a result of which Ray lists no task."""
    if wait.get("lasts"):
        return {"lost": f"{_WHY}: the object was made elsewhere, or is lost"}
    return {"lost": f"{_WHY}: {_NOT_YET}", "unclear": NOT_LISTED}


def may_be_unclear(stack: Message, ray: Mapping[str, Any]) -> bool:
    """Whether a process waits for a result, and Ray lists none of its tasks as unfinished."""
    ids = [task["task_id"] for task in ray["tasks"] if task["state"] not in DONE]
    waits = [entry.get("wait") or {} for entry in all_entries(stack)]
    told = [wait.get("tasks") or [""] for wait in waits if wait.get("kind") == "ray_get" or wait.get("tasks")]
    return any(not any(number in each for number in ids for each in tasks) for tasks in told)


def is_unclear(causes: Iterable[HangDiagnosis]) -> bool:
    """Whether the job must be looked at again to tell whether it hangs."""
    return any(cause.kind == NOT_LISTED for cause in causes)


def mark_lasting(before: Sequence[Message], after: Sequence[Message], apart_s: float) -> None:
    """Marks the waits for Ray that are the same in two looks."""
    first = {process_id(stack): stack for stack in before}
    for stack in after:
        old = first.get(process_id(stack), {})
        for wait in _same_threads(old, stack, apart_s):
            wait["lasts"] = True
        tasks = {task["key"]: task for task in old.get("tasks") or []}
        for task in stack.get("tasks") or []:
            known = tasks.get(task["key"]) or {}
            if known.get("place") == task["place"] and _awaited(known) == _awaited(task):
                task["wait"]["lasts"] = True


def _same_threads(old: Message, stack: Message, apart_s: float) -> Iterator[dict[str, Any]]:
    threads = [each for each in stack.get("threads") or [] if "wait" in each and "kernel" in each]
    known = {each["native"]: each for each in old.get("threads") or [] if "wait" in each and "kernel" in each}
    threads = [each for each in threads if each["native"] in known]
    # Another look's marks are not changed.
    copies = deepcopy([{"native": each["native"], "frames": [], **each, "moved": False} for each in threads])
    mark_moved({"threads": [known[each["native"]] for each in threads]}, {"threads": copies}, apart_s)
    for thread, copy in zip(threads, copies, strict=True):
        if not copy["moved"] and copy["wait"]["kind"] == thread["wait"]["kind"]:
            yield thread["wait"]


def _awaited(task: Mapping[str, Any]) -> Any:
    return (task.get("wait") or {}).get("tasks")
