"""Who has to do something to the object that is waited for: put an item in, set it, notify it, complete it."""

import re
from collections.abc import Sequence
from typing import Any

from rldbg.live.diagnosis.graph.asked import Asked
from rldbg.live.diagnosis.graph.entries import all_entries, children_of, entry_id, front_of, process_id, serves
from rldbg.live.diagnosis.graph.left_out import with_left_out
from rldbg.live.diagnosis.graph.lost_waits import DUTIES, is_out_of_reach, workers_keep_ending
from rldbg.live.diagnosis.graph.pool_edges import completers, pool_edges
from rldbg.live.diagnosis.graph.wait_graph import FEEDS, NOT_ABOUT_TO, Edge, Id, WaitFacts
from rldbg.live.diagnosis.graph.wait_words import place_text
from rldbg.live.diagnosis.graph.who_ended import ended_processes, ended_relatives, ended_text, what_ended

# Who waits for the next item has nothing left to mark as done.
_TAKING = {"queue_join": "queue_get"}
_DIGITS = re.compile(r"\d+")
# Of these more may come from outside the job.
_FROM_OUTSIDE = frozenset({"socket", "stream", "message", "poll", "pipe", "stdin", "fifo"})


def duty_edges(asked: Asked) -> list[Edge]:
    """What somebody has to do, to an object: who does so in what it runs, or has the other end of it."""
    wait, stack, node, known = asked.wait, asked.stack, asked.node, asked.known
    host, (should, duty) = asked.base[0], DUTIES[asked.kind]
    found = []
    if wait.get("rest_of_item"):
        # Only the process that has begun to write an item can end it.
        should = "should write the rest of it"
    else:
        found = [edge for user in wait.get("users") or [] if (edge := _user_edge(user, stack, wait)) is not None]
        if is_out_of_reach(wait) or (wait.get("kept_to_itself") and serves(stack)):
            # Who would look it up by its name finds another one, or nothing.
            return [edge for edge in found if edge.relation == should]
        found += [edge for edge in _sharing(wait, stack, asked.stacks) if edge.relation == should or _may(edge, asked)]
    if gone := _fallen_beside(found, asked):
        node.wait = {**node.wait, "lost": gone, "fallen": True}
        return []
    others = [pid for pid in wait.get("ends") or [] if pid != stack.get("pid")] if not found else []
    if others and (lost := _ended_users(others, host, asked.stacks)):
        node.wait = {**node.wait, "lost": lost}
        return []
    willing = [pid for pid in others if _may_use(pid, asked)]
    if others and not willing and (gone := ended_relatives(wait, stack, asked.stacks)):
        # Who is forked has all queues of its parent.
        lost = f"no process that has the other end of the queue runs code that would {duty}: {gone}"
        node.wait = {**node.wait, "lost": lost}
        return []
    unwilling = f"{NOT_ABOUT_TO} {duty}"
    found += [Edge((host, pid, front_of(pid, host, known)), should if pid in willing else unwilling) for pid in others]
    if not found and wait.get("between") == "processes" and wait.get("ends") is None and asked.kind != "semaphore":
        family = [edge.target for edge in pool_edges(stack, known, threads=False)]
        above = [process_id(each) for each in asked.stacks if stack.get("pid") in children_of(each)]
        family += [(*each, front_of(each[1], each[0], known)) for each in above]
        edges = [Edge(other, f"may {duty}") for other in family if other in known]
        return [edge for edge in edges if _may(edge, asked)]
    found = found or _closed_at_exit(asked) or _starting(asked) or _asking(asked) or _feeding(asked)
    acting = should, f"may {duty}"
    found = [with_left_out(edge, asked) if edge.relation in acting else edge for edge in found]
    ends = asked.kind == "future" and not workers_keep_ending(wait, stack)
    return found or (completers(stack, node, known) if ends else [])


def _may(edge: Edge, asked: Asked) -> bool:
    """Whether who has a shared object may act on it from where it is: not if it waits for others of the job, and what
    it runs then does not name it."""
    node = asked.known[edge.target]
    if asked.wait.get("between") == "ray" or not node.waits or node.kind in _FROM_OUTSIDE:
        return True
    return _may_use(node.id[1], asked)


def _feeding(asked: Asked) -> list[Edge]:
    """Who gives the next item to who takes one after the other, and waits itself; not where somebody was started to do
    so, or requests bring the items."""
    if asked.wait.get("starters") or serves(asked.stack):
        return []
    found = [(_entry_named(each["who"], asked.stack), each) for each in asked.wait.get("fed_by") or []]
    edges = [
        Edge(identity, f"{FEEDS} {each['calls']} ({place_text(each)})")
        for identity, each in found
        if identity in asked.known and identity != asked.node.id
    ]
    return [edge for edge in edges if asked.known[edge.target].waits]


def _entry_named(who: str, stack: WaitFacts) -> Id:
    named = (each for each in all_entries(stack) if who in (each.get("thread"), each.get("key")))
    return next((entry_id(each, stack) for each in named), ())


def _closed_at_exit(asked: Asked) -> list[Edge]:
    """Processes whose main program is over, and that have closed the end of a queue which others wait at: those that
    have another end of it, and who has started the process that waits, and has given it the queue."""
    own = asked.stack.get("pid")
    if asked.wait.get("ends") is None:
        return []
    pids = [pid for pid in asked.wait.get("openers") or [] if pid != own]
    pids += [each["pid"] for each in asked.stacks if each.get("host") == asked.base[0] and own in children_of(each)]
    mains = [asked.known[each] for pid in pids if (each := (asked.base[0], pid, "main")) in asked.known]
    return [Edge(each.id, "has closed its end of it") for each in mains if each.wait.get("at_exit")]


def _starting(asked: Asked) -> list[Edge]:
    """Who will start the thread, process or task that would end the wait. A loop that has started some of those who
    meet at a barrier starts the others in its next rounds."""
    found, duty = [], DUTIES[asked.kind][1]
    wanted = [each for each in asked.wait.get("starters") or [] if not each["passed"]]
    hosts = [each for each in asked.stacks if each.get("host") == asked.base[0]] if wanted else []
    for identity, entry in ((entry_id(entry, stack), entry) for stack in hosts for entry in all_entries(stack)):
        later = [each for each in entry.get("starts") or [] if asked.kind == "barrier" or not each["again"]]
        lines = {(each["file"], each["line"]) for each in later if identity != asked.node.id}
        for each in wanted:
            if (each["file"], each["line"]) in lines:
                who = f"{each['what']} {each['name']}" if each["name"] else f"the {each['what']}"
                part = f"starts {who} (line {each['line']}), which would {duty}, only afterwards"
                found.append(Edge(identity, part))
    return found


def _asking(asked: Asked) -> list[Edge]:
    """Who will send the request for which the server calls the function that would end the wait."""
    found, duty = [], DUTIES[asked.kind][1]
    routes = [str(each) for each in asked.wait.get("routes") or []]
    entries = [(entry, each) for each in asked.stacks for entry in all_entries(each)] if routes else []
    for entry, stack in entries:
        asks = [each for each in entry.get("asks_for") or [] if str(each["path"]).endswith(tuple(routes))]
        if asks and entry_id(entry, stack) != asked.node.id:
            part = f"asks for {asks[0]['path']}, which would {duty}, only afterwards ({place_text(asks[0])})"
            found.append(Edge(entry_id(entry, stack), part))
    return found


def _may_use(pid: int, asked: Asked) -> bool:
    """Whether a process that has the other end of a queue may do with it what ends the wait, from where it is."""
    own = [each for each in asked.stacks if each.get("host") == asked.base[0] and each.get("pid") == pid]
    entries, ending = [entry for each in own for entry in all_entries(each)], set(asked.wait.get("ended_by") or ())
    if not entries or not asked.wait.get("shared") or not all("may_call" in entry for entry in entries):
        return True
    acts = [{*entry["may_call"], *entry["shares"].get(asked.wait["shared"], ())} for entry in entries]
    looked_up = (step for entry in entries for step in entry.get("answers") or () if step["method"] in ending)
    found = any(asked.wait["shared"] in (step["lookup"].get("objects") or ()) for step in looked_up)
    return found or any(each & ending for each in acts)


def _ended_users(pids: Sequence[int], host: Any, stacks: Sequence[WaitFacts]) -> str:
    """Why processes that have the other end of a queue do nothing with it: a thread of theirs has ended."""
    there = [each for each in stacks if each.get("host") == host and each.get("pid") in pids]
    gone = [(each["who"], what_ended(_without_children(each))) for each in there]
    told = [
        f"{who} has the other end of the queue, and runs no code that uses it: {what}" for who, what in gone if what
    ]
    return "; ".join(told) if len(told) == len(pids) else ""


def _fallen_beside(found: Sequence[Edge], asked: Asked) -> str:
    """A process that has failed beside those that would put an item in, and did the same under the next name: these
    wait for an item of their own, so what is missing is the other one's."""
    if asked.kind != "queue_get" or asked.wait.get("between") != "processes" or not found:
        return ""
    nodes = [asked.known[edge.target] for edge in found]
    if any(node.kind != "queue_get" or len(node.id) < 2 or node.id[0] != asked.base[0] for node in nodes):
        return ""
    pids = {node.id[1] for node in nodes}
    beside = [each for each in asked.stacks if each.get("host") == asked.base[0]]
    alive = {_numbered(_given_name(each)): each for each in beside if each.get("pid") in pids}
    parents = [each for each in beside if pids & set(children_of(each))]
    for ended in (ended for parent in parents for ended in ended_processes(parent, failed=True)):
        like = alive.get(_numbered(str(ended.get("name") or "")))
        if like is not None:
            return f"{ended_text(ended)}, and {like['who']}, which does the same, waits for its next item"
    return ""


def _given_name(stack: WaitFacts) -> str:
    """What the program calls a process; without an agent it has that as its role."""
    return str(stack.get("process_name") or stack.get("role") or "")


def _numbered(name: str) -> str:
    """A name with a number in it, without that; nothing says that other names belong together."""
    return _DIGITS.sub("#", name) if _DIGITS.search(name) else ""


def _without_children(stack: WaitFacts) -> WaitFacts:
    ended = [each for each in stack.get("ended") or [] if each["kind"] != "process"]
    return {**stack, "ended": ended, "children": []}


def _sharing(wait: WaitFacts, stack: WaitFacts, stacks: Sequence[WaitFacts]) -> list[Edge]:
    """Nodes of other processes on this host whose current function would end the wait for a shared object."""
    shared, by_ray = wait.get("shared"), wait.get("between") == "ray"
    hosts = [each for each in stacks if by_ray or each.get("host") == stack.get("host")] if shared else []
    entries = [(entry, each) for each in hosts if each is not stack for entry in all_entries(each)]
    # Who waits for the same comes to its own part of it only afterwards.
    same = (wait["kind"], shared)
    others = [
        (entry_id(entry, each), set(entry["shares"][shared]))
        for entry, each in entries
        if shared in entry.get("shares", {}) and (entry["wait"].get("kind"), entry["wait"].get("shared")) != same
    ]
    acting = [Edge(identity, DUTIES[wait["kind"]][0]) for identity, acts in others if acts & {*wait["ended_by"]}]
    # Whose object keeps a queue of Ray may use it in a method that is called later.
    return acting or [Edge(identity, f"may {DUTIES[wait['kind']][1]}") for identity, acts in others if not acts]


def _user_edge(user: WaitFacts, stack: WaitFacts, wait: WaitFacts) -> Edge | None:
    if not user["acts"] and not user.get("may"):
        return None
    for entry in all_entries(stack):
        # Who waits for the same comes to its own part of it only afterwards.
        same = entry["wait"].get("key") == wait.get("key") and entry["wait"].get("kind") in (
            wait["kind"],
            _TAKING.get(wait["kind"]),
        )
        if user["who"] in (entry.get("thread"), entry.get("key")) and not same:
            should, verb = DUTIES[wait["kind"]]
            return Edge(entry_id(entry, stack), should if user["acts"] else f"may {verb}")
    return None
