"""Which tasks of Ray make the arguments of one that waits for them. Ray itself does not tell: the variables of the
caller do, else the order in which it has started its tasks."""

from collections.abc import Sequence

from rldbg.live.diagnosis.graph.wait_graph import WaitFacts

DONE = frozenset({"FINISHED", "FAILED"})
"""States of tasks that have ended."""
ITSELF = "is that task"
"""The part of a task whose result is waited for."""
# Their results are no arguments of others.
_WITHOUT_RESULT = frozenset({"DRIVER_TASK", "ACTOR_CREATION_TASK"})


class Arguments:
    """Those of one task; `tasks` are all that Ray lists."""

    def __init__(self, task: WaitFacts, tasks: Sequence[WaitFacts]) -> None:
        self._task = task
        self._unfinished = [other for other in tasks if other is not task and other["state"] not in DONE]

    @property
    def _siblings(self) -> list[WaitFacts]:
        """Unfinished tasks that the same caller has started."""
        own = [other for other in self._unfinished if other["parent_task_id"] == self._task["parent_task_id"]]
        return [other for other in own if other["type"] not in _WITHOUT_RESULT]

    def given(self, calls: Sequence[WaitFacts]) -> tuple[list[WaitFacts], bool]:
        """The unfinished tasks whose results a task was given, by the calls in the functions of its caller, and whether
        that is certain: it is the only call of that name, and has started only one that has not finished."""
        own = [call for call in calls if call["name"] == _method(self._task)]
        ids = [each for call in own for each in call["tasks"]]
        inline = {each for call in own for each in call["inline"]}
        # From outside, the bytes around an id are known.
        found = [other for other in self._unfinished if any(other["task_id"] in each for each in ids)]
        found += [other for other in self._siblings if _method(other) in inline and other not in found]
        alone = all(other["name"] != self._task["name"] for other in self._siblings)
        return found, bool(found) and len(own) == 1 and alone

    def may_be_given(self) -> list[WaitFacts]:
        """What the caller has started too; of what waits for arguments as well, only what it has started before."""
        return [
            other for other in self._siblings if other["state"] != "PENDING_ARGS_AVAIL" or _is_older(other, self._task)
        ]

    def untold(self) -> str:
        """What Ray does not say of the tasks that make them."""
        return "does not tell which task makes them" if self._siblings else "lists no unfinished task of its caller"


def as_maker(relation: str, *, certain: bool) -> str:
    """The part of who makes an argument, or runs what does."""
    makes = "makes them" if certain else "may make them"
    return makes if relation == ITSELF else f"{relation}, which {makes}"


def _method(task: WaitFacts) -> str:
    return str(task["name"]).rpartition(".")[2]


def _is_older(other: WaitFacts, task: WaitFacts) -> bool:
    """Whether a task was started before another, as far as Ray tells."""
    first, second = other.get("creation_time_ms"), task.get("creation_time_ms")
    return first is not None and second is not None and first < second
