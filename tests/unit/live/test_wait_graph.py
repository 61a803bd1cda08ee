"""The wait graph: rings, chains and ends, from hand-made snapshots."""

import json
from zlib import crc32

import pytest

from rldbg.agent.waits import mark_moved, may_wait_for_interpreter
from rldbg.agent.waits.calls.native_calls import _add_interpreter_waits
from rldbg.live import explain, wait_of
from rldbg.live.diagnosis.ranks import rank_nodes


def _thread(name, wait, *, main=False, place=("job.py", 7, "work"), **more):
    file, line, function = place
    return {
        "thread": name,
        "ident": crc32(name.encode()),
        "native": crc32(name.encode()),
        "main": main,
        "background": False,
        "frames": [{"file": file, "line": line, "function": function}],
        "place": {"file": file, "line": line, "function": function},
        "kernel": {},
        "wait": wait,
        "holds": [],
    } | more


def _process(pid, *threads, **more):
    facts = {"who": f"job@{pid}", "role": "job", "rank": None, "state": "running", "host": "h", "pid": pid}
    return facts | {"threads": list(threads), "tasks": [], "ended": [], "children": []} | more


def _lock(name, key):
    return {"kind": "lock", "name": name, "key": key, "choices": [{"name": name, "key": key, "owner": None}]}


def _holds(name, key):
    return [{"name": name, "key": key, "file": "job.py", "line": 3, "function": "take"}]


def test_three_threads_in_a_ring_are_one_deadlock():
    threads = [
        _thread("a", _lock("y", "0x2"), holds=_holds("x", "0x1")),
        _thread("b", _lock("z", "0x3"), holds=_holds("y", "0x2")),
        _thread("c", _lock("x", "0x1"), holds=_holds("z", "0x3")),
    ]
    (found,) = explain([_process(1, *threads)])
    assert found.kind == "deadlock" and all(f"thread {name}" in found.verdict for name in "abc")
    assert (
        "thread a waits at job.py:7 (work) for lock `y`; thread b holds it (taken in job.py:3 (take))" in found.verdict
    )


def test_a_chain_ends_at_who_does_something_else():
    sleeper = _thread("b", {"kind": "sleep"}, holds=_holds("x", "0x1"), place=("slow.py", 9, "load"))
    (found,) = explain([_process(1, _thread("a", _lock("x", "0x1"), main=True), sleeper)])
    assert found.verdict.endswith(
        "thread b holds it (taken in job.py:3 (take)), but sleeps (time.sleep) at slow.py:9 (load)"
    )


def test_processes_that_wait_for_each_other_are_named():
    shared = {
        "kind": "lock",
        "name": "x",
        "key": "shared:1",
        "choices": [{"name": "x", "key": "shared:1", "owner": None}],
    }
    child = {"kind": "child", "pid": 2, "name": "worker", "child": {"state": "sleeping"}}
    parent = _process(1, _thread("MainThread", child, main=True, holds=_holds("x", "shared:1")))
    worker = _process(2, _thread("MainThread", shared, main=True))
    (found,) = explain([parent, worker])
    assert found.kind == "deadlock" and "job@1" in found.verdict and "job@2" in found.verdict


def test_a_rank_that_raised_is_named_with_its_exception():
    waiting = {"kind": "collective", "op": "all_reduce", "group": "default"}
    ranks = [_process(n, _thread("MainThread", dict(waiting), main=True), rank=n, world_size=3) for n in range(2)]
    raised = {"message": "ValueError: no", "place": {"file": "/x/reward.py", "line": 3, "function": "score"}}
    gone = _process(2, _thread("MainThread", {"kind": "exit"}, main=True), rank=2, world_size=3, raised=raised)
    found = explain([*ranks, gone])
    assert "rank 2 never entered it, but raised ValueError: no at reward.py:3 (score)" in found[0].verdict
    missing = explain(ranks)
    assert "rank 2 never entered it, but was not found (the job has 3 ranks)" in missing[0].verdict


def test_a_job_that_has_ended_is_said_to_have_ended():
    ended = _process(1, rank=0, state="exited", unanswered="the process has ended")
    raised = {"message": "ChildFailedError: train.py FAILED", "place": None}
    launcher = _process(2, state="crashed", raised=raised, unanswered="the process has ended")
    (found,) = explain([ended, launcher])
    assert found.verdict == (
        "the job has ended, no process is left to wait: job@2 raised ChildFailedError: train.py FAILED; "
        "rank 0 has ended"
    )
    assert found.kind == "ended" and "rldbg doctor" in found.fix[0] and not found.evidence
    held = _process(2, state="stopped", raised=raised)
    assert "has ended, no" not in explain([ended, held])[0].verdict


def test_what_one_rank_waits_for_is_said_with_who_is_missing():
    waiting = {"kind": "collective", "op": "all_reduce", "group": "default"}
    ranks = [
        _process(1, _thread("MainThread", waiting, main=True), rank=0, world_size=2),
        _process(2, _thread("MainThread", {"kind": "sleep"}, main=True), rank=1, world_size=2),
    ]
    assert wait_of(ranks, 1, "h") == (
        "rank 0 waits at job.py:7 (work) for all_reduce; "
        "rank 1 never entered it, but sleeps (time.sleep) at job.py:7 (work)"
    )
    assert wait_of(ranks, 2, "h") == wait_of(ranks, 3, "h") == ""


def test_ranks_that_wait_for_their_gpu_lead_to_the_one_that_is_elsewhere():
    gpu = {"kind": "cuda", "call": "cudaStreamSynchronize"}
    ranks = [_process(n, _thread("MainThread", dict(gpu), main=True), rank=n, world_size=3) for n in range(2)]
    slow = _thread("MainThread", {"kind": "sleep"}, main=True, place=("data.py", 9, "load"))
    (found,) = explain([*ranks, _process(2, slow, rank=2, world_size=3)])
    assert found.verdict == (
        "rank 0 waits at job.py:7 (work) for the GPU to finish its work (cudaStreamSynchronize); rank 2 is elsewhere "
        "(a collective on the GPU may need it), but sleeps (time.sleep) at data.py:9 (load); "
        "rank 1 waits in the same way"
    )
    # AND nobody is accused where all of them wait; who was not looked at is listed
    (unseen,) = explain(ranks)
    assert "elsewhere" not in unseen.verdict and unseen.kind == "cuda"
    assert unseen.evidence == ("not found of its 3 ranks: rank 2, which has ended or runs elsewhere",)


def test_a_rank_that_raised_before_a_collective_on_the_gpu_is_the_cause():
    barrier = {"kind": "collective", "op": "barrier", "group": "default"}
    raised = {"message": "ZeroDivisionError: division by zero", "place": {"file": "r.py", "line": 3, "function": "f"}}
    gpu = _process(1, _thread("MainThread", {"kind": "cuda"}, main=True), rank=0, world_size=2)
    (found,) = explain([gpu, _process(2, _thread("MainThread", barrier, main=True), rank=1, world_size=2)])
    assert found.kind == "cuda"
    handler = _thread("MainThread", barrier, main=True, handles=raised)
    (found,) = explain([gpu, _process(2, handler, rank=1, world_size=2)])
    assert (found.kind, found.ranks) == ("raised", (1,)) and found.fix[0].startswith("correct what was raised")
    assert "for barrier, while it handles ZeroDivisionError: division by zero raised at r.py:3 (f)" in found.verdict


def test_a_helper_that_does_something_from_time_to_time_is_no_second_cause():
    reports = _thread("reporter", _event(timeout=2.0))
    lost = _thread("MainThread", _queue("queue_get"), main=True)
    (found,) = explain([_process(1, lost, reports)])
    assert found.kind == "never_filled" and "reporter" not in found.verdict
    # Who waits for its end waits for the event.
    joins = _thread("MainThread", {"kind": "thread", "ident": reports["ident"], "thread": "reporter"}, main=True)
    assert "thread reporter" in explain([_process(1, joins, reports)])[0].verdict


def test_idle_helpers_of_a_process_that_goes_on_are_not_blamed():
    idle = {"kind": "queue_get", "name": "jobs", "key": "0x9", "users": [], "type": "Queue", "size": 0}
    busy = _thread("MainThread", {"kind": "computing"}, main=True)
    (found,) = explain([_process(1, busy, _thread("helper", idle))])
    assert found.kind == "none" and "is computing at job.py:7" in found.verdict


def test_who_sleeps_and_not_for_long_may_work_on_what_is_waited_for_as_a_whole():
    for slept, severity in (
        ({"again": True}, "info"),
        ({"delay_s": 0.1}, "info"),
        ({"delay_s": 600.0}, "error"),
        ({}, "info"),
    ):
        sleeps = _thread("worker", {"kind": "sleep", "polls": ""} | slept)
        joins = _thread("MainThread", {"kind": "thread", "thread": "worker", "ident": sleeps["ident"]}, main=True)
        (found,) = explain([_process(1, joins, sleeps)])
        assert "is that thread, but sleeps" in found.verdict and found.to_finding().severity == severity
    # AND who holds a lock meanwhile is not excused
    holds = _thread("worker", {"kind": "sleep", "polls": "", "again": True})
    holds["holds"] = [{"key": "0x5", "name": "lock", "file": "/x/job.py", "line": 1, "function": "f"}]
    wants = {"kind": "lock", "name": "lock", "key": "0x5", "choices": [{"name": "lock", "key": "0x5", "owner": None}]}
    (found,) = explain([_process(1, _thread("MainThread", wants, main=True), holds)])
    assert "holds it" in found.verdict and found.to_finding().severity == "error"


def test_a_program_at_the_other_end_of_a_pipe_that_sleeps_may_be_slow():
    reads = {"kind": "pipe", "call": "read", "ends": [2], "file": {"kind": "pipe", "descriptor": 5}}
    for slept, severity in (
        ({"delay_s": 4.2}, "info"),
        ({"delay_s": None}, "info"),
        ({"delay_s": 3600.0}, "error"),
        ({"delay_s": 0.5, "polls": "until `ready`"}, "error"),
    ):
        simulator = _process(2, _thread("MainThread", {"kind": "sleep"} | slept, main=True))
        (found,) = explain([_process(1, _thread("MainThread", reads, main=True)), simulator])
        assert "job@2 is at the other end, but" in found.verdict and found.to_finding().severity == severity


@pytest.mark.parametrize(
    ("progresses", "beside", "kind"),
    [
        (True, {}, "possible"),
        (True, {"kind": "sleep", "counted": True, "again": True}, "possible"),
        # It only sleeps from time to time, as what logs does.
        (True, {"kind": "sleep", "counted": False, "again": True}, "polling"),
        (False, {}, "polling"),
    ],
)
def test_a_loop_that_collects_may_get_more_from_who_runs(progresses, beside, kind):
    collects = {"kind": "sleep", "polls": "while `len(seen) < 5`", "progresses": progresses, "again": True}
    takes = {"kind": "queue_get", "name": "scores", "key": "0x5", "users": [{"who": "MainThread", "acts": ["put"]}]}
    threads = [
        _thread("MainThread", collects, main=True),
        _thread("publisher", takes),
        _thread("trainer", beside, moved=not beside),
    ]
    assert explain([_process(1, *threads)])[0].kind == kind


def test_workers_that_wait_alike_are_told_together_also_if_one_of_them_is_waited_for():
    batch = {"kind": "data_loader", "next": 2, "workers": [{"pid": 2, "ended": ""}, {"pid": 3, "ended": ""}]}
    children = [{"pid": pid, "state": "sleeping"} for pid in (2, 3)]
    keeper = _thread("refresh", {"kind": "sleep"}, holds=_holds("x", "0x5"))
    parent = _process(1, _thread("MainThread", batch, main=True), keeper, children=children)
    workers = [_process(pid, _thread("MainThread", _lock("x", "0x5"), main=True)) for pid in (2, 3)]
    (found,) = explain([parent, *workers])
    assert (
        "job@2 should load it, and waits at job.py:7 (work) for lock `x`; thread refresh of job@1 held it"
        in found.verdict
    )
    assert found.verdict.endswith("never released here; job@3 waits in the same way")


def test_a_rank_that_has_ended_before_it_joined_is_told_with_what_it_raised():
    joins = {"kind": "rendezvous", "call": "init_process_group", "world_size": 3}
    ranks = [_process(n + 2, _thread("MainThread", joins | {"rank": n}, main=True)) for n in range(2)]
    ended = [{"kind": "process", "name": "rank-2", "pid": 4, "exit": "exit code 1"}]
    children = [{"pid": n, "state": "sleeping"} for n in (2, 3)]
    launcher = _process(1, _thread("MainThread", {"kind": "sleep"}, main=True), ended=ended, children=children)
    raised = {"file": "/x/job.py", "line": 13, "function": "load_config"}
    gone = _process(4, state="exited", message="FileNotFoundError: rank2.json", raised_at=raised)
    found = explain([launcher, *ranks, gone])[0]
    assert (
        "rank 2 is not among the processes that join it; process rank-2 (pid 4) has ended (exit code 1): "
        "it raised FileNotFoundError: rank2.json at job.py:13 (load_config)" in found.verdict
    )
    # AND the children of another program do not matter
    stranger = launcher | {"pid": 9, "children": []}
    assert "rank-2" not in explain([stranger, *ranks])[0].verdict


def test_a_lock_whose_owner_is_not_in_the_process_was_held_at_its_fork():
    wants = {"kind": "lock", "name": "lock", "key": "0x5", "choices": [{"name": "lock", "key": "0x5", "owner": 99}]}
    child = _process(1, _thread("MainThread", wants, main=True))
    (found,) = explain([child | {"source": "memory"}])
    assert "lock `lock`; the thread that holds it is not in this process" in found.verdict
    # AND an agent tells of the user's threads only
    (found,) = explain([child])
    assert "no thread is seen holding it" in found.verdict


def test_a_job_of_which_nothing_was_seen_is_not_called_idle():
    (found,) = explain([])
    assert found.verdict == "nothing can be said about the job: no process was found to look at"


def test_what_cannot_be_seen_is_said():
    (found,) = explain([_process(1, unanswered="process 1 belongs to uid 0")])
    assert found.kind == "unknown" and "belongs to uid 0" in found.evidence[0]


def _rank(number, wait, **more):
    return _process(number, _thread("MainThread", wait, main=True, **more), rank=number, world_size=2)


def _collective(op, **more):
    return {"kind": "collective", "op": op, "group": "default", **more}


def test_a_backward_pass_and_a_barrier_wait_for_each_other():
    (found,) = explain([_rank(0, _collective("barrier")), _rank(1, _collective("backward"))])
    assert found.kind == "deadlock" and "for its backward pass, with the collectives" in found.verdict


def test_a_rank_that_calls_a_collective_while_it_handles_an_exception_is_told_with_it():
    raised = {
        "message": "FloatingPointError: loss is nan",
        "place": {"file": "/x/a.py", "line": 10, "function": "loss"},
    }
    saving = _rank(1, _collective("all_gather"))
    saving["threads"][0]["handles"] = raised
    (found,) = explain([_rank(0, _collective("all_reduce")), saving])
    assert "for all_gather, while it handles FloatingPointError: loss is nan raised at a.py:10 (loss)" in found.verdict
    assert "correct what was raised" in found.fix[0]


@pytest.mark.parametrize("raises", [False, True])
def test_an_exception_took_a_rank_past_a_collective_not_a_branch(raises, monkeypatch):
    monkeypatch.setattr(rank_nodes, "passed_by", lambda *_routes, waits: "it took `return`")
    place = {"file": "/x/a.py", "line": 10, "function": "loss"}
    saving = _rank(1, _collective("all_gather"))
    if raises:
        saving["threads"][0]["handles"] = {"message": "FloatingPointError: loss is nan", "place": place}
    (found,) = explain([_rank(0, _collective("all_reduce")), saving])
    assert ("rank 1 never entered it (it skipped it: it took `return`)" in found.verdict) is not raises


@pytest.mark.parametrize("late", [0, 1])
def test_an_agent_that_answered_too_late_once_leaves_its_frames_only(late):
    looks = [[_rank(0, _collective("barrier"))], [_rank(0, _collective("barrier"))]]
    looks[late][0]["threads"] = [{"name": "MainThread", "frames": [{"file": "/x/a.py", "line": 3, "function": "f"}]}]
    explain(looks[1], before=looks[0])


def test_an_exception_that_is_on_its_way_while_threads_are_joined_is_told():
    join = {"kind": "thread", "thread": "rollout-0", "ident": crc32(b"rollout-0")}
    raised = {"message": "KeyError: 41", "place": {"file": "/x/rewards.py", "line": 5, "function": "__call__"}}
    main = _thread("MainThread", join, main=True, place=("rollout.py", 38, "__exit__"), handles=raised)
    idle = _thread("rollout-0", {"kind": "queue_get", "name": "requests", "key": "0x9"})
    (found,) = explain([_process(1, main, idle)])
    assert "while it handles KeyError: 41 raised at rewards.py:5 (__call__)" in "\n".join(
        [found.verdict, *found.evidence]
    )
    # AND not the end of something, which programs handle every day
    main["handles"] = raised | {"message": "queue.Empty"}
    (found,) = explain([_process(1, main, idle)])
    assert "handles" not in "\n".join([found.verdict, *found.evidence])


def test_who_asks_for_what_would_end_the_wait_of_a_server_is_named_with_its_error():
    wait = {"kind": "event", "name": "accepting", "key": "0x9", "functions": ["post_resume:76"], "users": []}
    listens = {"kind": "socket", "file": {"local": "127.0.0.1:80"}}
    server = _process(1, _thread("MainThread", listens, main=True), _thread("engine-loop", wait))
    asked = {"name": "resume", "file": "/x/trainer.py", "line": 33, "function": "push_weights"}
    said = [{"message": "OSError: 400", "place": asked, "caught_in": asked, "logged": False, "ago_s": 3.0}]
    waits = {"kind": "socket", "call": "read", "file": {"peer": "127.0.0.1:80", "local": "127.0.0.1:5000"}}
    trainer = _process(2, _thread("MainThread", waits | {"ends": [1]}, main=True), asks_for=[asked], said=said)
    found = explain([server, trainer])[0]
    assert "job@2 asks for it in trainer.py:33 (push_weights), and does not do so now; job@2" in found.verdict
    assert "OSError: 400" in found.verdict


def test_ranks_that_expect_a_broadcast_from_different_ranks_disagree():
    roots = [_rank(number, _collective("broadcast", peer=1 - number)) for number in range(2)]
    told = explain(roots)[0].verdict
    assert "for broadcast; the ranks in it disagree on its root: rank 0 from rank 1, rank 1 from rank 0" in told
    same = explain([_rank(number, _collective("gather", peer=0)) for number in range(2)])[0].verdict
    assert "for gather to rank 0; all ranks are in it" in same


def test_nothing_is_said_about_the_operation_behind_an_asynchronous_wait():
    waits = _collective("wait", name="work")
    (found,) = explain([_rank(0, waits), _rank(1, {"kind": "sleep"})])
    assert "(`work`); rank 1 is not in a collective, but sleeps" in found.verdict
    # AND a rank that may be in the same operation is not accused
    (found, other) = explain([_rank(0, _collective("all_reduce")), _rank(1, waits)])
    assert "whether rank 1 is in the same one is not seen" in found.verdict and "rank 0" in other.verdict


def test_counters_that_know_nothing_do_not_hide_a_backward_pass_that_waits():
    groups = [{"name": "0", "ranks": [0, 1, 2], "sequence": 5}]
    ranks = [_rank(n, _collective("backward")) | {"groups": groups, "world_size": 3} for n in range(2)]
    slow = _rank(2, {"kind": "sleep"}, place=("data.py", 9, "load")) | {"groups": groups, "world_size": 3}
    (found,) = explain([*ranks, slow])
    assert "rank 2 never entered it, but sleeps (time.sleep) at data.py:9 (load)" in found.verdict


def test_who_listens_and_has_not_accepted_is_named():
    file = {"peer": "127.0.0.1:80", "local": "127.0.0.1:5000"}
    wait = {"kind": "socket", "call": "read", "file": file, "ends": [2], "accepted": False}
    server = _process(2, _thread("MainThread", {"kind": "sleep"}, main=True), suspended=True)
    (found,) = explain([_process(1, _thread("MainThread", wait, main=True)), server])
    assert "job@2 listens there and has not accepted the connection, but is suspended by a signal" in found.verdict


def test_a_receive_whose_sender_is_elsewhere_is_not_called_in_progress():
    receiver = _rank(0, _collective("recv", peer=1))
    (found,) = explain([receiver, _rank(1, _collective("barrier"))])
    assert found.kind == "deadlock" and "in progress" not in found.verdict
    sender = explain([_rank(0, _collective("recv", peer=1)), _rank(1, _collective("send", peer=0))])
    assert "in progress" in sender[0].verdict


def test_c_code_that_keeps_the_interpreter_is_named():
    main = _thread("MainThread", {"kind": "unknown"}, main=True, kernel={"call": "futex"})
    native = _thread("tokenizer", {"kind": "sleep"}, kernel={"state": "sleeping"}, place=("data.py", 9, "encode"))
    assert may_wait_for_interpreter([main, native])
    _add_interpreter_waits([main, native], [native["native"]])
    (found,) = explain([_process(1, main, native)])
    assert "for the interpreter lock (GIL); thread tokenizer holds it, but is in C code" in found.verdict


def test_a_thread_that_waits_for_a_coroutine_is_followed_to_it():
    task = {"task": "never", "key": "0x9", "frames": [], "background": False, "place": None, "holds": []}
    task["wait"] = {"kind": "event", "name": "", "key": "0x8"}
    waits = _thread("MainThread", {"kind": "future", "name": "handle", "key": "0x7"}, main=True)
    (found,) = explain([_process(1, waits, tasks=[task])])
    assert (
        "future `handle` to be completed; task never may be what completes it, and waits for an event" in found.verdict
    )


def test_ranks_without_a_number_are_joined_by_the_size_of_their_group():
    waits = _process(1, _thread("MainThread", _collective("all_reduce"), main=True), distributed=2)
    elsewhere = _process(2, _thread("MainThread", {"kind": "sleep"}, main=True), distributed=2)
    stranger = _process(3, _thread("MainThread", {"kind": "sleep"}, main=True), distributed=4)
    (found,) = explain([waits, stranger, elsewhere])
    assert "job@2 has a process group of that size and is not in it, but sleeps" in found.verdict


def _semaphore(functions):
    users = [{"who": name, "acts": ["release"]} for name in ("client-2", "client-3")]
    return {"kind": "semaphore", "name": "slots", "key": "0x5", "users": users, "functions": functions}


def test_those_who_wait_for_the_same_semaphore_are_not_expected_to_release_it():
    threads = [_thread(name, _semaphore(["work:9"])) for name in ("client-2", "client-3")]
    (found,) = explain([_process(1, *threads, ended=[{"kind": "thread", "name": "client-0"}])])
    assert found.kind == "never_released" and found.verdict.endswith(
        "no thread is seen holding it: it was acquired and never released; thread client-0 has ended; thread client-3 "
        "waits for the same semaphore"
    )
    # AND one that is released as a signal by those who wait for it themselves was not acquired by anybody
    (signal,) = explain([_process(1, *(_thread(name, _semaphore(["refill:3"])) for name in ("client-2", "client-3")))])
    assert "for semaphore `slots`; all who would release it wait for it as well" in signal.verdict


def test_the_thread_that_has_the_connection_is_at_its_other_end():
    file = {"peer": "127.0.0.1:80", "local": "127.0.0.1:5000"}
    asks = {"kind": "socket", "call": "read", "file": file, "ends": [2], "sockets": [[2, 7]]}
    client = _process(1, _thread("MainThread", asks, main=True))
    serves = _thread("request", _lock("weights", "0x1"), connections=[7])
    main = _thread("MainThread", {"kind": "socket", "file": file, "ends": [1]}, main=True, holds=_holds("w", "0x1"))
    (found,) = explain([client, _process(2, main, _thread("other", {"kind": "sleep"}, connections=[9]), serves)])
    assert found.kind == "deadlock"
    assert "thread request of job@2 is at the other end, and waits at job.py:7 (work) for lock `weights`" in (
        found.verdict
    )


def test_who_would_set_a_key_of_a_store_is_followed():
    waits = _process(1, _thread("MainThread", {"kind": "store", "name": "store", "keys": ["v/7"]}, main=True))
    sets = _process(2, _thread("MainThread", {"kind": "sleep"}, main=True, sets=["v/7"]))
    (found,) = explain([waits, sets, _process(3, _thread("MainThread", {"kind": "sleep"}, main=True, sets=["v/8"]))])
    assert found.verdict.endswith("`store`; job@2 should set it, but sleeps (time.sleep) at job.py:7 (work)")


def test_equal_sentences_are_told_once():
    waits = {"kind": "future", "name": "judged", "key": ""}
    threads = [_thread(f"reward_{n}", dict(waits), pooled=True) for n in range(3)]
    (found,) = explain([_process(1, *threads)])
    assert found.verdict.count("`judged`") == 1 and found.verdict.endswith(
        "; thread reward_1, thread reward_2 wait in the same way"
    )


def test_who_has_not_arrived_at_a_barrier_is_followed():
    users = [{"who": name, "acts": ["wait"]} for name in ("trainer", "logger", "evaluator")]
    at = {"kind": "barrier", "name": "b", "key": "0x7", "count": 2, "parties": 3, "users": users}
    threads = [_thread("trainer", at, holds=_holds("x", "0x1")), _thread("logger", at)]
    (found,) = explain([_process(1, *threads, _thread("evaluator", _lock("x", "0x1")))])
    assert found.kind == "deadlock" and "2 of 3 have arrived; thread evaluator should arrive there, and waits" in (
        found.verdict
    )


def test_who_will_start_those_that_are_missing_at_a_barrier_is_followed():
    start = {"file": "job.py", "line": 44}
    starter = start | {"what": "process", "name": "engine", "runs": "engine_main", "passed": False}
    barrier = {"kind": "barrier", "name": "b", "key": "0x1", "parties": 2, "count": 1, "starters": [starter]}
    first = _process(2, _thread("m", barrier, main=True))
    reading = {"kind": "child", "pid": 2}
    for again in (True, False):
        main = _thread("m", reading, main=True, starts=[start | {"again": again}])
        (found,) = explain([_process(1, main), first])
        assert found.kind == "deadlock"
        assert "job@1 starts process engine (line 44), which would arrive there, only afterwards, so" in found.verdict


def test_a_loop_that_starts_another_in_each_round_is_not_expected_to_start_who_fills_a_queue():
    start = {"file": "job.py", "line": 44, "again": True}
    starter = start | {"what": "thread", "name": "filler", "runs": "fill", "passed": False}
    taking = {"kind": "queue_get", "name": "q", "key": "0x9", "users": [], "starters": [starter], "functions": []}
    main = _thread("m", {"kind": "thread", "thread": "a", "ident": _thread("a", {})["ident"]}, main=True)
    found = explain([_process(1, main | {"starts": [start]}, _thread("a", taking))])
    assert "is not there: it has ended, or was not started" in found[0].verdict


def test_who_may_get_an_item_of_somebody_at_work_is_in_no_deadlock_with_those_who_are_idle():
    users = [{"who": each, "acts": ["put"]} for each in ("idle", "next", "busy")]
    collects = {"kind": "queue_get", "name": "scores", "key": "0x1", "users": users, "size": 0}
    takes = {"kind": "queue_get", "name": "answers", "key": "0x2", "users": [{"who": "m", "acts": ["put"]}], "size": 0}
    holds = [each | {"loops": False} for each in _holds("guard", "0x3")]
    busy = _thread("busy", {"kind": "sleep", "polls": "", "delay_s": 2.0}, holds=holds)
    others = [_thread("idle", takes), _thread("next", _lock("guard", "0x3")), busy]
    found = explain([_process(1, _thread("m", collects, main=True), *others)])
    assert {each.to_finding().severity for each in found} == {"info"}
    # AND it is a deadlock where nobody is at work
    stuck = explain([_process(1, _thread("m", collects, main=True), *others[:1])])
    assert [each.kind for each in stuck] == ["deadlock"]


def test_a_free_connection_is_kept_by_a_request_or_by_a_response_that_is_open():
    waits = _thread("MainThread", {"kind": "connection_pool", "limit": 1}, main=True)
    (found,) = explain([_process(1, waits)])
    assert (
        found.kind == "never_released"
        and "responses that were neither read to their end nor closed hold them" in found.verdict
    )
    asks = _thread("judge", {"kind": "socket", "file": {"peer": "10.0.0.1:80", "local": "10.0.0.2:9"}})
    (found,) = explain([_process(1, waits, asks)])
    assert "thread judge has one of them, and waits at job.py:7 (work) for data from 10.0.0.1:80" in found.verdict


def test_a_connection_of_a_process_to_itself_is_followed_to_its_blocked_loop():
    file = {"peer": "127.0.0.1:80", "local": "127.0.0.1:5000"}
    asks = {"kind": "socket", "call": "read", "file": file, "ends": [1], "accepted": False}
    main = _thread("MainThread", asks, main=True, loops=True)
    task = {"task": "client", "key": "0x9", "frames": [], "background": False, "place": None, "holds": []}
    task["wait"] = {"kind": "stream", "peer": "127.0.0.1:80", "ends": [1], "sockets": [[1, 8]]}
    (found,) = explain([_process(1, main, tasks=[task])])
    assert "the main thread runs the event loop that should answer" in found.verdict or "job@1 runs" in found.verdict
    assert found.verdict.endswith("has not accepted the connection: its event loop is blocked here (deadlock)")


def test_two_that_read_each_others_output_first_are_a_deadlock():
    asks = {"kind": "pipe", "call": "read", "file": {"kind": "pipe"}, "ends": [2]}
    serves = {"kind": "stdin", "call": "read", "file": {"kind": "pipe", "path": "pipe:[7]"}, "ends": [1]}
    stacks = [_process(pid, _thread("MainThread", wait, main=True)) for pid, wait in ((1, asks), (2, serves))]
    (found,) = explain(stacks)
    assert found.kind == "deadlock" and "for input on its standard input (pipe:[7]); job@1 is at the other end" in (
        found.verdict
    )


def test_a_child_that_waits_for_its_parent_and_is_waited_for_is_a_deadlock():
    waits = {"kind": "condition", "name": "cond", "key": "0x3", "between": "processes"}
    joins = {"kind": "child", "pid": 2, "name": "rollout", "child": {"state": "sleeping"}}
    children = [{"pid": 2, "state": "sleeping"}]
    parent = _process(1, _thread("MainThread", joins, main=True), children=children)
    (found,) = explain([parent, _process(2, _thread("MainThread", waits, main=True))])
    assert found.kind == "deadlock" and "job@1 may notify it" in found.verdict


def test_a_loop_that_asks_a_process_that_has_ended_is_told():
    polls = {"kind": "sleep", "polls": "that tries `healthy()` again after each OSError"}
    ended = [{"pid": 5, "state": "zombie", "exit": "exit code 9"}]
    (found,) = explain([_process(1, _thread("MainThread", polls, main=True), children=ended)])
    assert found.kind == "ended" and "after each OSError; child process 5 has ended (exit code 9))" in found.verdict


def test_what_a_program_of_another_language_waits_for_is_told_by_the_kernel():
    shell = {"pid": 9, "state": "sleeping", "command": "sh run.sh", "wait": {"kind": "fifo", "path": "/tmp/go"}}
    joins = {"kind": "child", "pid": 9, "name": "", "process": "launcher", "processes": [shell]}
    (found,) = explain([_process(1, _thread("MainThread", joins, main=True))])
    assert found.verdict.endswith(
        "process 9 (sh run.sh) is that process, and waits for a process to open the other end of /tmp/go"
    )


def test_what_keeps_a_rank_from_a_collective_is_told_once_and_to_its_end():
    takes = {"kind": "queue_get", "name": "q", "key": "0x9", "users": [{"who": "prefetcher", "acts": ["put"]}]}
    main = _thread("MainThread", takes, main=True, holds=_holds("lock", "0x1"))
    prefetcher = _thread("prefetcher", _lock("lock", "0x1"))
    late = _process(2, main, prefetcher, rank=1, world_size=2)
    assert wait_of([late], 2, "h").endswith("so they wait for each other (deadlock)")
    ring = explain([_rank(0, _collective("all_gather")), late])
    assert " | ".join(cause.verdict for cause in ring).count("for lock `lock`") == 1


def test_two_tasks_of_a_process_that_read_from_each_other_are_a_deadlock():
    task = {"frames": [], "background": False, "place": None, "holds": []}
    stream = {"kind": "stream", "ends": [1]}
    reads = stream | {"peer": "127.0.0.1:80", "descriptor": 6, "sockets": [[1, 7]]}
    serves = stream | {"peer": "127.0.0.1:5000", "descriptor": 7, "sockets": [[1, 6]]}
    tasks = [task | {"task": name, "key": name, "wait": wait} for name, wait in (("ask", reads), ("handle", serves))]
    loop = _thread("MainThread", {"kind": "event_loop"}, main=True)
    (found,) = explain([_process(1, loop, tasks=tasks)])
    assert found.kind == "deadlock" and "task handle is at the other end" in found.verdict


def test_a_loop_without_a_pause_that_asks_a_process_that_has_ended_is_told():
    spins = {"kind": "computing", "polls": "until `flag.value`"}
    ended = [{"kind": "process", "name": "publisher", "pid": 5, "exit": "exit code 1"}]
    (found,) = explain([_process(1, _thread("MainThread", spins, main=True), ended=ended)])
    assert found.kind == "ended" and (
        "polls without sleeping (a loop until `flag.value`; process publisher (pid 5) has ended (exit code 1))"
        in found.verdict
    )


def test_a_task_that_waits_for_a_process_whose_output_nobody_reads_is_a_deadlock():
    task = {"task": "run_tests", "key": "0x9", "frames": [], "background": False, "place": None, "holds": []}
    task["wait"] = {"kind": "child", "pid": 2, "name": "p"}
    loop = _thread("MainThread", {"kind": "event_loop"}, main=True)
    writes = {"kind": "pipe", "call": "write", "file": {"kind": "pipe"}, "ends": [1]}
    (found,) = explain([_process(1, loop, tasks=[task]), _process(2, _thread("MainThread", writes, main=True))])
    assert found.kind == "deadlock" and "task run_tests of job@1 is at the other end" in found.verdict


def test_a_transfer_with_another_tag_does_not_answer():
    sends = _rank(0, _collective("send", peer=1, tag=1))
    (found,) = explain([sends, _rank(1, _collective("recv", peer=0, tag=2))])
    assert found.kind == "deadlock" and "send to rank 1 (tag 1)" in found.verdict
    assert "for recv from rank 0 (tag 2)" in found.verdict
    same = explain([sends, _rank(1, _collective("recv", peer=0, tag=1))])
    assert "all ranks are in it" in same[0].verdict


def test_a_process_at_the_other_end_of_a_message_socket_is_followed():
    message = {"kind": "message", "name": "pull", "ends": [2]}
    engine = _process(
        2, _thread("MainThread", {"kind": "queue_get", "name": "inbox", "size": 0, "users": []}, main=True)
    )
    (found,) = explain([_process(1, _thread("MainThread", dict(message), main=True)), engine])
    assert "ZeroMQ socket `pull`; job@2 is connected to it, and waits" in found.verdict and "`inbox`" in found.verdict
    (alone,) = explain([_process(1, _thread("MainThread", message | {"ends": []}, main=True))])
    assert alone.kind == "no_peer" and alone.verdict.endswith("; no process is connected to it")


def test_who_waits_for_somebody_at_work_is_no_error():
    waits = _thread("MainThread", _lock("x", "0x1"), main=True)
    busy, spins = {"kind": "computing"}, {"kind": "computing", "polls": "until `ready`"}
    for wait, kind, severity in ((busy, "computing", "info"), (spins, "polling", "error")):
        (found,) = explain([_process(1, waits, _thread("b", wait, holds=_holds("x", "0x1")))])
        assert (found.kind, found.to_finding().severity) == (kind, severity)
        assert bool(found.fix) == (severity == "info")


def test_a_ring_of_different_waits_gets_no_advice_about_locks():
    shared = {"kind": "queue_get", "name": "q", "key": "0x9", "shared": "shared:q", "ended_by": ["put"], "users": []}
    learner = _process(1, _thread("MainThread", shared, main=True, holds=_holds("x", "shared:x")))
    actor = _process(2, _thread("MainThread", _lock("x", "shared:x"), main=True, shares={"shared:q": ["put"]}))
    (found,) = explain([learner, actor])
    assert found.kind == "deadlock" and "job@2 should put an item in, and waits" in found.verdict and not found.fix
    elsewhere = explain([learner, actor | {"host": "other"}])
    assert not any("job@2 should put" in each.verdict for each in elsewhere)


def test_whom_counters_blame_is_followed_back_to_who_waits_for_it():
    counted = {"groups": [{"name": "0", "ranks": [0, 1], "sequence": 4}], "world_size": 2}
    barrier = _thread("MainThread", _collective("barrier"), main=True, sets=["version"])
    waits = _rank(0, {}) | {"threads": [barrier | {"collective": {"op": "barrier", "group": "0"}}]} | counted
    late = _rank(1, {"kind": "store", "name": "store", "keys": ["version"]}) | counted
    late["groups"] = [{"name": "0", "ranks": [0, 1], "sequence": 3}]
    (found,) = explain([waits, late])
    assert found.verdict.startswith("rank 1 never entered barrier #4") and "all ranks are in it" not in found.verdict
    assert found.verdict.endswith("for barrier; rank 1 never entered it, so they wait for each other (deadlock)")


def _looks_at(*who):
    looks_at = [{"who": each, "name": "self.accepted"} for each in who]
    return {"kind": "sleep", "polls": "while `len(self.accepted) < 2`", "looks_at": looks_at, "again": True}


def test_a_loop_that_looks_at_what_a_waiting_thread_changes_waits_for_that_thread():
    taking = {"kind": "queue_get", "name": "q", "key": "0x9", "users": [{"who": "m", "acts": ["put"]}], "size": 0}
    (found,) = explain([_process(1, _thread("m", _looks_at("a"), main=True), _thread("a", taking))])
    assert found.kind == "deadlock"
    assert "for its loop while `len(self.accepted) < 2` to end; thread a should change `self.accepted`, and waits" in (
        found.verdict
    )


def test_a_loop_that_looks_at_what_a_running_thread_changes_only_polls():
    for busy in ({"kind": "computing"}, {"kind": "socket", "file": {"peer": "192.0.2.7:80", "local": "192.0.2.1:9"}}):
        waits = _thread("b", {"kind": "queue_get", "name": "q", "key": "0x9", "users": []})
        found = explain([_process(1, _thread("m", _looks_at("a", "b"), main=True), _thread("a", busy), waits)])
        assert not any("its loop" in each.verdict for each in found)


def test_a_main_program_that_looks_again_and_again_is_told_beside_other_waits():
    polls = _thread("MainThread", {"kind": "sleep", "polls": "until `buffer[0] == 1`"}, main=True)
    writer = _process(2, _thread("MainThread", {"kind": "event", "name": "loaded", "users": []}, main=True))
    event, polling = explain([_process(1, polls), writer])
    assert "event `loaded`" in event.verdict and polling.to_finding().severity == "info"
    assert "job@1 polls (a loop until `buffer[0] == 1`)" in polling.verdict


def test_a_server_that_nobody_connects_to_is_told_only_where_nothing_else_waits():
    accepts = {"kind": "socket", "call": "accept4", "file": {"local": "/tmp/env.sock"}}
    server = _process(1, _thread("MainThread", accepts, main=True))
    (alone,) = explain([server])
    assert alone.verdict.endswith("for a process to connect to /tmp/env.sock")
    lost = _process(2, _thread("MainThread", {"kind": "event", "name": "loaded", "users": []}, main=True))
    (found,) = explain([server, lost])
    assert "event `loaded`" in found.verdict


def test_an_idle_server_is_no_hang():
    task = {"frames": [], "background": False, "place": {"file": "a.py", "line": 1, "function": "f"}, "holds": []}
    kinds = {"serve": "serving", "heartbeat": "sleep"}
    tasks = [task | {"task": name, "key": name, "wait": {"kind": kind}} for name, kind in kinds.items()]
    (found,) = explain([_process(1, _thread("MainThread", {"kind": "event_loop"}, main=True), tasks=tasks)])
    assert found.kind == "none" and found.to_finding().id == "no_hang"
    assert found.verdict.startswith("no process waits for another: ")
    assert "is a server that waits for requests" in found.verdict and "sleeps (asyncio.sleep)" in found.verdict


def test_a_ring_by_a_guess_is_told_as_one():
    waits = {"kind": "event", "name": "loaded", "between": "processes", "users": []}
    child = _process(2, _thread("MainThread", waits, main=True))
    join = {"kind": "child", "pid": 2, "name": "worker", "child": {"state": "sleeping"}}
    parent = _process(1, _thread("MainThread", join, main=True), children=[{"pid": 2, "state": "sleeping"}])
    (found,) = explain([parent, child])
    assert found.verdict.endswith("job@1 may set it, so they may wait for each other (deadlock)")


def test_a_thread_that_sleeps_where_no_source_is_at_hand_is_said_to_wait():
    asleep = _thread("b", {"kind": "unknown"}, holds=_holds("x", "0x1"), kernel={"state": "sleeping", "call": "futex"})
    (found,) = explain([_process(1, _thread("a", _lock("x", "0x1"), main=True), asleep)])
    assert found.verdict.endswith("but waits in a call that is not recognised at job.py:7 (work)")


def test_a_shared_semaphore_that_its_users_release_themselves_is_not_left_to_others():
    waits = {"kind": "semaphore", "name": "slots", "key": "0x5", "between": "processes", "shared": "shared:s"}
    waits |= {"users": [], "ended_by": ["release"], "functions": ["work:9"], "choices": []}
    worker = _process(2, _thread("MainThread", waits, main=True, shares={"shared:s": ["acquire", "release"]}))
    same = worker | {"pid": 3, "who": "job@3"}
    join = {"kind": "child", "pid": 2, "name": "worker", "child": {"state": "sleeping"}}
    children = [{"pid": pid, "state": "sleeping"} for pid in (2, 3)]
    found = explain([_process(1, _thread("MainThread", join, main=True), children=children), worker, same])
    said = " | ".join(each.verdict for each in found)
    assert "semaphore `slots`; no thread is seen holding it: it was acquired and never released" in said
    assert "may release" not in said and "(deadlock)" not in said


def test_a_pool_whose_workers_end_at_once_is_told():
    wait = {"kind": "future", "name": "pool", "key": "0x1", "type": "Pool", "keeps_workers": True}
    looks = [_process(1, _thread("main", wait, main=True), children=[{"pid": n, "state": "running"}]) for n in (2, 3)]
    (found,) = explain(looks[1:], before=looks[:1])
    assert "the workers of the pool end as soon as they have started, and are replaced" in found.verdict


def test_processes_of_other_languages_are_followed_to_who_blocks_them():
    pipe = {"kind": "pipe", "call": "write", "file": {"kind": "pipe", "descriptor": 1}, "ends": [1]}
    writer = {"pid": 3, "state": "sleeping", "command": "yes", "wait": pipe, "children": []}
    shell = {"kind": "child", "processes": [writer]}
    facts = {"pid": 2, "state": "sleeping", "command": "sh -c yes", "wait": shell, "children": [{"pid": 3}]}
    child = {"kind": "child", "pid": 2, "name": "p", "processes": [facts]}
    (found,) = explain([_process(1, _thread("MainThread", child, main=True))])
    assert found.kind == "deadlock"
    assert "process 3 (yes) is that process, and waits for room in its standard output (a pipe, full)" in found.verdict


def test_a_file_that_a_process_has_locked_itself_is_told():
    wait = {"kind": "file_lock", "path": "/runs.db", "holders": [1], "ends": []}
    (found,) = explain([_process(1, _thread("MainThread", wait, main=True))])
    assert found.verdict.endswith(
        "the lock on file /runs.db; this process holds it itself, through another open file or connection"
    )


def test_a_key_that_no_rank_would_set_is_told_with_who_sets_keys():
    wait = {"kind": "store", "name": "store", "keys": ["weights/v1"], "functions": ["publish:16"]}
    (found,) = explain([_process(1, _thread("MainThread", wait, main=True))])
    assert "key `weights/v1`" in found.verdict
    assert "no rank is seen that would set it: in its file publish (line 16) sets keys" in found.verdict
    # AND how they are written, where that differs
    wait |= {"written": ["f'weights/{v:02d}'"], "set_as": {"publish:16": "f'weights/{v}'"}}
    (found,) = explain([_process(1, _thread("MainThread", wait, main=True))])
    assert (
        "publish (line 16) sets `f'weights/{v}'`, and no rank is seen running it; "
        "what is waited for is written `f'weights/{v:02d}'`"
    ) in found.verdict


@pytest.mark.parametrize("written", ["weights/v1", "f'weights/v{version}'", "f'{prefix}/v1'"])
def test_a_rank_that_sets_a_key_only_later_is_told_with_the_line(written):
    wait = {"kind": "store", "name": "store", "keys": ["weights/v1"], "functions": ["publish:16"]}
    later = {written: {"file": "/x/train.py", "line": 16, "function": "publish"}, "f'{anything}'": {}}
    setter = _thread("MainThread", {"kind": "lock", "name": "mutex"}, main=True, sets_later=later)
    (found, *_) = explain([_process(1, _thread("MainThread", wait, main=True)), _process(2, setter)])
    assert "job@2 sets it only later (train.py:16 (publish)), and waits" in found.verdict
    assert "no rank is seen" not in found.verdict


def test_what_a_moving_thread_waits_for_is_no_hang():
    wait = {"kind": "ray_get", "tasks": [], "count": 2}
    (found,) = explain([_process(1, _thread("MainThread", wait, main=True, moved=True))])
    assert found.kind == "none" and found.verdict.startswith("no wait lasts: job@1 is running (at the moment it waits ")


def test_who_completes_futures_by_looking_them_up_is_followed():
    future = {"kind": "future", "name": "reply", "key": "0x5", "ended_by": ["set_result"]}
    future["users"] = [{"who": "dispatcher", "acts": [], "may": True}]
    dispatcher = _thread("dispatcher", {"kind": "socket", "file": {"peer": "1.2.3.4:80"}})
    (found,) = explain([_process(1, _thread("MainThread", future, main=True), dispatcher)])
    assert "thread dispatcher may complete it, and waits" in found.verdict


def _queue(kind, **more):
    return {"kind": kind, "name": "jobs", "key": "0x9", "type": "Queue", "size": 0, "ended_by": [], "users": []} | more


def test_items_that_were_taken_and_not_marked_are_no_deadlock_with_who_takes_the_next():
    joins = _queue("queue_join", unmarked=2, users=[{"who": "scorer", "acts": ["task_done"]}])
    takes = _queue("queue_get", users=[{"who": "MainThread", "acts": ["put"]}])
    (found,) = explain([_process(1, _thread("MainThread", joins, main=True), _thread("scorer", takes))])
    assert found.kind == "never_marked_done" and "2 items were taken and never marked as done" in found.verdict


def test_a_name_that_stands_for_another_object_by_now_is_told():
    event = {"kind": "event", "name": "self.updated", "key": "0x5", "replaced": True, "ended_by": ["set"], "users": []}
    (found,) = explain([_process(1, _thread("MainThread", event, main=True))])
    assert "`self.updated` was replaced by another one since" in found.verdict


def test_a_thread_that_has_ended_in_the_process_that_fills_a_queue_is_told():
    takes = _queue("queue_get", between="processes", ends=[2])
    rests = _thread("MainThread", {"kind": "event", "name": "stop", "key": "0x7", "users": []}, main=True)
    engine = _process(2, rests, ended=[{"kind": "thread", "name": "engine-loop"}])
    found = explain([_process(1, _thread("MainThread", takes, main=True)), engine])
    said = "job@2 has the other end of the queue, and runs no code that uses it: thread engine-loop has ended"
    assert any(said in each.verdict for each in found)


def test_an_end_of_a_pipe_that_was_only_inherited_is_told():
    reads = {"kind": "pipe", "call": "read", "file": {"kind": "pipe"}, "ends": [2], "sockets": [[2, 9]]}
    dead = {"pid": 3, "state": "zombie", "exit": "exit code 0"}
    reader = _process(1, _thread("MainThread", reads, main=True), children=[dead])
    for connections, severity in (([], "error"), ([9], "info")):
        sleeps = _thread(
            "MainThread", {"kind": "sleep", "polls": "", "again": True}, main=True, connections=connections
        )
        (found,) = explain([reader, _process(2, sleeps)])
        assert found.to_finding().severity == severity
        assert ("runs nothing that writes into it (child process 3 has ended" in found.verdict) == (severity == "error")


def test_a_child_that_failed_is_why_nobody_writes_into_a_pipe_that_all_have_inherited():
    reads = {"kind": "pipe", "call": "read", "file": {"kind": "pipe"}, "ends": [2], "sockets": [[2, 9]]}
    failed = {"kind": "process", "name": "env-1", "pid": 3, "exit": "exit code 1"}
    reader = _process(1, _thread("MainThread", reads, main=True), ended=[failed])
    idle = _thread("MainThread", _reads("own", 1, 4), main=True)
    found = explain([reader, _process(2, idle)])[0]
    assert found.kind == "no_peer"
    said = "no process that has the other end open runs anything that writes into it: process env-1 (pid 3) has ended"
    assert said in found.verdict


def test_a_thread_that_an_exception_has_ended_is_told_with_it(tmp_path):
    frames = [{"file": "/x/data.py", "line": 29, "function": "tokenize"}]
    crash = {"thread": "prefetch", "where": "thread", "exceptions": [{"frames": frames}]}
    (tmp_path / "crash.json").write_text(json.dumps(crash))
    ended = [{"kind": "thread", "name": "prefetch", "kept_as": ""}]
    wait = _queue(
        "queue_get",
        functions=["_fill:25"],
        starters=[{"name": "prefetch", "runs": "_fill", "passed": True, "what": "thread", "line": 9}],
    )
    process = _process(1, _thread("MainThread", wait, main=True), ended=ended)
    process |= {"message": "KeyError: 'integral'", "crash_file": str(tmp_path / "crash.json")}
    (found,) = explain([process])
    assert "thread prefetch has ended: KeyError: 'integral' was raised at data.py:29 (tokenize)" in found.verdict


def _reads(name, pid, number):
    return {"kind": "socket", "type": "Connection", "name": name, "ends": [pid], "sockets": [[pid, number]]}


def test_of_those_who_have_the_other_end_of_a_pipe_the_one_that_writes_is_meant():
    # GIVEN two loops that have both pipes in their object, and each reads of one; a third one writes into the other
    handler = _thread("handler", _reads("results", 2, 9), connections=[4, 5])
    rests = _thread("MainThread", {"kind": "event_loop"}, main=True)
    inputs = _thread("inputs", _reads("inputs", 1, 4), connections=[8, 9])
    takes = _queue("queue_get", users=[{"who": "inputs", "acts": ["put"]}])
    loop = _thread("MainThread", takes, main=True, connections=[8, 9], writes=[9])
    (found,) = explain([_process(1, rests, handler), _process(2, loop, inputs)])
    # THEN these two are no deadlock: nobody will write into the first
    assert found.kind != "deadlock"
    said = (
        "the main thread of job@1 has the other end open and runs nothing that writes into it, but runs an event loop"
    )
    assert said in found.verdict
    assert any("the main thread of job@2 waits" in each for each in found.evidence)


def test_who_may_send_something_that_is_not_known_yet_is_still_meant():
    handler = _thread("handler", _reads("results", 2, 9), connections=[4, 5], may_call=["send"])
    inputs = _thread("MainThread", _reads("inputs", 1, 4), main=True, connections=[8, 9], may_call=["send"])
    rests = _thread("MainThread", {"kind": "event_loop"}, main=True)
    (found,) = explain([_process(1, rests, handler), _process(2, inputs)])
    assert found.kind == "deadlock"


def test_ranks_that_are_elsewhere_are_told_with_one_that_polls():
    key = {"kind": "store", "name": "store", "keys": ["go"]}
    polls = {"kind": "sleep", "polls": "while `ready < world` (ready = 2, world = 3)"}
    other = {"kind": "sleep", "polls": "until `path.exists()` (path = 'shard_2')"}
    ranks = [
        _rank(1, key),
        _rank(0, polls, sets=["go"]),
        _rank(2, other),
    ]
    found = explain(ranks)
    assert "rank 0 should set it, but polls" in found[0].verdict
    assert "meanwhile rank 2 polls (a loop until `path.exists()` (path = 'shard_2'))" in found[0].verdict


def test_a_pool_whose_threads_were_at_work_a_moment_ago_goes_on():
    future = {"kind": "future", "name": "scored", "key": "0x5", "ended_by": ["set_result"], "users": []}
    worker = _thread("pool_0", _queue("queue_get"), pooled=True, background=True)
    for moved, severity in ((True, "info"), (False, "error")):
        (found,) = explain([_process(1, _thread("MainThread", future, main=True), worker | {"moved": moved})])
        assert found.to_finding().severity == severity


def test_a_pool_that_is_too_small_for_a_barrier_is_told():
    barrier = {"kind": "barrier", "name": "sync", "key": "0x5", "count": 3, "parties": 4, "ended_by": [], "users": []}
    threads = [_thread(f"env_{number}", dict(barrier), pooled=True) for number in range(3)]
    (found,) = explain([_process(1, *threads)])
    assert "3 of 4 have arrived; all 3 threads of its pool wait there" in found.verdict
    # AND one that does something else may arrive
    others = explain([_process(1, *threads[:2], _thread("env_2", {"kind": "computing"}, pooled=True))])
    assert all("too small" not in each.verdict for each in others)


def test_who_had_a_lock_between_processes_and_was_killed_is_told():
    dead = {"kind": "process", "name": "rollout-1", "pid": 3, "exit": "signal 9"}
    parent = _process(1, _thread("MainThread", {"kind": "sleep"}, main=True), ended=[dead])
    (found,) = explain([parent, _process(2, _thread("MainThread", _lock("lock", "shared:7"), main=True), forked=True)])
    assert "never released; process rollout-1 (pid 3) has ended (killed by SIGKILL)" in found.verdict
    assert "forked" not in found.verdict


def test_streams_of_a_server_are_no_connections_of_a_client():
    pool = _thread("MainThread", {"kind": "connection_pool", "limit": 2}, main=True)
    serves = _thread("server", {"kind": "stream", "type": "asyncio.StreamReader", "peer": "127.0.0.1:1"})
    assert any("no other request is seen in flight" in each.verdict for each in explain([_process(1, pool, serves)]))


def test_a_rank_that_ended_without_setting_a_key_is_told():
    key = {"kind": "store", "name": "store", "keys": ["rollout/1/done"]}
    ended = _process(2, rank=1, world_size=2) | {"state": "exited", "exit": "exit code 0"}
    found = explain([_rank(0, key), ended])
    assert "rank 1 has not set it, but has ended (exit code 0)" in found[0].verdict
    # AND so is one that is not there any more
    (left,) = explain([_rank(0, key)])
    assert "not found of its 2 ranks: rank 1, which has ended or runs elsewhere" in left.verdict


def test_the_root_comes_first_and_those_who_wait_because_of_it_are_listed():
    """However long the chain is: nobody has to read it to its end to find the cause."""
    feeds = [
        _thread(f"stage-{n}", _queue("queue_get", key=f"0x{n}", users=[{"who": f"stage-{n + 1}", "acts": ["put"]}]))
        for n in range(1, 7)
    ]
    last = _thread("stage-7", {"kind": "event", "name": "loaded", "key": "0x99"}, place=("load.py", 9, "load"))
    joins = _thread("MainThread", {"kind": "thread", "ident": feeds[0]["ident"], "thread": "stage-1"}, main=True)
    (found,) = explain([_process(1, joins, *feeds, last)])
    assert found.kind == "never_set" and found.where == "thread stage-6, thread stage-7"
    assert found.verdict.startswith("thread stage-6 waits") and "stage-5" not in found.verdict
    assert "thread stage-7 should put an item in, and waits at load.py:9 (load) for event `loaded`" in found.verdict
    assert found.evidence[0] == "6 others wait because of that:"
    assert found.evidence[2].startswith("thread stage-1, thread stage-2, thread stage-3 and 2 more wait at job.py:7")
    assert found.evidence[1].startswith("the main thread waits at job.py:7 (work) for thread stage-1 to end")


def test_who_waits_for_a_ring_is_listed_below_it():
    threads = [
        _thread("a", _lock("y", "0x2"), holds=_holds("x", "0x1")),
        _thread("b", _lock("x", "0x1"), holds=_holds("y", "0x2")),
    ]
    joins = _thread("MainThread", {"kind": "thread", "ident": threads[0]["ident"], "thread": "a"}, main=True)
    reads = _queue("queue_get", name="scores", key="0x7", users=[{"who": "a", "acts": ["put"]}])
    (found,) = explain([_process(1, joins, *threads, _thread("reader", reads))])
    assert found.kind == "deadlock" and "reader" not in found.verdict
    assert found.evidence[0] == "2 others wait because of that:"
    assert found.evidence[2].startswith("thread reader waits at job.py:7 (work) for an item of queue `scores`")


def _event(**more):
    return {"kind": "event", "name": "stop", "key": "0x5", "users": [], "ended_by": ["set"]} | more


def test_waits_that_are_meant_to_last_are_no_hangs():
    """A program that only serves waits for a signal, or for an event of its own, until it is ended."""
    for lasting in (_event(by_signal=True), _event(nobody_elses=True), _event(kind="future", nobody_elses=True)):
        warmed_up = [{"kind": "thread", "name": "warm-up"}]
        (found,) = explain([_process(1, _thread("MainThread", lasting, main=True), ended=warmed_up)])
        assert found.to_finding().severity == "info" and "job@1 stays until" in found.verdict


def test_an_event_of_its_own_that_others_wait_behind_is_a_hang():
    waits = _thread("loader", _event(nobody_elses=True))
    joins = _thread("MainThread", {"kind": "thread", "ident": waits["ident"], "thread": "loader"}, main=True)
    (found,) = explain([_process(1, joins, waits)])
    assert found.kind == "never_set" and "thread loader" in found.verdict


def test_a_consumer_of_what_a_server_is_sent_waits_for_requests():
    takes = _queue("queue_get", functions=["do_POST:9"], starters=[])
    serves = _thread("server", {"kind": "serving"}, background=True)
    main = _thread("MainThread", takes, main=True)
    (found,) = explain([_process(1, main, serves)])
    assert found.to_finding().severity == "info" and "waits for requests (for an item of queue `jobs`" in found.verdict
    loop = _thread("server", {"kind": "event_loop", "listens": True})
    assert explain([_process(1, main, loop)])[0].to_finding().severity == "info"
    # Without a server, or where a thread was to fill it, nobody will.
    assert explain([_process(1, main)])[0].kind == "never_filled"
    filler = [{"what": "thread", "name": "filler", "line": 3, "passed": True, "runs": "fill"}]
    filled = _thread("MainThread", takes | {"starters": filler}, main=True)
    assert "thread filler (started in line 3" in explain([_process(1, filled, serves)])[0].verdict


def test_workers_behind_a_consumer_of_requests_are_idle_unless_one_of_them_is_waited_for():
    takes = _queue("queue_get", functions=["score:9"], starters=[], endless=True)
    batcher = _thread("batcher", takes)
    grades = _queue("queue_get", key="0x5", endless=True, users=[{"who": "batcher", "acts": ["put"]}])
    collects = _queue("queue_get", key="0x6", endless=True, users=[{"who": "grader", "acts": ["put"]}])
    server = _thread("MainThread", {"kind": "event_loop", "listens": True}, main=True)
    idle = [server, batcher, _thread("grader", grades), _thread("collector", collects)]
    (found,) = explain([_process(1, *idle)])
    assert found.kind == "none" and "thread grader waits for work" in found.verdict
    asks = _thread("request", _event(users=[{"who": "collector", "acts": ["set"]}]))
    assert explain([_process(1, *idle, asks)])[0].to_finding().severity == "error"
    once = _thread("grader", grades | {"endless": False})
    assert explain([_process(1, server, batcher, once)])[0].to_finding().severity == "error"


def test_a_loop_beside_a_process_that_ended_well_is_no_hang():
    polls = _thread("MainThread", {"kind": "sleep", "polls": "until `stop.is_set()`"}, main=True)
    for how, severity in (("exit code 0", "info"), ("signal 9", "error")):
        child = {"pid": 5, "state": "zombie", "exit": how, "command": "x"}
        (found,) = explain([_process(1, polls, children=[child])])
        assert found.to_finding().severity == severity and "child process 5 has ended" in found.verdict


def test_requests_in_flight_are_told_once():
    """Those that differ only in their numbers, at both ends; the library's task between them is left out."""
    asks = [_thread(f"rollout-{n}", {"kind": "socket", "file": {"peer": "h:1"}, "ends": [2]}) for n in range(5)]
    for n, each in enumerate(asks):
        each["wait"]["sockets"] = [[2, n]]
    handlers = [_task(f"Task-{n}", {"kind": "sleep", "delay_s": 2.0}, key=f"0x{n}") for n in range(5)]
    library = [
        _task(f"Task-{n + 5}", {"kind": "task", "keys": [f"0x{n}"]}, key=f"0x1{n}", background=True, connections=[n])
        for n in range(5)
    ]
    loop = _thread("MainThread", {"kind": "event_loop"}, main=True)
    (found,) = explain([_process(1, *asks), _process(2, loop, tasks=[*handlers, *library])])
    assert (
        "thread rollout-1 of job@1, thread rollout-2 of job@1, thread rollout-3 of job@1 and 1 more wait"
        in found.verdict
    )
    assert "task generate (Task-0) of job@2 is at the other end, but sleeps (asyncio.sleep)" in found.verdict
    assert found.to_finding().severity == "info"


def _task(name, wait, *, key, **more):
    place = {"file": "serve.py", "line": 4, "function": "generate"}
    facts = {"task": name, "key": key, "loop": "0x1", "frames": [place], "place": place, "background": False}
    return facts | {"serves": True, "wait": wait, "holds": []} | more


def test_what_is_known_of_a_shared_barrier_comes_from_all_processes():
    waits = {"kind": "barrier", "name": "bar", "key": "0x1", "shared": "shared:/mp-1", "parties": 3, "count": None}
    killed = [{"kind": "process", "name": "rank2", "pid": 9, "exit": "signal 9"}]
    ranks = [_process(n, _thread("MainThread", waits, main=True), ended=killed if n == 2 else []) for n in (1, 2)]
    (found,) = explain(ranks)
    assert (
        "2 of 3 have arrived; some never arrived: process rank2 (pid 9) has ended (killed by SIGKILL)" in found.verdict
    )
    assert found.verdict.endswith("job@2 waits for the same barrier")


def test_a_helper_that_waits_for_a_while_beside_a_program_that_goes_on_is_no_hang():
    notified = {"kind": "condition", "name": "c", "key": "0x3", "users": [], "ended_by": ["notify"]}
    rounds = _thread("MainThread", {"kind": "sleep", "again": True}, main=True)
    for timeout, severity in ((True, "info"), (False, "error")):
        helper = _thread("scheduler", notified | {"timeout": timeout})
        assert explain([_process(1, rounds, helper)])[0].to_finding().severity == severity
    # Who looks for what others should do does not go on.
    polls = _thread("MainThread", {"kind": "sleep", "again": True, "polls": "until `done`"}, main=True)
    assert explain([_process(1, polls, helper)])[0].to_finding().severity == "error"


def test_the_lock_file_of_a_process_that_goes_on_is_no_hang():
    file = {"path": "/x.lock", "age_s": 90.0, "pid": 2, "ended": False}
    waits = {"kind": "lock_file", "path": "/x.lock", "holders": [2], "lock_file": file}
    for again, severity in ((True, "info"), (False, "error")):
        holder = _process(2, _thread("MainThread", {"kind": "sleep", "again": again, "delay_s": 600.0}, main=True))
        found = explain([_process(1, _thread("MainThread", waits, main=True)), holder])[0]
        assert "lock file /x.lock (90 s old) to be removed; job@2 is named in it, but sleeps" in found.verdict
        assert found.to_finding().severity == severity


def test_who_fills_a_queue_that_a_library_waits_for_is_not_said_to_be_awaited():
    """`wait_for(queue.get())` makes a task of its own."""
    takes = _queue("queue_get", key="0x4", users=[{"who": "0x3", "acts": ["put"]}])
    tasks = [
        _task("consumer", {"kind": "task", "name": "wait_for(q.get(), 2)", "keys": ["0x2"]}, key="0x1"),
        _task("Task-2", takes, key="0x2", background=True),
        _task("ticker", {"kind": "sleep", "delay_s": 0.5}, key="0x3"),
    ]
    loop = _thread("MainThread", {"kind": "event_loop"}, main=True)
    (found,) = explain([_process(1, loop, tasks=tasks)])
    assert "and waits at serve.py:4 (generate) for an item of queue `jobs`" in found.verdict
    assert "task ticker should put an item in, but sleeps" in found.verdict


def test_a_ring_through_a_program_without_a_file_names_both():
    """A program given as `python -c` has no line of the user's code."""
    reads = {"kind": "pipe", "call": "read", "file": {"kind": "pipe"}, "ends": [2]}
    answers = {"kind": "stdin", "call": "read", "file": {"path": "pipe:[1]"}, "ends": [1]}
    child = _thread("MainThread", answers, main=True, background=True, place=("<string>", 2, "<module>"))
    (found,) = explain([_process(1, _thread("MainThread", reads, main=True)), _process(2, child)])
    assert "job@2 is at the other end, and waits" in found.verdict and "wait for each other (deadlock)" in found.verdict


def test_a_pool_that_runs_a_librarys_function_is_told_with_the_line_that_waits_for_it():
    line = ("/usr/lib/python3.11/threading.py", 327, "wait")
    waits = {"kind": "event", "name": "", "key": "0x5", "users": [], "ended_by": ["set"]}
    pooled = _thread("judge_0", waits, place=line, pooled=True)
    users = [{"who": "judge_0", "acts": ["set_result"]}]
    main = _thread("MainThread", {"kind": "future", "name": "judged", "key": "0x6", "users": users}, main=True)
    (found,) = explain([_process(1, main, pooled)])
    assert found.verdict.startswith("the main thread waits at job.py:7 (work) for future `judged` to be completed")
    assert "thread judge_0 should complete it, and waits at threading.py:327 (wait) for an event" in found.verdict


def test_who_is_held_is_told_with_the_commands_that_look_at_it_and_resume_it():
    asks = _thread("MainThread", {"kind": "child", "pid": 2, "child": {"state": "sleeping"}}, main=True)
    held = _process(2, _thread("MainThread", {"kind": "debugger"}, main=True), state="stopped", reason="exception")
    held |= {"message": "ValueError: no reward", "file": "reward.py", "line": 9, "who": "reward_1 (judge)"}
    (found,) = explain([_process(1, asks), held])
    assert found.kind == "raised" and "ValueError: no reward at reward.py:9, and is held" in found.verdict
    assert found.fix == ("inspect it: rldbg attach reward_1; resume it: rldbg continue reward_1",)


def test_a_rank_that_sleeps_in_each_round_of_a_counted_loop_is_at_work():
    reduces = {"kind": "collective", "op": "all_reduce"}
    waits = _process(1, _thread("MainThread", reduces, main=True), rank=0, world_size=2)
    for sleep, severity, words in (
        ({"counted": True, "delay_s": 0.4}, "info", "rank 1 has not yet entered it, but sleeps"),
        ({"counted": True, "delay_s": 3600.0}, "error", "rank 1 never entered it, but sleeps"),
        ({"counted": False, "delay_s": 0.4}, "error", "rank 1 never entered it, but sleeps"),
    ):
        slow = _process(2, _thread("MainThread", {"kind": "sleep"} | sleep, main=True), rank=1, world_size=2)
        (found,) = explain([waits, slow])
        assert found.to_finding().severity == severity and words in found.verdict


def test_two_jobs_of_a_host_are_told_apart():
    """Both have a rank 0 and a rank 1; one job is in a barrier while its rank 0 writes, the other one computes."""
    in_barrier = {"kind": "collective", "op": "barrier", "group": "default", "members": [0, 1]}
    saves = _thread("MainThread", {"kind": "computing"}, main=True, place=("save.py", 9, "save"))
    waits = _thread("MainThread", in_barrier, main=True)
    other = _thread("MainThread", {"kind": "sleep", "delay_s": 1.0}, main=True)
    jobs = [(1, 0, saves, "a:1"), (2, 1, waits, "a:1"), (3, 0, other, "a:2"), (4, 1, other, "a:2")]
    ranks = [_process(pid, thread, rank=rank, world_size=2, job=job) for pid, rank, thread, job in jobs]
    (found,) = explain(ranks)
    assert (
        found.to_finding().severity == "info"
        and "has not yet entered it, but is computing at save.py:9" in found.verdict
    )


def test_a_task_that_waits_for_something_else_than_before_goes_on():
    def look(awaits, **wait):
        wait = {"kind": "child", "pid": 7, "name": "tool", "child": {}} | wait
        return _process(1, tasks=[_task("agent", wait, key="0x9", awaits=awaits)])

    assert "moved" not in mark_moved(look("0x5"), look("0x5"), 1.0)["tasks"][0]
    for before in (look("0x4"), _process(1)):
        assert mark_moved(before, look("0x5"), 1.0)["tasks"][0]["moved"]
    # Who looks again after a while waits each time for something new, and unseen tasks tell nothing.
    assert "moved" not in mark_moved(look("0x4"), look("0x5", timeout=True), 1.0)["tasks"][0]
    assert "moved" not in mark_moved({"threads": []}, look("0x5"), 1.0)["tasks"][0]


def test_a_connection_on_which_nothing_is_asked_is_no_deadlock():
    def reads(number, other, **more):
        wait = {"kind": "stream", "file": {"peer": "127.0.0.1:1"}, "ends": [other], "sockets": [[other, 9]]}
        return _process(number, _thread("loop", wait | {"reads_on": True} | more, main=True, may_call=[]))

    client, server = reads(1, 2), reads(2, 1, requests=True)
    assert explain([client, server])[0].kind != "deadlock"
    # A loop that also sends waits for the answer.
    client["threads"][0]["may_call"] = ["send"]
    assert explain([client, server])[0].kind == "deadlock"


def test_who_writes_to_a_disk_piece_by_piece_goes_on():
    def look(wakes):
        kernel = {"state": "disk", "wakes": wakes, "cpu": 1}
        thread = _thread("MainThread", {"kind": "disk", "file": {}, "channel": "x"}, main=True, kernel=kernel)
        return _process(1, thread)

    assert "moved" in mark_moved(look(1), look(9), 1.0)["threads"][0]
    assert "moved" not in mark_moved(look(1), look(1), 1.0)["threads"][0]


def test_two_threads_of_a_rank_in_collectives_of_one_group_are_one_cause():
    def rank(number):
        saver = _thread("save", _collective("all_gather_object") | {"group": "0"})
        main = _thread("MainThread", _collective("barrier"), main=True)
        return _process(number + 1, main, saver, rank=number, world_size=2)

    (found,) = explain([rank(0), rank(1)])
    assert (
        "is in all_gather_object of the same process group at the same time: ranks that begin the two in different "
        "orders wait for each other"
    ) in found.verdict
    assert "in progress" not in found.verdict


def test_a_rank_that_serves_is_told_with_the_function_that_would_enter_the_collective():
    route = [{"file": "job.py", "line": 56, "function": "send", "escapes": [], "rounds": [], "tested": {}}]
    waiting = {"kind": "collective", "op": "broadcast", "group": "0", "peer": 0}
    sender = _process(1, _thread("MainThread", waiting, main=True, route=route), rank=0, world_size=2)
    lines = [{"file": "job.py", "line": number, "function": "Worker.update"} for number in (21, 56)]
    server = _thread("MainThread", {"kind": "serving"}, main=True, enters={"broadcast": lines})
    (found,) = explain([sender, _process(2, server, rank=1, world_size=2)])
    assert "rank 1 never entered it (only job.py:21 (update) would, which it does not run), but is a" in found.verdict


def test_a_child_that_waits_for_what_to_do_next_is_not_why_a_future_is_not_completed():
    loop = _thread("MainThread", {"kind": "event_loop"}, main=True, loops=True)
    asking = _task("update-1", {"kind": "future", "name": "reply", "key": "0x1", "users": []}, key="0x9")
    inbox = {"kind": "pipe", "name": "requests", "ends": [1], "sockets": [], "file": {"kind": "pipe"}}
    child = _process(2, _thread("MainThread", inbox, main=True))
    parent = _process(1, loop, tasks=[asking], children=[{"pid": 2, "state": "sleeping"}])
    (found,) = explain([parent, child])
    assert found.kind == "never_completed" and found.verdict.startswith("task update-1 of job@1 waits")
    assert "job@2 is idle: it waits for data" in found.verdict


def test_a_future_whose_name_was_given_to_another_is_the_cause():
    loop = _thread("MainThread", {"kind": "event_loop"}, main=True, loops=True)
    lost = {"kind": "future", "name": "self.reply", "key": "0x1", "users": [], "replaced": True}
    child = _process(2, _thread("MainThread", {"kind": "sleep"}, main=True))
    parent = _process(1, loop, tasks=[_task("update-1", lost | {"replaced_by": "FINISHED"}, key="0x9")])
    found = explain([parent | {"children": [{"pid": 2, "state": "sleeping"}]}, child])
    assert found[0].kind == "never_completed"
    assert "`self.reply` was replaced by another one since, which is completed" in found[0].verdict


def _given_queue(**more):
    return (
        {"kind": "queue_get", "name": "records", "key": "0x1", "shared": "shared:/q", "between": "processes"}
        | {"type": "Queue", "size": 0, "ends": [], "openers": [3], "users": [], "ended_by": ["put"]}
        | more
    )


def test_a_parent_that_waits_at_its_exit_for_a_child_which_waits_for_it_is_a_deadlock():
    at_exit = {"kind": "child", "pid": 3, "process": "logger", "at_exit": True, "name": ""}
    waits = _thread("MainThread", at_exit, main=True, background=True, place=("popen_fork.py", 27, "poll"))
    parent = _process(2, waits, children=[{"pid": 3, "state": "sleeping"}])
    logger = _process(3, _thread("MainThread", _given_queue(), main=True))
    gone = [{"kind": "process", "name": "rank-1", "pid": 9, "exit": "exit code 0"}]
    joins = _thread("MainThread", {"kind": "child", "pid": 2, "process": "rank-0", "name": ""}, main=True)
    main = _process(1, joins, children=[{"pid": 2, "state": "sleeping"}], ended=gone)
    (found,) = explain([main, parent, logger])
    assert found.kind == "deadlock" and "rank-1" not in found.verdict
    assert "for process 3 (logger) to end; its main program is over" in found.verdict
    assert "job@2 has closed its end of it" in found.verdict


def test_an_ended_process_that_had_started_the_one_that_waits_may_have_been_its_writer():
    gone = [{"kind": "process", "name": "controller", "pid": 9, "exit": "signal 3"}]
    main = _process(1, _thread("MainThread", {"kind": "sleep"}, main=True), ended=gone)
    waits = _process(3, _thread("MainThread", _given_queue(), main=True), started_by=[9, 1])
    assert "process controller (pid 9) has ended (killed by SIGQUIT)" in explain([main, waits])[0].verdict


def test_who_never_had_a_queue_is_not_named_as_its_writer():
    gone = [{"kind": "process", "name": "rank-1", "pid": 9, "exit": "exit code 0"}]
    main = _process(1, _thread("MainThread", {"kind": "sleep"}, main=True), ended=gone)
    took = _thread("MainThread", _given_queue(openers=[3, 4]), main=True)
    other = _process(4, _thread("MainThread", {"kind": "sleep"}, main=True), ended=[gone[0] | {"name": "writer-0"}])
    found = explain([main, _process(3, took), other])
    assert "process writer-0 (pid 9) has ended" in found[0].verdict and "rank-1" not in found[0].verdict


def test_who_asks_a_server_only_afterwards_for_what_would_end_its_wait_is_in_the_ring():
    gate = {"kind": "event", "name": "self.resumed", "key": "0x1", "users": [], "routes": ["/resume"]}
    server = _process(2, _thread("MainThread", gate, main=True))
    asks = [{"path": "/v1/resume", "file": "client.py", "line": 97, "function": "abort"}]
    answer = {"kind": "socket", "file": {"peer": "h:1"}, "ends": [2], "sockets": []}
    client = _process(1, _thread("MainThread", answer, main=True, asks_for=asks))
    (found,) = explain([client, server])
    assert found.kind == "deadlock"
    part = "job@1 asks for /v1/resume, which would set it, only afterwards (client.py:97 (abort))"
    assert part in found.verdict


def _pipeline_stage(rank, line, in_round):
    step = {"file": "pipe.py", "line": line, "function": "train", "escapes": [], "tested": {}}
    receives = {"kind": "collective", "op": "recv", "peer": 1 - rank, "group": "default"}
    sends = [{"file": "pipe.py", "line": 29, "function": "send_grads", "peer": str(1 - rank)}]
    routed = {"route": [step | {"rounds": [[41, 50, in_round]]}], "enters": {"send": sends}}
    return _process(rank + 1, _thread("MainThread", receives, main=True, **routed), rank=rank, world_size=2)


def test_a_receive_too_many_is_not_told_as_a_matter_of_order():
    (found,) = explain([_pipeline_stage(0, 44, 0), _pipeline_stage(1, 46, 1)])
    left = "rank 1 has left round 0 of the loop in pipe.py:41, in which rank 0 still is"
    assert (
        f"{left} (it sends at pipe.py:29 (send_grads)): rank 0 receives more in a round than rank 1 sends"
        in found.verdict
    )
    assert found.fix == (
        "count the sends and receives of both sides in a round: rank 0 receives more in a round than rank 1 sends",
    )


def test_receives_in_the_same_round_are_a_matter_of_order():
    (found,) = explain([_pipeline_stage(0, 44, 1), _pipeline_stage(1, 46, 1)])
    assert "all of them receive, none sends" in found.verdict and "round" not in found.verdict


_LOOP = {"file": "/x/engine.py", "loop": 81, "line": 91, "function": "run", "table": "self.waiting", "size": 1} | {
    "first": "Request: id = 'r5'",
    "taken": "admit (line 38) takes one out only if `self.free >= 2` (self.free = 0)",
}


def _waits_for_engine(*others, **engine):
    takes = {"kind": "queue_get", "name": "results", "key": "0x1", "type": "Queue", "size": 0, "ends": [2], "users": []}
    waits = _process(1, _thread("MainThread", takes | {"between": "processes"}, main=True))
    return explain([waits, _process(2, _thread("MainThread", {"kind": "computing"}, main=True, **engine)), *others])


def test_who_waits_for_a_loop_without_progress_hangs():
    (found,) = _waits_for_engine(vain=_LOOP)
    assert found.kind == "in_vain" and found.to_finding().severity == "error"
    told = "goes round a loop (engine.py:81) without progress: between two looks `self.waiting` keeps its entry"
    assert f"{told} (Request: id = 'r5'), and nothing else that it has changes; admit (line 38)" in found.verdict


def test_a_loop_without_progress_may_be_slow_while_another_process_works():
    found = _waits_for_engine(_process(3, _thread("MainThread", {"kind": "computing"}, main=True)), vain=_LOOP)
    assert found[0].kind == "busy"


def test_who_polls_for_a_lock_file_while_another_process_works_need_not_hang():
    polls = {"kind": "sleep", "polls": "that tries `take()` again after each FileExistsError", "delay_s": 0.1}
    polls["lock_file"] = {"age_s": 2.0}
    joins = _thread("MainThread", {"kind": "child", "pid": 2, "process": "convert-0", "name": ""}, main=True)
    job = [_process(1, joins), _process(2, _thread("MainThread", polls, main=True))]
    assert explain(job)[0].kind == "polling"
    works = _process(3, _thread("MainThread", {"kind": "computing"}, main=True))
    assert explain([*job, works])[0].kind == "possible"


def test_who_idles_for_its_next_piece_of_work_is_no_consequence():
    takes = {"kind": "queue_get", "name": "prompts", "key": "0x2", "type": "Queue", "size": 0, "ends": [1], "users": []}
    takes |= {"between": "processes", "shared": "shared:/p", "ended_by": ["put"], "endless": True}
    idle = _process(3, _thread("MainThread", takes, main=True))
    stuck = {"may_call": [], "shares": {}}
    lost = {"kind": "event", "name": "done", "key": "0x1", "users": []}
    (found,) = explain([_process(1, _thread("MainThread", lost, main=True, **stuck)), idle])
    assert found.kind == "never_set" and not found.evidence


def test_who_idles_for_its_next_piece_of_work_is_a_cause_only_if_nothing_else_is():
    takes = {"kind": "queue_get", "name": "prompts", "key": "0x2", "type": "Queue", "size": 0, "ends": [1], "users": []}
    takes |= {"between": "processes", "shared": "shared:/p", "ended_by": ["put"], "endless": True}
    idle = _process(3, _thread("MainThread", takes, main=True))
    sleeps = _thread("MainThread", {"kind": "sleep"}, main=True, may_call=[], shares={})
    (alone,) = explain([_process(1, sleeps), idle])
    assert "job@3 waits" in alone.verdict
    lost = _process(4, _thread("MainThread", {"kind": "event", "name": "done", "key": "0x1", "users": []}, main=True))
    (found,) = explain([_process(1, sleeps), idle, lost])
    assert "job@4 waits" in found.verdict and "job@3" not in found.verdict


def _looks_for(path, **more):
    return {"kind": "sleep", "polls": f"until `is_there('{path}')`", "delay_s": 0.1, "awaits_files": [path]} | more


def test_loops_that_look_for_files_which_the_other_writes_only_afterwards_wait_for_each_other():
    writes = [{"path": "/out/step_1/STABLE", "file": "train.py", "line": 63, "function": "train"}]
    looks = _looks_for("/out/run_*/step_0")
    trainer = _process(1, _thread("MainThread", looks, main=True, writes_files=writes))
    waits = _process(2, _thread("MainThread", _looks_for("/out/step_1/STABLE"), main=True))
    (found,) = explain([trainer, waits])
    assert found.kind == "polling"
    assert "job@1 writes /out/step_1/STABLE only afterwards (train.py:63 (train)), but polls" in found.verdict
    # Who is at work will come to it.
    works = _process(1, _thread("MainThread", {"kind": "computing"}, main=True, writes_files=writes))
    assert explain([works, waits])[0].kind == "possible"


def test_the_path_that_a_loop_looks_for_is_told_once():
    for shown, told in (("'judge.json'", False), ("'/run/judge.json'", False), ("'other.json'", True), ("", True)):
        polls = f"until `answer.exists()` (answer = {shown})" if shown else "until `has_answer()`"
        looks = {"kind": "sleep", "polls": polls, "delay_s": 0.1, "awaits_files": ["/run/judge.json"]}
        (found,) = explain([_process(1, _thread("MainThread", looks, main=True))])
        assert (", which looks for /run/judge.json" in found.verdict) is told, shown


def test_what_has_come_about_while_the_job_was_looked_at_is_no_hang():
    joins = {"kind": "child", "pid": 2, "process": "tool", "name": ""}
    ended = _process(2, state="exited", lost=True)
    for call, kind in (("wait4", "none"), ("poll", "ended")):
        parent = _process(1, _thread("MainThread", joins, main=True, kernel={"call": call, "state": "sleeping"}))
        assert explain([parent, ended])[0].kind == kind
    closed = {"kind": "socket", "file": {"peer": "127.0.0.1:9", "local": "127.0.0.1:8"}, "ends": [], "sockets": []}
    assert explain([_process(1, _thread("MainThread", closed, main=True))])[0].kind == "none"


def test_all_who_wait_for_the_same_that_has_ended_are_told_with_it():
    ended = [{"kind": "task", "name": "score_loop", "exit": "has ended: TypeError: no len at job.py:13 (score_loop)"}]
    fills = {"kind": "queue_get", "name": "scored", "key": "0x1", "type": "asyncio.Queue", "size": 0, "users": []}
    empties = {"kind": "queue_put", "name": "pending", "key": "0x2", "type": "asyncio.Queue", "size": 8, "users": []}
    tasks = [
        _task("train", fills | {"functions": ["score_loop:14"]}, key="0x8"),
        _task("generate", empties | {"functions": ["score_loop:12"], "limit": 8}, key="0x9"),
    ]
    loop = _thread("MainThread", {"kind": "event_loop"}, main=True, loops=True)
    (found,) = explain([_process(1, loop, tasks=tasks, ended=ended)])
    assert "task train waits" in found.verdict and "task score_loop has ended: TypeError" in found.verdict
    assert found.evidence[0].startswith(
        "because of that task generate waits at serve.py:4 (generate) for room in queue"
    )


def test_who_waits_for_the_same_condition_is_told_with_what_it_looks_for():
    def waiting(until):
        return {"kind": "condition", "name": "self.cv", "key": "0x1", "until": until, "users": [], "functions": []}

    update, generate = waiting("while `self.inflight > 0`"), waiting("while `self.version < want`")
    update["functions"] = ["update:20"]
    threads = [_thread("update", update), _thread("generate", generate), _thread("other", dict(update))]
    (found,) = explain([_process(1, *threads)])
    assert found.kind == "never_notified"
    assert found.verdict.endswith(
        "; thread generate waits for the same condition, in a loop while `self.version < want`"
        "; thread other waits for the same condition"
    )


def test_a_loop_that_looks_for_what_an_ended_process_would_have_done_is_told_with_it():
    polls = _thread("MainThread", {"kind": "sleep", "polls": "until `self.ready()`", "again": True}, main=True)
    ended = _process(2, state="exited", unanswered="the process has ended")
    (found,) = explain([_process(1, polls), ended])
    assert found.verdict == "job@1 polls (a loop until `self.ready()`) at job.py:7 (work); job@2 has ended"
    assert found.kind == "ended" and not found.evidence


def test_a_server_that_waits_for_the_next_request_of_a_poller_is_no_hang():
    reads = {"kind": "stream", "peer": "127.0.0.1:9", "requests": True, "ends": [1], "sockets": [[1, 5]]}
    polls = _thread("MainThread", {"kind": "sleep", "polls": "while `busy`", "again": True}, main=True)
    client = _process(1, polls | {"connections": [5]})
    (found,) = explain([client, _process(2, _thread("handler", reads))])
    assert found.kind == "possible" and "waits for requests (for data from 127.0.0.1:9)" in found.verdict
    (found,) = explain([client, _process(2, _thread("handler", reads | {"requests": False}))])
    assert found.kind == "polling"


def test_who_takes_items_beside_the_main_thread_is_told_as_a_consequence():
    takes = {"kind": "queue_get", "name": "requests", "key": "0x1", "endless": True, "users": [], "functions": []}
    takes["users"] = [{"who": "MainThread", "acts": ["put"]}]
    waits = {"kind": "event", "name": "synced", "key": "0x2", "users": [], "functions": [], "nowhere": True}
    threads = [_thread("MainThread", waits, main=True), _thread("backend", takes)]
    (found,) = explain([_process(1, *threads)])
    assert found.verdict.startswith("the main thread waits at job.py:7 (work) for event `synced` to be set; no thread")
    assert found.evidence == (
        "because of that thread backend waits at job.py:7 (work) for an item of queue `requests` (queue)",
    )


def test_processes_that_all_poll_are_not_said_to_wait_for_nobody():
    looks = [{"kind": "sleep", "polls": f"while `self.size() < {count}`", "delay_s": 0.05} for count in (64, 48)]
    stacks = [_process(number, _thread(f"main-{number}", look, main=True)) for number, look in enumerate(looks)]
    (found,) = explain(stacks)
    assert found.verdict.startswith("all poll, and none is seen changing what the others look at: ")


def test_a_loop_that_waits_for_a_file_may_wait_for_who_is_at_work():
    looks = {"kind": "sleep", "polls": "until `os.path.exists(path)`", "delay_s": 0.5}
    files = {"awaits_files": ["/x/v2.pkl"]}
    takes = _thread("main-2", _queue("queue_get"), main=True)
    takes["wait"] |= {"shared": "q", "between": "processes", "ends": [1], "ended_by": ["put"]}
    trains = _thread("main-3", {"kind": "computing"}, main=True)
    for more, harmless in ((files, True), ({}, False)):
        polls = _thread("main-1", looks | more, main=True)
        found = explain([_process(1, polls), _process(2, takes), _process(3, trains)])[0]
        assert found.is_harmless is harmless, found
