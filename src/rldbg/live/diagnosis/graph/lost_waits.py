"""Why a wait without a known counterpart never ends: who would have ended it, and what happened to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rldbg.live.diagnosis.graph.entries import all_entries
from rldbg.live.diagnosis.graph.failed_work import failed_duty
from rldbg.live.diagnosis.graph.skipped_steps import entry_text, functions_text, nobody_in, skipped_text, ways_text
from rldbg.live.diagnosis.graph.wait_graph import Id, Node, WaitFacts
from rldbg.live.diagnosis.graph.wait_words import POOL_RESULTS, exit_text, place_text
from rldbg.live.diagnosis.graph.who_ended import is_remembered, known_starters, what_ended, with_relatives

# What would end a wait of this kind: with "should", and as a bare verb.
DUTIES = {
    "queue_get": ("should put an item in", "put an item in"),
    "queue_put": ("should take an item out", "take an item out"),
    "queue_join": ("should mark the items as done", "mark items as done"),
    "event": ("should set it", "set it"),
    "condition": ("should notify it", "notify it"),
    "semaphore": ("should release it", "release it"),
    "future": ("should complete it", "complete it"),
    "barrier": ("should arrive there", "arrive there"),
}
_HAPPENED = {"queue_get": "have items", "event": "are set", "future": "are completed"}


def why_lost(
    entry: WaitFacts, wait: WaitFacts, stack: WaitFacts, known: Mapping[Id, Node], stacks: Sequence[WaitFacts] = ()
) -> str:
    if wait.get("shared") and wait.get("between") != "ray":
        stack = with_relatives(wait, stack, stacks)
    others = stacks if wait["kind"] == "store" else (stack,)
    duty = DUTIES.get(str(wait["kind"]), ("", "set it"))[1]
    # Where it should have given back what it took, it is told with that.
    failed = "" if wait.get("failed") else failed_duty(wait, others, duty)
    return failed or _pool_loss(entry, stack, known) or _lost(entry, wait, stack)


def _pool_loss(entry: WaitFacts, stack: WaitFacts, known: Mapping[Id, Node]) -> str:
    """Why a future is never completed, if no thread or process that could complete it was found."""
    if entry["wait"]["kind"] != "future":
        return ""
    if entry.get("loops"):
        return "its thread runs an event loop, whose tasks cannot continue meanwhile"
    if workers_keep_ending(entry["wait"], stack):
        why = "what they print on standard error says why (their initializer, or an import)"
        return f"the workers of the pool end as soon as they have started, and are replaced: {why}"
    fronts = [(stack.get("host"), child["pid"], "main") for child in stack.get("children") or []]
    idle = [front for front in fronts if front in known and known[front].background]
    if entry["wait"].get("type") not in POOL_RESULTS or not idle:
        return ""
    workers = f"all {len(idle)} workers of the pool are" if len(idle) > 1 else "the only worker of the pool is"
    return f"{workers} idle: the one that had this work has ended, and was replaced silently"


def workers_keep_ending(wait: WaitFacts, stack: WaitFacts) -> bool:
    """Whether the pool has started replacement workers within a second, although it keeps workers for all tasks."""
    return bool(wait.get("keeps_workers") and stack.get("replaced_children"))


@dataclass(frozen=True)
class _Loss:
    """A wait without a known counterpart; `gone` are those who may have been it, in words."""

    entry: WaitFacts
    wait: WaitFacts
    stack: WaitFacts
    gone: str

    def with_gone(self, words: str, mark: str = ":") -> str:
        return f"{words}{mark} {self.gone}" if self.gone else words


def _lost(entry: WaitFacts, wait: WaitFacts, stack: WaitFacts) -> str:
    """Why a wait without a known counterpart is not ended."""
    if wait.get("completed"):
        return (
            "that has happened, but in another thread, which does not wake this event loop: "
            "loop.call_soon_threadsafe or asyncio.run_coroutine_threadsafe does"
        )
    if is_out_of_reach(wait):
        how = ", which is completed" if wait.get("replaced_by") == "FINISHED" else ""
        known_as = wait.get("known_as")
        called = f"this was `{known_as}`, which stands for something else by now" if known_as else ""
        called = called or f"`{wait['name']}` was replaced by another one since{how}"
        return f"{called}: what is done to that one does not end this wait"
    ended = what_ended(stack, known_starters(wait))
    if wait.get("rest_of_item"):
        return "the process that wrote it has ended in the middle of it" + (f": {ended}" if ended else "")
    gone = ", ".join(filter(None, [_who_was_started(wait, stack, ended), ended]))
    words = _REASONS.get(str(wait["kind"]))
    return words(_Loss(entry, wait, stack, gone)) if words is not None else ""


def is_out_of_reach(wait: WaitFacts) -> bool:
    """Whether the name by which others would find what is waited for stands for another object, and no table has it."""
    return bool(wait.get("replaced")) and not wait.get("kept")


def _unmarked(loss: _Loss) -> str:
    """A queue whose items are not all marked as done."""
    size, unmarked = loss.wait.get("size") or 0, loss.wait.get("unmarked") or 0
    if unmarked <= size:
        return _undone_duty(loss)
    items = "1 item was" if unmarked - size == 1 else f"{unmarked - size} items were"
    return loss.with_gone(f"{items} taken and never marked as done: task_done was not called{_left_out(loss)}")


def _left_out(loss: _Loss) -> str:
    """What makes a thread or task that takes items leave out the step that would end the wait."""
    for entry in all_entries(loss.stack):
        for step in entry.get("answers") or ():
            same = loss.wait.get("key") in step["keys"] and step["method"] in (loss.wait.get("ended_by") or ())
            if same and step["left_by"]:
                return f" ({entry_text(entry)} does so in line {step['line']}, which {ways_text(step)})"
    return ""


def _unreleased(loss: _Loss) -> str:
    """A lock, or a semaphore that is used as one, which nobody who is seen holds."""
    wait, who = loss.wait, "task" if "task" in loss.entry else "thread"
    if wait["kind"] == "semaphore" and not _releases_itself(loss.entry, wait):
        return _undone_duty(loss)
    holders = f"no {who} is seen holding it: it was acquired and never released"
    if wait.get("taken_for"):
        holders += f" ({wait['taken_for']} has a thread acquire it and releases it itself: a task that is cancelled "
        holders += "meanwhile never does)"
    elif wait.get("skipped"):
        holders += f" ({skipped_text(wait)})"
    elif wait.get("takers"):
        holders += f" ({functions_text(wait['takers'])} acquires it, and does not release it itself)"
    if loss.stack.get("forked"):
        holders += ", here or by a thread of the parent when this process was forked"
    return loss.with_gone(holders, ";")


def _unreached(loss: _Loss) -> str:
    """A barrier."""
    if waiting := _all_of_pool(loss.entry, loss.wait, loss.stack):
        return f"all {waiting} threads of its pool wait there: the pool is too small, the others are queued behind them"
    return f"some never arrived: {loss.gone}" if loss.gone else "no other thread or process is seen that would arrive"


def _undone_duty(loss: _Loss) -> str:
    """What somebody has to do: to put an item in, to set, to notify, to complete."""
    wait, (_, duty) = loss.wait, DUTIES[str(loss.wait["kind"])]
    functions = wait.get("functions") or []
    if wait.get("ends") is not None and not [pid for pid in wait["ends"] if pid != loss.stack.get("pid")]:
        nobody = "no other process has its writing end open"
    elif any(user["acts"] for user in wait.get("users") or []):
        nobody = f"all who would {duty} wait for it as well"
    elif wait.get("between") == "processes" and wait.get("ends") is None:
        return loss.gone or f"no parent or child process of it is seen that would {duty}"
    elif functions:
        nobody = f"in its file only {functions_text(functions)} would {duty}, {nobody_in(functions, loss.stack)}"
    else:
        nobody = f"no thread or process is seen that would {duty}"
        # Others may call a queue of Ray otherwise: each process has an object of its own for it.
        known = wait.get("nowhere") and wait.get("between") != "ray"
        nobody += ", and no line of its file does so" if known else ""
    if wait.get("guard"):
        nobody += f" ({str(functions[0]).partition(':')[0]} does so only if {wait['guard']})"
    if wait.get("dropped"):
        nobody += f"; it is not in `{wait['dropped']}` any more, where this function has put it"
    later = wait.get("later") or {}
    if wait.get("skipped"):
        nobody += f"; {skipped_text(wait)}"
    elif later and not loss.gone:
        who = (
            "the main thread" if later["main"] else later["who"] if "task" in later["who"] else f"thread {later['who']}"
        )
        nobody += f"; {who} calls {later['calls']} only afterwards, at {place_text(later)}"
    # Of queues between processes it is told with the queue.
    kept = {} if wait.get("between") == "processes" else wait.get("kept") or {}
    return "; ".join(filter(None, [loss.with_gone(nobody), _others_ahead(str(wait["kind"]), kept)]))


def _others_ahead(kind: str, kept: WaitFacts) -> str:
    """Others of the same table for which it has happened: what was meant for this one may have gone there."""
    if not kept.get("ahead"):
        return ""
    more = f" and {kept['more']} more" if kept["more"] else ""
    happened = _HAPPENED[kind]
    return f"it is `{kept['table']}` under {kept['key']}, where others {happened}: {', '.join(kept['ahead'])}{more}"


def _unset_key(loss: _Loss) -> str:
    """A key of a torch.distributed store."""
    functions, written = list(loss.wait.get("functions") or [])[:3], loss.wait.get("written") or []
    set_as = {name: (loss.wait.get("set_as") or {}).get(name, "") for name in functions}
    told = [f"{functions_text([name])} sets {f'`{key}`' if key else 'keys'}" for name, key in set_as.items()]
    setting = f": in its file {' and '.join(told)}, and no rank is seen running it" if told else ""
    # A key that is made of parts may be made of others there.
    if written and any(set_as.values()) and written[0] not in set_as.values():
        setting += f"; what is waited for is written `{written[0]}`"
    return loss.with_gone(f"no rank is seen that would set it{setting}", ";")


def _locked_file(loss: _Loss) -> str:
    own = loss.stack.get("pid") in (loss.wait.get("holders") or ())
    return "this process holds it itself, through another open file or connection" if own else ""


def _stale_file(loss: _Loss) -> str:
    owner = loss.wait["lock_file"]["pid"]
    if owner == loss.stack.get("pid"):
        return "this process itself is named in it"
    return f"process {owner}, which is named in it, has ended: nobody will remove the file"


def _no_peer(loss: _Loss) -> str:
    """A pipe or a connection whose other end is not open, or was not accepted."""
    wait, entry = loss.wait, loss.entry
    if wait.get("ends") is None:
        return loss.gone
    itself = loss.stack.get("pid") in wait["ends"]
    if itself and not wait.get("accepted", True):
        serving = [str(frame["function"]).rpartition(".")[2] for frame in entry.get("frames") or []]
        blocked = ": its event loop is blocked here (deadlock)" if entry.get("loops") else ""
        blocked = ": the thread that accepts it waits here (deadlock)" if "serve_forever" in serving else blocked
        return f"this process listens there itself and has not accepted the connection{blocked}"
    if not wait.get("accepted", True):
        return "the program that listens there has not accepted the connection"
    return loss.with_gone("no other process has the other end open" if itself else "the other end is not open")


def _dead_workers(loss: _Loss) -> str:
    """Of a data loader."""
    dead = [worker for worker in loss.wait.get("workers") or [] if worker["ended"]]
    return "; ".join(f"worker {w['number']} (pid {w['pid']}) has ended ({exit_text(w['ended'])})" for w in dead)


def _lost_turn(loss: _Loss) -> str:
    lost = "no process is seen that takes one: whoever is killed in get() never releases the lock of the queue"
    return loss.with_gone(lost, ";")


def _forked_lock(_: _Loss) -> str:
    forked = "a fork copies such locks without the threads that hold them or wait for work"
    return f"this process has no other thread that could release it: {forked}; start it by spawn"


def _unconnected(loss: _Loss) -> str:
    return loss.with_gone("no process is connected to it") if loss.wait.get("ends") == [] else loss.gone


_REASONS: dict[str, Callable[[_Loss], str]] = dict.fromkeys(DUTIES, _undone_duty) | {
    "queue_join": _unmarked,
    "queue_turn": _lost_turn,
    "lock": _unreleased,
    "semaphore": _unreleased,
    "barrier": _unreached,
    "data_loader": _dead_workers,
    "native_lock": _forked_lock,
    "store": _unset_key,
    "file_lock": _locked_file,
    "lock_file": _stale_file,
    "child": lambda loss: loss.gone,
    "thread": lambda loss: loss.gone,
    "pipe": _no_peer,
    "socket": _no_peer,
    "stream": _no_peer,
    "message": _unconnected,
    "connection_pool": lambda _: (
        "no other request is seen in flight: responses that were neither read to their end nor closed hold them"
    ),
    "disk": lambda _: "it sleeps uninterruptibly in the kernel (state D): no signal ends that, not even SIGKILL",
}


def _all_of_pool(entry: WaitFacts, wait: WaitFacts, stack: WaitFacts) -> int:
    """How many threads a pool has, if all of them wait for the same as this one."""
    pooled = [thread for thread in stack.get("threads") or [] if thread.get("pooled")] if entry.get("pooled") else []
    same = [each for each in pooled if each["wait"].get("key") == wait.get("key")]
    return len(pooled) if len(same) == len(pooled) else 0


def _who_was_started(wait: WaitFacts, stack: WaitFacts, known: str) -> str:
    """Who would act or has acted, by the lines that start it, where the process does not remember it."""
    running = _running(stack)
    would = {str(each).partition(":")[0] for each in (*(wait.get("takers") or ()), *(wait.get("functions") or ()))}
    if would & {each.rpartition(".")[2] for each in running}:
        return ""
    started = [each for each in wait.get("starters") or [] if not is_remembered(str(each["name"]), known)]
    started = [each for each in started if not any(name.endswith(each["runs"]) for name in running)]
    return ", ".join(map(_started_text, started))


def _running(stack: WaitFacts) -> list[str]:
    """The functions that threads and tasks of a process are in."""
    return [str(frame["function"]) for entry in all_entries(stack) for frame in entry.get("frames") or []]


def _started_text(each: WaitFacts) -> str:
    name = f"{each['what']} {each['name']}" if each["name"] else f"a {each['what']}".replace("a work", "work")
    if each.get("later"):
        return f"{name} would run it, and is started only afterwards, in line {each['line']}"
    gone = "has ended" if each["passed"] else "is not there: it has ended, or was not started"
    if each["what"] == "task" and each.get("unkept"):
        gone += "; no variable keeps it, and Python may delete such a task before it ends"
    return f"{name} (started in line {each['line']} to run it) {gone}"


def _releases_itself(entry: WaitFacts, wait: WaitFacts) -> bool:
    """Whether the waiting side also releases it (a critical section), or it is used as a signal."""
    own = {str(frame["function"]).rpartition(".")[2] for frame in entry.get("frames") or []}
    return any(str(function).partition(":")[0] in own for function in wait.get("functions") or [])
