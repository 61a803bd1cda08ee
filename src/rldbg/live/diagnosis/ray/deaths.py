"""How often Ray has started an actor again, and why one has died."""

import re
from collections.abc import Sequence
from dataclasses import replace

from rldbg.agent.waits import is_users
from rldbg.live.diagnosis.graph.wait_graph import WaitFacts
from rldbg.live.diagnosis.graph.wait_words import place_text
from rldbg.live.diagnosis.hang import HangDiagnosis

_DIED = re.compile(r"\bactor (\S+) (?:[^;]*, but )?has died: ")
# Who should have acted itself, not somebody else for whom it may have done so.
_ITSELF = ", but has died: "
_TOLD = re.compile(r"; actor \S+ has died: .*$", re.DOTALL)
_BECAUSE = "because of that "

# As several versions of Ray say it.
_KILLED = "ray.kill"
_ASKED = ("out of scope", "all references to the actor were removed", _KILLED)
_DETAIL = "Worker exit detail: "
_EXIT_CODE = re.compile(r"with an exit code (-?\d+)")
_LINE = re.compile(r'File "([^"]+)", line (\d+),? in (\S+)')
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_SHOWN = 200


def times_restarted(actor: WaitFacts) -> str:
    count = int(actor.get("num_restarts") or 0)
    return "" if not count else "once" if count == 1 else f"{count} times"


def died_unasked(actor: WaitFacts) -> bool:
    """Whether an actor died unexpectedly: not because its last handle was dropped, or it was told to end."""
    return not any(words in _told_by_ray(actor) for words in _ASKED)


def was_killed(actor: WaitFacts) -> bool:
    return _KILLED in _told_by_ray(actor)


def death_cause(actor: WaitFacts) -> str:
    fatal, constructor = actor.get("fatal") or {}, _raised_by_constructor(actor)
    if fatal:
        return f"its process was ended by {fatal['signal']}{_at(str(fatal['trace']), innermost_first=True)}"
    if constructor:
        return constructor
    told = _told_by_ray(actor)
    _, has_detail, detail = told.partition(_DETAIL)
    if has_detail and (ended := _ended_text(detail)):
        return ended
    return (detail or told or "no reason is recorded").partition("\n")[0].partition(" Some common causes")[0][:_SHOWN]


def exit_of(actor: WaitFacts, ray: WaitFacts) -> str:
    """How the last process of an actor ended, which Ray is to start again; empty if Ray does not say it."""
    place = actor["node_id"], actor["pid"]
    rows = [row for row in ray["workers"] if (row["node_id"], row["pid"]) == place and not row["is_alive"]]
    told = [text for row in rows if (text := _ended_text(str(row.get("exit_detail") or "")))]
    return told[-1] if told else ""


def _ended_text(detail: str) -> str:
    """How Ray saw a process end; empty where it says something else."""
    if "connection error code" in detail:
        why = "it was killed (as by the kernel when memory is short), or called os._exit"
        return f"its process has ended without an error message: {why}"
    code = _EXIT_CODE.search(detail)
    asked = " after exit_actor()" if "exit_actor" in detail else ""
    return f"its process has ended (exit code {code[1]}){asked}" if code is not None else ""


def _told_by_ray(actor: WaitFacts) -> str:
    causes = actor.get("death_cause")
    values = causes.values() if isinstance(causes, dict) else ()
    texts = [str(value["error_message"]) for value in values if isinstance(value, dict) and value.get("error_message")]
    return texts[0].strip() if texts else ""


def raised_text(trace: str) -> str:
    """The last line of a traceback, with the innermost line of the user's code."""
    lines = [line.strip() for line in _COLOURS.sub("", trace).splitlines() if line.strip()]
    return f"{lines[-1][:_SHOWN]}{_at(trace)}" if lines else ""


def _raised_by_constructor(actor: WaitFacts) -> str:
    causes = actor.get("death_cause")
    context = causes.get("creation_task_failure_context") if isinstance(causes, dict) else None
    trace = str((context or {}).get("formatted_exception_string") or "").strip()
    return f"its constructor raised {raised_text(trace)}" if trace else ""


def _at(trace: str, *, innermost_first: bool = False) -> str:
    """The innermost line of the user's code in a traceback."""
    own = [found for found in _LINE.findall(trace) if is_users(found[0])]
    if not own:
        return ""
    file, line, function = own[0 if innermost_first else -1]
    return f" at {place_text({'file': file, 'line': line, 'function': function})}"


def deaths_once(causes: Sequence[HangDiagnosis]) -> list[HangDiagnosis]:
    """The findings; of those that tell the death of the same actors, the first one, with who waits in the others."""
    groups: dict[object, list[HangDiagnosis]] = {}
    for number, cause in enumerate(causes):
        dead = frozenset(_DIED.findall(cause.verdict))
        groups.setdefault(dead or number, []).append(cause)
    return [_together(sorted(group, key=lambda cause: _ITSELF not in cause.verdict)) for group in groups.values()]


def _together(causes: Sequence[HangDiagnosis]) -> HangDiagnosis:
    first = causes[0]
    if len(causes) == 1:
        return first
    lines = [line for cause in causes[1:] for line in (f"{_BECAUSE}{_without_death(cause.verdict)}", *cause.evidence)]
    return replace(
        first,
        ranks=tuple(sorted({rank for cause in causes for rank in cause.ranks})),
        evidence=tuple(dict.fromkeys((*first.evidence, *lines))),
        actors=frozenset().union(*(cause.actors for cause in causes)),
        told=frozenset().union(*(cause.told for cause in causes)),
    )


def _without_death(verdict: str) -> str:
    kept = _TOLD.sub("", verdict)
    return kept + ")" * (kept.count("(") - kept.count(")"))
