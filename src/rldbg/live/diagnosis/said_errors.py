"""Errors that processes of a job logged or printed before they went on, as candidate reasons: one belongs to a finding
if who said it should have acted for those who wait; the others are listed below the first finding."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rldbg.agent import Message
from rldbg.core import redact_text
from rldbg.live.diagnosis.graph.entries import process_id, process_name, thread_id
from rldbg.live.diagnosis.graph.wait_graph import FEEDS, Id, WaitFacts, WaitGraph
from rldbg.live.diagnosis.graph.wait_words import age_text, listed, place_text
from rldbg.live.diagnosis.hang import HangDiagnosis

_MOST_JOINED, _MOST_LISTED = 2, 3
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt|Iteration)\b")
# How Ray says which process a task ran in.
_WHICH_PROCESS = re.compile(r" \(pid=\d+, ip=[^()]*\)")
NOT_OF_PYTHON = "Dummy-"
"""How the names of threads begin that were not started by Python, as those of Ray that run calls of actors."""
# Where these jobs wait, it is not for what failed.
_NOT_HUNG = frozenset({"none", "moving", "computing", "busy", "cuda"})


@dataclass(frozen=True)
class _Speech:
    """An error and who said it: a node of the wait graph if its thread or task is still there, and its process; or one
    of several processes. `gone` is its thread, task or child process that has ended, `above` are the ancestors of a
    process that has."""

    error: WaitFacts
    label: str
    node: Id | None
    processes: tuple[Id, ...]
    gone: str = ""
    above: frozenset[Id] = frozenset()

    def text(self) -> str:
        error = self.error
        raised, caught = error.get("place") or {}, error.get("caught") or error.get("caught_in") or {}
        ended = bool(self.gone or self.above)
        verb = "logged" if error.get("logged") else "caught" if caught else "raised" if ended else "printed"
        message = redact_text(_in_one_line(str(error["message"])))
        there = place_text(caught)
        if caught and raised and caught["file"] == raised["file"]:
            there = f":{there.partition(':')[2]}"
        if error.get("caught_in"):
            there = str(caught["function"])
        at = "in" if error.get("caught_in") else "at"
        where = ", ".join(filter(None, [place_text(raised), f"{verb} {at} {there}" if caught else ""]))
        ago_s = error.get("ago_s")
        when = f" {age_text(ago_s)} ago" if ago_s is not None else ""
        on = "" if error.get("or_others") else " and has ended" if ended else " and went on"
        return f"{self.label} {verb} {message}{f' ({where})' if where else ''}{when}{on}"

    def is_named_in(self, found: HangDiagnosis) -> bool:
        return bool({*self.processes} & {each[:2] for each in found.told})

    def should_have_acted(self, found: HangDiagnosis, graph: WaitGraph) -> bool:
        if self.above:
            return bool(self.above & {each[:2] for each in found.told})
        if self.node is not None:
            return self.node in found.actors
        if self.error.get("or_others"):
            return False
        if self.gone and self.gone not in found.verdict and _others_should_act(found, graph):
            return False
        return set(self.processes) <= {each[:2] for each in found.actors}


def with_said_errors(
    causes: Sequence[HangDiagnosis], graph: WaitGraph, stacks: Sequence[Message]
) -> list[HangDiagnosis]:
    """Adds what was said last by who should have acted to the findings, and the rest to the one that names its process,
    or to the first."""
    speeches = list(_speeches(graph, stacks))
    joined: list[_Speech] = []
    found = []
    for cause in causes:
        own = (
            []
            if cause.is_harmless
            else [each for each in _last_of_each(speeches) if each.should_have_acted(cause, graph)]
        )
        own = [each for each in own if each not in joined and _is_new(each, cause)][:_MOST_JOINED]
        joined += own
        found.append(replace(cause, verdict="; ".join([cause.verdict, *(each.text() for each in own)])))
    if found[0].kind not in _NOT_HUNG:
        for speech in [each for each in speeches if each not in joined][:_MOST_LISTED]:
            number = next((n for n, cause in enumerate(found) if speech.is_named_in(cause)), 0)
            if _is_new(speech, found[number]):
                evidence = (*found[number].evidence, f"also said: {speech.text()}")
                found[number] = replace(found[number], evidence=evidence)
    return found


def _others_should_act(found: HangDiagnosis, graph: WaitGraph) -> bool:
    """Whether someone who is still there should have ended a wait that is told."""
    edges = [edge for told in found.told if told in graph.nodes for edge in graph.nodes[told].edges]
    return any(edge.target in found.actors and not edge.relation.startswith(FEEDS) for edge in edges)


def _is_new(speech: _Speech, cause: HangDiagnosis) -> bool:
    """Whether it is not told already, as what a process handles or what has ended it."""
    # Python prints the key of a KeyError in quotes.
    message = _unquoted(_raised_in(str(speech.error["message"])) or _in_one_line(str(speech.error["message"])))
    return not any(message in _unquoted(text) for text in (cause.verdict, *cause.evidence))


def _in_one_line(message: str) -> str:
    """The first line of a message without colours, and what was raised, where it quotes a whole traceback."""
    first, raised = _WHICH_PROCESS.sub("", _plain(message).partition("\n")[0]), _raised_in(message)
    return f"{first.removesuffix(':')}: {raised}" if raised and raised not in first else first


def _raised_in(message: str) -> str:
    """The exception with which a message of several lines ends, as a quoted traceback does."""
    lines = _plain(message).strip().splitlines()
    return lines[-1].strip() if len(lines) > 1 and _EXCEPTION.match(lines[-1].strip()) else ""


def _plain(text: str) -> str:
    return _COLOURS.sub("", text)


def _unquoted(text: str) -> str:
    return text.replace("'", "").replace('"', "")


def _last_of_each(speeches: Sequence[_Speech]) -> list[_Speech]:
    found: dict[Any, _Speech] = {}
    for each in speeches:
        found.setdefault((each.node, each.processes), each)
    return list(found.values())


def _speeches(graph: WaitGraph, stacks: Sequence[Message]) -> Iterator[_Speech]:
    """Newest first, as far as the time is known."""
    every = [(stack, error) for stack in stacks for error in stack.get("said") or []]
    shared: set[tuple[Any, ...]] = set()
    for stack, error in sorted(every, key=lambda each: each[1].get("ago_s") or 0.0):
        process, one_of = process_id(stack), tuple(error.get("one_of") or ())
        if one_of:
            if (told := (process[0], one_of, error["message"])) in shared:
                continue
            shared.add(told)
            names = [process_name(each, stacks) for each in stacks if each.get("pid") in one_of]
            label = f"one of {listed(names)}" if len(names) > 1 else names[0]
            label += ", or another process that prints into the same file," if error.get("or_others") else ""
            yield _Speech(error, label, None, tuple((process[0], pid) for pid in one_of))
            continue
        started_by = stack.get("started_by") or () if not stack.get("threads") else ()
        above = frozenset((process[0], pid) for pid in started_by)
        node = _speaker(error, stack, graph) if not above else None
        label = graph.nodes[node].label if node is not None else process_name(stack, stacks)
        gone = _thread_or_task(error) if node is None and not above else ""
        yield _Speech(error, f"{gone} of {label}" if gone else label, node, (process,), gone, above)


def _thread_or_task(error: WaitFacts) -> str:
    if gone := error.get("gone"):
        return str(gone)
    if str(error.get("thread") or "").startswith(NOT_OF_PYTHON):
        # It is called so only while it runs Python, and its name says nothing.
        return ""
    if error.get("task_key"):
        return f"task {error['task']}"
    return f"thread {error['thread']}" if error.get("ident") is not None else ""


def _speaker(error: WaitFacts, stack: WaitFacts, graph: WaitGraph) -> Id | None:
    """The task, or the thread, that said it. A task of another name has its address after it has ended."""
    tasks = [task for task in stack.get("tasks") or [] if task["key"] == error.get("task_key")]
    if error.get("task_key"):
        own = [(*process_id(stack), "task", task["key"]) for task in tasks if task["task"] == error.get("task")]
    else:
        own = [thread_id(stack, error["ident"])] if error.get("ident") is not None else []
    return next((identity for identity in own if identity in graph.nodes), None)
