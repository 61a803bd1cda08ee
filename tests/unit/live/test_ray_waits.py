"""Ray's own view in the wait graph, from hand-made lists of actors and tasks."""

import pytest

from rldbg.live import explain

WAITING = {"kind": "ray_get", "tasks": [], "count": 1, "methods": ["get"]}

# Its id in the bytes that are read from outside.
QUEUE_ID = b"queue".hex()
TAKING = {"kind": "queue_get", "type": "Ray queue", "between": "ray", "name": "results", "key": "0x2"}
TAKING |= {"shared": f"shared:ray:{QUEUE_ID}", "ended_by": ["put"], "users": []}


def _view(actors=(), tasks=(), groups=(), free=None):
    node = {"node_id": "n", "host": "h", "ip": "1", "alive": True, "total": {"CPU": 4.0}, "free": free or {"CPU": 0.0}}
    return {"nodes": [node], "actors": actors, "tasks": tasks, "workers": [], "placement_groups": groups}


def _actor(name, pid, state="ALIVE", **more):
    facts = {"actor_id": name, "name": name, "class_name": name.title(), "state": state, "pid": pid, "node_id": "n"}
    return facts | {"required_resources": {}, "death_cause": None, "placement_group_id": None} | more


def _task(name, state, pid=None, actor="", parent="", **more):
    facts = {"task_id": name, "name": name, "state": state, "actor_id": actor, "parent_task_id": parent, "node_id": "n"}
    facts |= {"worker_pid": pid, "type": "ACTOR_TASK" if actor else "NORMAL_TASK", "required_resources": {}}
    return facts | {"placement_group_id": None} | more


QUEUE = _actor(QUEUE_ID, 5) | {"class_name": "_QueueActor"}


def _worker(who, pid, function, wait=None):
    frame = {"file": "/x/job.py", "line": 5, "function": function}
    thread = {"thread": "MainThread", "ident": pid, "native": pid, "main": True, "background": False, "holds": []}
    thread |= {"frames": [frame], "place": frame, "kernel": {}, "wait": dict(wait or WAITING)}
    facts = {"who": who, "role": who, "rank": None, "state": "running", "host": "h", "pid": pid}
    return facts | {"threads": [thread], "tasks": [], "ended": [], "children": []}


def _verdicts(stacks, view):
    return " | ".join(cause.verdict for cause in explain(stacks, ray=view))


def test_two_actors_that_wait_for_each_other():
    tasks = [
        _task("A.call", "RUNNING", 1, "a"),
        _task("B.call", "RUNNING", 2, "b"),
        _task("B.answer", "SUBMITTED_TO_WORKER", None, "b", parent="A.call"),
        _task("A.answer", "SUBMITTED_TO_WORKER", None, "a", parent="B.call"),
    ]
    said = _verdicts([_worker("a", 1, "call"), _worker("b", 2, "call")], _view([_actor("a", 1), _actor("b", 2)], tasks))
    assert "a waits at job.py:5 (call) for the result of B.answer (actor b); b should run answer" in said
    assert "(deadlock)" in said


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (
            {"gpu": "H100"},
            "cannot be scheduled: it asks for a node labelled gpu=H100, and there is none (there is gpu=L4)",
        ),
        ({"gpu": "in(H100,H200)"}, "a node labelled gpu=in(H100,H200), and there is none"),
        ({"zone": "a", "gpu": "!L4"}, "a node labelled zone=a, gpu=!L4, and there is none"),
        ({"gpu": "in(H100, L4)", "zone": "!b"}, "has not started yet"),
        ({}, "has not started yet"),
    ],
)
def test_an_actor_for_a_node_with_other_labels_cannot_be_scheduled(selector, said):
    judge = _actor("judge", None, "PENDING_CREATION", required_resources={"CPU": 1.0}, label_selector=selector)
    tasks = [_task("call", "RUNNING", 1), _task("Judge.grade", "PENDING_NODE_ASSIGNMENT", None, "judge", parent="call")]
    view = _view([judge], tasks, free={"CPU": 1.0})
    view["nodes"][0]["labels"] = {"gpu": "L4"}
    assert said in _verdicts([_worker("caller", 1, "call")], view)


def test_an_actor_that_cannot_be_scheduled_is_told_with_what_is_free():
    huge = _actor("huge", None, "PENDING_CREATION", required_resources={"CPU": 8.0})
    tasks = [_task("call", "RUNNING", 1), _task("Huge.ping", "PENDING_NODE_ASSIGNMENT", None, "huge", parent="call")]
    said = _verdicts([_worker("caller", 1, "call")], _view([huge], tasks, free={"CPU": 1.0}))
    assert (
        "actor huge should run ping, but cannot be scheduled: it asks for 8 CPU; the node with the most has 1 of 4"
        in said
    )


def test_who_has_what_is_missing_is_named():
    taken = {"required_resources": {"CPU": 2.0}}
    actors = [_actor(name, pid, **taken) | {"name": "", "class_name": "Worker"} for pid, name in ((1, "a"), (2, "b"))]
    actors.append(_actor("logger", 3) | {"required_resources": {"memory": 1.0}})
    tasks = [
        _task("Worker.run", "RUNNING", 1, "a"),
        _task("pack", "RUNNING", 7, required_resources={"CPU": 1.0}),
        _task("load", "RUNNING_IN_RAY_GET", 8, required_resources={"CPU": 1.0}),
        _task("score", "PENDING_NODE_ASSIGNMENT", parent="Worker.run", required_resources={"CPU": 1.0}),
    ]
    said = _verdicts([_worker("a", 1, "run", WAITING | {"tasks": ["score"]})], _view(actors, tasks))
    assert "0 of 4 CPU free; in use by Worker (2 times 2 CPU), pack (1 CPU)" in said
    assert "load" not in said and "logger" not in said


def test_a_placement_group_that_has_what_is_missing_is_named():
    group = {"placement_group_id": "g", "name": "train", "state": "CREATED", "bundles": [{"CPU": 1.0}] * 3}
    inside = _actor("trainer", 1, required_resources={"CPU": 1.0}, placement_group_id="g")
    late = _actor("evaluator", None, "PENDING_CREATION", required_resources={"CPU": 2.0})
    tasks = [_task("call", "RUNNING", 2), _task("E.ping", "PENDING_NODE_ASSIGNMENT", None, "evaluator", parent="call")]
    view = _view([inside, late], tasks, [group], free={"CPU": 1.0})
    said = _verdicts([_worker("caller", 2, "call", WAITING | {"tasks": ["E.ping"]})], view)
    assert said.endswith(
        "it asks for 2 CPU; the node with the most has 1 of 4 CPU free; in use by placement group train (3 CPU)"
    )


def test_who_calls_a_dead_actor_again_and_again_is_told_of_its_death():
    died = {"actor_died_error_context": {"error_message": "worker exited with code 9"}}
    dead = _actor("engine", 3, "DEAD", death_cause=died)
    tasks = [_task("Collector.collect", "RUNNING", 1, "collector"), _task("Engine.generate", "FAILED", 3, "engine")]
    polls = "that tries `ray.get(self.engine.generate.remote())` again after each RayActorError"
    collector = _worker("collector", 1, "collect", {"kind": "sleep", "polls": polls})
    waiting = _worker("driver", 2, "main", WAITING | {"tasks": ["Collector.collect"]})
    said = _verdicts([waiting, collector], _view([_actor("collector", 1), dead], tasks))
    assert "again after each RayActorError; actor engine has died: worker exited with code 9) at job.py:5" in said
    # AND nothing of it where the method has not failed, or the actor lives
    for state, actor in (("FINISHED", dead), ("FAILED", _actor("engine", 3))):
        others = [tasks[0], _task("Engine.generate", state, 3, "engine")]
        assert "has died" not in _verdicts([waiting, collector], _view([_actor("collector", 1), actor], others))


def test_a_result_that_is_not_here_though_its_task_has_ended_is_told_with_its_node():
    tasks = [_task("main", "RUNNING", 1), _task("weights", "FINISHED", 9, parent="main") | {"node_id": "far"}]
    view = _view([], tasks)
    view["nodes"].append(view["nodes"][0] | {"node_id": "far", "host": "gpu7", "alive": False})
    said = _verdicts([_worker("driver", 1, "main", WAITING | {"tasks": ["weights"]})], view)
    assert "for the result of weights; weights has finished on node gpu7, which Ray has lost" in said
    view["nodes"][1]["alive"] = True
    said = _verdicts([_worker("driver", 1, "main", WAITING | {"tasks": ["weights"]})], view)
    assert "weights has finished on node gpu7, and its result has not come from there" in said


def test_a_task_that_is_on_its_way_to_a_worker_is_no_hang():
    for state in ("SUBMITTED_TO_WORKER", "PENDING_NODE_ASSIGNMENT"):
        tasks = [_task("call", "RUNNING", 1), _task("roll", state, parent="call")]
        view = _view([], tasks, free={"CPU": 4.0})
        (found,) = explain([_worker("caller", 1, "call", WAITING | {"tasks": ["roll"]})], ray=view)
        assert "task roll is that task, but has not " in found.verdict and found.to_finding().severity == "info"


def test_a_task_that_ray_starts_again_and_again_is_told_so():
    for state, pid in (("PENDING_NODE_ASSIGNMENT", None), ("RUNNING", 9)):
        tasks = [_task("call", "RUNNING", 1), _task("crunch", state, pid, parent="call", attempt_number=4)]
        said = _verdicts([_worker("caller", 1, "call", WAITING | {"tasks": ["crunch"]})], _view([], tasks))
        assert "but was started again 4 times so far: its process keeps ending" in said, said


def test_a_generator_whose_items_nobody_takes_is_named():
    tasks = [
        _task("call", "RUNNING", 1),
        _task("Sampler.stream", "RUNNING", 2, "sampler", parent="call"),
        _task("Sampler.stats", "SUBMITTED_TO_WORKER", None, "sampler", parent="call"),
    ]
    idle = _worker("sampler", 2, "main_loop", {"kind": "idle"})
    waiting = _worker("caller", 1, "call", WAITING | {"tasks": ["Sampler.stats"]})
    said = _verdicts([waiting, idle], _view([_actor("sampler", 2)], tasks))
    assert "sampler should run stats (queued behind stream), but is still in Sampler.stream, which is suspended" in said


def test_a_coroutine_of_an_actor_whose_event_loop_is_busy_is_no_generator():
    tasks = [_task("call", "RUNNING", 1), _task("Router.assign", "RUNNING", 2, "router", parent="call")]
    router = _worker("router", 2, "main_loop", {"kind": "idle"})
    loop = _worker("router", 3, "import", {"kind": "computing"})["threads"][0]
    router["threads"].append(loop | {"thread": "AsyncIO Thread: default", "main": False, "background": True})
    waiting = _worker("caller", 1, "call", WAITING | {"tasks": ["Router.assign"]})
    (found,) = explain([waiting, router], ray=_view([_actor("router", 2)], tasks))
    assert "generator" not in found.verdict and found.to_finding().severity == "info"


def test_an_idle_rank_is_told_with_what_its_last_task_raised():
    idle = _worker("train/2", 2, "main_loop", {"kind": "idle"}) | {"message": "TypeError: int + str", "rank": 2}
    idle |= {"raised_at": {"file": "/x/job.py", "line": 25, "function": "decode"}}
    idle["threads"][0]["background"] = True
    tasks = [_task("call", "RUNNING", 1), _task("Train.sync", "SUBMITTED_TO_WORKER", None, "train", parent="call")]
    waiting = _worker("caller", 1, "call", WAITING | {"tasks": ["Train.sync"]})
    said = _verdicts([waiting, idle], _view([_actor("train", 2)], tasks))
    assert "is idle (Ray runs no task in it); TypeError: int + str was raised at job.py:25 (decode)" in said


@pytest.mark.parametrize(("looks", "severity"), [("ray.get(progress.slowest.remote())", "error"), ("done()", "info")])
def test_who_asks_ray_for_progress_while_an_actor_is_dead_is_told_of_its_death(looks, severity):
    death = {"actor_died_error_context": {"error_message": "The worker died: SIGSEGV"}}
    actors = [_actor("progress", 2), _actor("rollout", 3, "DEAD", death_cause=death)]
    driver = _worker("driver", 1, "main", {"kind": "sleep", "polls": f"while `{looks} < 20`"})
    idle = _worker("progress", 2, "main_loop", {"kind": "idle"})
    idle["threads"][0]["background"] = True
    (found,) = explain([driver, idle], ray=_view(actors, [_task("main", "RUNNING", 1)]))
    assert "actor rollout has died: The worker died: SIGSEGV" in "; ".join([found.verdict, *found.evidence])
    assert found.to_finding().severity == severity


def test_an_actor_that_nobody_needs_any_more_is_no_reason():
    words = "The actor is dead because all references to the actor were removed."
    cause = {"actor_died_error_context": {"error_message": words}}
    view = _view([QUEUE, _actor("old", 2, "DEAD", death_cause=cause)])
    said = _verdicts([_worker("caller", 1, "call", TAKING)], view)
    assert "an item of queue `results` (ray.util.queue); no thread or process is seen that would put an item in" in said
    assert "old" not in said


def test_who_fills_a_queue_of_ray_is_found_on_any_node():
    # GIVEN a trainer that takes, and an engine of another host, seen from outside, that would put
    engine = _worker("engine", 2, "loop", {"kind": "event", "name": "self.ready", "key": "0x1"}) | {"host": "far"}
    engine["threads"][0]["shares"] = {"shared:ray:00ff7175657565aa": ["put"]}
    said = _verdicts([_worker("trainer", 1, "fit", TAKING), engine], _view([QUEUE]))
    assert "(ray.util.queue); engine should put an item in, and waits at job.py:5 (loop) for event `self.ready`" in said


def test_who_only_has_a_queue_of_ray_may_fill_it():
    engine = _worker("engine", 2, "loop", {"kind": "sleep"})
    engine["threads"][0]["shares"] = {"shared:ray:7175657565": []}
    said = _verdicts([_worker("trainer", 1, "fit", TAKING), engine], _view([QUEUE]))
    assert "engine may put an item in, but sleeps" in said and "nobody" not in said


def test_a_failed_method_of_a_living_actor_is_told_with_the_queue_that_nobody_fills():
    failed = _task("Engine.loop", "FAILED", 2, "engine", error_message="Traceback\n  line\nValueError: no weights\n")
    said = _verdicts([_worker("trainer", 1, "fit", TAKING)], _view([QUEUE, _actor("engine", 2)], [failed]))
    assert (
        "no thread or process is seen that would put an item in; Engine.loop has failed: ValueError: no weights" in said
    )


def test_methods_that_filled_a_queue_and_have_returned_are_told():
    taking = TAKING | {"functions": ["run:20"]}
    done = [_task("Rollout.run", "FINISHED", n, f"rollout_{n}") for n in (2, 3)]
    other = _task("Rollout.reset", "FINISHED", 2, "rollout_2")
    view = _view([QUEUE, _actor("rollout_2", 2), _actor("rollout_3", 3)], [*done, other])
    said = _verdicts([_worker("trainer", 1, "fit", taking)], view)
    assert "; Rollout.run has returned (rollout_2, rollout_3)" in said and "reset" not in said


def test_a_method_whose_argument_is_missing_is_not_an_idle_actor():
    tasks = [
        _task("call", "RUNNING", 1),
        _task("generate", "PENDING_NODE_ASSIGNMENT", parent="call", required_resources={"CPU": 9.0}),
        _task("Trainer.step", "PENDING_ARGS_AVAIL", None, "trainer", parent="call"),
    ]
    idle = _worker("trainer", 2, "main_loop", {"kind": "idle"})
    waiting = _worker("caller", 1, "call", WAITING | {"tasks": ["Trainer.step"]})
    said = _verdicts([waiting, idle], _view([_actor("trainer", 2)], tasks))
    assert "waits for its arguments; task generate may make them, but cannot be scheduled" in said


def test_a_dead_actor_is_told_with_its_reason():
    cause = {"actor_died_error_context": {"error_message": "killed by the OOM killer\nmore"}}
    dead = _actor("engine", 2, "DEAD", death_cause=cause)
    tasks = [_task("call", "RUNNING", 1), _task("Engine.step", "SUBMITTED_TO_WORKER", None, "engine", parent="call")]
    said = _verdicts([_worker("caller", 1, "call")], _view([dead], tasks))
    assert "actor engine should run step, but has died: killed by the OOM killer" in said


def test_a_task_without_resources_and_one_without_arguments():
    tasks = [
        _task("call", "RUNNING", 1),
        _task("load", "PENDING_NODE_ASSIGNMENT", parent="call", required_resources={"CPU": 2.0}),
        _task("score", "PENDING_ARGS_AVAIL", parent="call"),
    ]
    waiting = _worker("caller", 1, "call", WAITING | {"tasks": ["score"]})
    said = _verdicts([waiting], _view([], tasks))
    assert "task score is that task, and waits for its arguments; task load may make them" in said
    assert "cannot be scheduled: it asks for 2 CPU; the node with the most has 0 of 4 CPU free" in said


def test_arguments_are_not_made_by_who_waits_for_the_task():
    tasks = [
        _task("main", "RUNNING", 9),
        _task("Caller.get", "RUNNING", 1, "caller", parent="main"),
        _task("whole", "PENDING_ARGS_AVAIL", parent="main"),
        _task("slow_part", "RUNNING", 2, parent="main"),
    ]
    asking = _worker("caller", 1, "get", WAITING | {"tasks": ["whole"]})
    said = _verdicts(
        [asking, _worker("slow_part", 2, "slow_part", {"kind": "sleep"})], _view([_actor("caller", 1)], tasks)
    )
    assert "task whole is that task, and waits for its arguments; slow_part runs slow_part, which may make them" in said
    assert "deadlock" not in said


def test_references_that_were_read_from_outside_name_their_task():
    number = "ab" * 24
    tasks = [
        _task("Caller.get", "RUNNING", 1, "caller", parent="main"),
        _task("load", "PENDING_NODE_ASSIGNMENT", parent="main", required_resources={"CPU": 2.0}) | {"task_id": number},
    ]
    asking = _worker("caller", 1, "get", WAITING | {"tasks": [f"{'00' * 32}{number}01000000"]})
    said = _verdicts([asking], _view([_actor("caller", 1)], tasks))
    assert "for the result of load; task load is that task, but cannot be scheduled: it asks for 2 CPU" in said


def test_a_call_that_would_end_the_waits_of_its_actor_and_has_no_place_in_it_is_a_deadlock():
    waiting = [_task(f"Box.wait_{n}", "RUNNING", 2, "box") | {"name": "Box.wait_group"} for n in range(2)]
    putting = _task("Box.put_sample", "SUBMITTED_TO_WORKER", None, "box", parent="Rollout.run")
    tasks = [*waiting, putting, _task("Rollout.run", "RUNNING", 1, "rollout")]
    waits = RUNNING_EVENT | {"functions": ["put_sample:19"]}
    box = _async_worker("box", 2, "wait_group", "wait_group", wait=waits)
    rollout = _worker("rollout", 1, "run", WAITING | {"tasks": ["Box.put_sample"]})
    rollout["threads"][0]["calls"] = ["put_sample"]
    (found,) = explain([rollout, box], ray=_view([_actor("box", 2), _actor("rollout", 1)], tasks))
    assert found.kind == "deadlock"
    assert "(max_concurrency) while put_sample is queued, and waits" in found.verdict
    assert found.verdict.endswith(
        "rollout has called put_sample, which would set it and is queued, so they wait for each other (deadlock)"
    )


def _latched(*more, methods=("generate", "generate"), waits=None):
    """An actor whose calls wait for an event, each in a thread, and the calls that Ray lists besides."""
    server, ident = _worker("server", 2, "main_loop", {"kind": "idle"}), 20
    server["threads"][0]["background"] = True
    waiting = RUNNING_EVENT | {"functions": ["refreshed:15"], "leading": ["refreshed", "update_weights"]}
    for number, method in enumerate(methods):
        frame = {"file": "/x/job.py", "line": 18, "function": method}
        thread = {"thread": f"Dummy-{number}", "ident": ident + number, "native": ident + number, "main": False}
        thread |= {"background": False, "holds": [], "frames": [frame], "place": frame, "kernel": {}}
        server["threads"].append(thread | {"wait": dict((waits or {}).get(method, waiting))})
    running = [_task(f"run{n}", "RUNNING", 2, "server") | {"name": f"Server.{m}"} for n, m in enumerate(methods)]
    tasks = [_task("main", "RUNNING", 1), *running, *more]
    caller = _worker("driver", 1, "main", WAITING | {"tasks": ["Server.update_weights"]})
    return explain([caller, server], ray=_view([_actor("server", 2)], tasks))


def test_a_queued_call_that_leads_to_what_would_end_the_wait_of_its_actor_is_a_deadlock():
    update = _task("Server.update_weights", "SUBMITTED_TO_WORKER", None, "server", parent="main")
    (found,) = _latched(update)
    assert found.kind == "deadlock"
    assert (
        "it should run update_weights itself (it has been called, is queued behind the 2 calls that its actor runs, "
        "leads to refreshed and would set it) (deadlock)"
    ) in found.verdict
    assert any("driver waits at job.py:5 (main) for the result of Server.update_weights" in e for e in found.evidence)
    # AND so it is of the only call that an actor runs
    (alone,) = _latched(update, methods=("generate",))
    assert "queued behind generate, leads to refreshed and would set it) (deadlock)" in alone.verdict


def test_a_queued_call_is_no_deadlock_where_it_will_be_begun():
    update = _task("Server.update_weights", "SUBMITTED_TO_WORKER", None, "server", parent="main")
    kinds = [
        # It was called only now, leads elsewhere, or one of the calls that run goes on.
        _latched(update | {"anew": True}),
        _latched(update | {"name": "Server.stats"}),
        _latched(update, methods=("generate", "score"), waits={"score": {"kind": "computing"}}),
    ]
    assert all(found[0].kind != "deadlock" for found in kinds)
    assert kinds[2][0].kind in ("computing", "busy")


def test_methods_of_other_files_that_filled_a_queue_are_known_by_their_calls():
    made = _task("Maker.run_epoch", "FINISHED", 2, "maker")
    other = _task("Maker.load", "FINISHED", 2, "maker")
    put = _task("_QueueActor.put", "FINISHED", 5, QUEUE_ID, parent="Maker.run_epoch")
    got = _task("_QueueActor.get", "FINISHED", 5, QUEUE_ID, parent="Maker.load")
    view = _view([QUEUE, _actor("maker", 2)], [made, other, put, got])
    said = _verdicts([_worker("trainer", 1, "fit", TAKING | {"ended_by": ["put", "put_nowait"]})], view)
    assert "; Maker.run_epoch has returned (maker)" in said and "load" not in said


def test_a_worker_that_is_held_for_what_it_raised_is_told_with_the_empty_queue():
    raised = {"message": "KeyError: 'answer'", "raised_at": {"file": "/x/job.py", "line": 53, "function": "verify"}}
    held = _worker("maker", 2, "run_epoch") | raised | {"state": "stopped", "reason": "exception"}
    tasks = [_task("Maker.run_epoch", "RUNNING", 2, "maker"), _task("Trainer.fit", "RUNNING", 1, "trainer")]
    view = _view([QUEUE, _actor("maker", 2), _actor("trainer", 1)], tasks)
    said = _verdicts([_worker("trainer", 1, "fit", TAKING), held], view)
    assert "maker raised KeyError: 'answer' at job.py:53 (verify), and is held for inspection" in said


def _routed(items):
    """A method that puts items into queues of a table, and has returned; and who takes them out of one of these."""
    critic = b"other".hex()
    table = {"name": "self.queues", "queues": {f"shared:ray:00{QUEUE_ID}00": "'policy'", f"shared:ray:{critic}": "'c'"}}
    rollout = _worker("rollout", 2, "main_loop", {"kind": "idle"}) | {"ray_keeps": {"tables": [table], "items": None}}
    holding = _worker("queue", 6, "main_loop", {"kind": "idle"}) | {"ray_keeps": {"tables": [], "items": items}}
    actors = [QUEUE, QUEUE | {"actor_id": critic, "pid": 6}, _actor("rollout", 2), _actor("learner", 1)]
    put = _task("_QueueActor.put", "FINISHED", 6, critic, parent="Rollout.run")
    tasks = [_task("Rollout.run", "FINISHED", 2, "rollout"), put, _task("Learner.run", "RUNNING", 1, "learner")]
    learner = _worker("learner", 1, "run", TAKING | {"nowhere": True})
    return _verdicts([learner, rollout, holding], _view(actors, tasks))


def test_items_that_went_into_other_queues_of_a_table_are_told():
    said = _routed(8)
    assert "no line of its file" not in said
    assert (
        "no thread or process is seen that would put an item in; Rollout.run has returned (rollout); rollout has it in "
        "`self.queues` under 'policy', where others have items: 'c' (8 items)"
    ) in said
    assert "others have items" not in _routed(0) and "'c' (1 item)" in _routed(1)


def test_what_was_raised_is_said_once():
    trace = 'Traceback\n  File "/x/job.py", line 16, in _validate\n\x1b[36mValueError: 65 elements\x1b[39m'
    failed = _task("Store.publish", "FAILED", 2, "store", error_message=trace)
    tasks = [_task("main", "RUNNING", 1), _task("Store.wait", "RUNNING", 2, "store", parent="main"), failed]
    store = _worker("store", 2, "wait", RUNNING_EVENT | {"functions": ["publish:22"]})
    store |= {"message": "ValueError: 65 elements", "raised_at": {"file": "/x/job.py", "line": 16, "function": "f"}}
    said = _verdicts([_worker("driver", 1, "main"), store], _view([_actor("store", 2)], tasks))
    assert said.endswith("ValueError: 65 elements was raised at job.py:16 (f); Store.publish has failed with that")
    told = _verdicts([_worker("driver", 1, "main"), store | {"message": ""}], _view([_actor("store", 2)], tasks))
    assert told.endswith("; Store.publish has failed: ValueError: 65 elements at job.py:16 (_validate)")


def test_a_task_that_awaits_one_call_does_not_wait_for_those_of_others():
    calls = [_task(f"s{n}", "RUNNING", 2, "server") | {"name": "Server.generate"} for n in range(3)]
    view = _view([_actor("server", 2), _actor("agent", 1)], calls)
    for source, said in (
        ("self.server.generate.remote(prompt)", "the result of Server.generate (actor server) (one of 3 in flight)"),
        ("asyncio.gather(*[s.generate.remote(p) for p in prompts])", "Server.generate (actor server) and 2 more"),
    ):
        agent = _worker("agent", 1, "episode", {"kind": "future", "name": source, "key": "0x1", "users": []})
        assert said in _verdicts([agent, _worker("server", 2, "generate", RUNNING_EVENT)], view)


def test_who_calls_what_would_end_a_wait_only_after_the_wait_for_it_closes_a_ring():
    tasks = [_task("Server.generate", "RUNNING", 2, "server", parent="Trainer.fit")]
    tasks.append(_task("Trainer.fit", "RUNNING", 1, "trainer"))
    server = _async_worker("server", 2, "generate", wait=RUNNING_EVENT | {"functions": ["resume:22"]})
    trainer = _worker("trainer", 1, "fit", WAITING | {"tasks": ["Server.generate"]})
    trainer["threads"][0]["calls"] = ["generate", "resume"]
    later = {"file": "/x/job.py", "line": 70, "function": "Trainer.sync"}
    trainer["threads"][0]["calls_later"] = {"resume": later}
    (found,) = explain([trainer, server], ray=_view([_actor("server", 2), _actor("trainer", 1)], tasks))
    assert found.kind == "deadlock"
    assert "trainer calls resume only afterwards (job.py:70 (sync)), so they wait for each other" in found.verdict


def test_calls_that_would_set_keys_for_each_other_and_are_queued_are_a_deadlock():
    key = {
        "kind": "store",
        "name": "self.store",
        "keys": ["k"],
        "functions": ["join:9"],
        "leading": ["join", "connect"],
    }
    tasks = []
    for name, pid in (("first", 1), ("second", 2)):
        tasks.append(_task(f"{name}.a", "RUNNING", pid, name) | {"name": "Engine.connect"})
        tasks.append(_task(f"{name}.b", "SUBMITTED_TO_WORKER", None, name) | {"name": "Engine.connect"})
    stacks = [_worker("first", 1, "Engine.connect", key), _worker("second", 2, "Engine.connect", key)]
    actors = [_actor("first", 1), _actor("second", 2)]
    (found,) = explain(stacks, ray=_view(actors, tasks))
    said = "should run connect (queued behind another call of connect), which would set such a key"
    assert found.kind == "deadlock" and f"second {said}, and waits" in found.verdict
    # AND nobody is expected to do so whose queue is empty
    said = _verdicts(stacks, _view(actors, tasks[::2]))
    assert "no rank is seen that would set it" in said and "deadlock" not in said


def test_callers_that_were_killed_on_purpose_are_told_to_who_waits_for_their_call():
    condition = {"kind": "condition", "name": "self.met", "key": "0x4", "users": [], "functions": ["pull:9"]}
    trainer = _worker("trainer", 1, "main_loop", {"kind": "idle"})
    frames = [{"file": "/x/job.py", "line": 9, "function": "Trainer.pull"}]
    frames += [{"file": "/x/site-packages/ray/_private/function_manager.py", "line": 7, "function": "executor"}]
    call = {"thread": "Dummy-8", "ident": 9, "native": 9, "main": False, "background": False, "holds": [], "kernel": {}}
    trainer["threads"].append(call | {"frames": frames, "place": frames[0], "wait": condition})
    killed = {"actor_died_error_context": {"error_message": "The actor was killed by `ray.kill`."}}
    worker = {"class_name": "Worker"}
    dead = _actor("worker_0", 3, "DEAD", death_cause=killed, **worker)
    tasks = [_task("Trainer.pull", "RUNNING", 1, "trainer", parent="W.run"), _task("W.run", "RUNNING", 2, "worker_1")]
    actors = [_actor("trainer", 1), dead, _actor("worker_1", 2, **worker)]
    asking = _worker("worker_1", 2, "run", WAITING | {"tasks": ["Trainer.pull"]})
    said = _verdicts([trainer, asking], _view(actors, tasks))
    assert "call pull (thread Dummy-8) of trainer runs pull, and waits at job.py:9 (pull)" in said
    assert "worker_0, of the class that calls pull, was ended on purpose (ray.kill, or no handle was left)" in said


def test_a_loop_that_only_a_queued_call_of_its_own_actor_would_end_waits_for_itself():
    looks = {"polls": "while `step - self.version > 2` (step = 3)", "looks_at": [], "unchanged": {}}
    looks["unchanged"] = {"name": "self.version", "functions": ["update_weights:9"]}
    worker = _worker("rollout", 1, "RolloutWorker.generate", {"kind": "sleep"} | looks)
    tasks = [
        _task("RolloutWorker.generate", "RUNNING", 1, "rollout"),
        _task("RolloutWorker.update_weights", "SUBMITTED_TO_WORKER", None, "rollout"),
    ]
    actors = [_actor("rollout", 1)]
    (found,) = explain([worker], ray=_view(actors, tasks))
    assert found.kind == "deadlock"
    assert "it should run update_weights itself (it has been called, is queued behind generate" in found.verdict
    assert "and would change `self.version`) (deadlock)" in found.verdict
    # AND without such a call it may go on
    assert "should run update_weights" not in _verdicts([worker], _view(actors, tasks[:1]))


def test_a_dead_actor_of_the_class_that_calls_is_told_and_not_the_one_that_polls():
    condition = {"kind": "condition", "name": "self.met", "key": "0x4", "users": [], "functions": ["push:9"]}
    collector = _worker("collector", 1, "next_batch", condition)
    calls = {"calls": ["push"]}
    polling = _worker("generator", 2, "run", {"kind": "sleep", "polls": "a loop while `depth > 12`"})
    polling["threads"][0] |= calls
    killed = {"actor_died_error_context": {"error_message": "The actor was killed by `ray.kill`."}}
    generator = {"class_name": "Generator"}
    alive = [_actor("collector", 1), _actor("generator", 2, **generator)]
    dead = _actor("generator_1", 3, "DEAD", death_cause=killed, **generator)
    said = _verdicts([collector, polling], _view([*alive, dead], []))
    assert "actor generator_1 (pid 3), of the class that calls push, has died: it was ended on purpose" in said
    assert "generator should call push, but polls" in _verdicts([collector, polling], _view(alive, []))


def test_an_actor_that_cannot_start_may_be_who_would_fill_a_queue():
    group = {"placement_group_id": "g", "name": "pool", "state": "PENDING", "bundles": [{"CPU": 1.0}] * 4}
    sampler = _actor("sampler", None, "PENDING_CREATION", placement_group_id="g")
    tasks = [_task("fit", "RUNNING", 1), _task("Sampler.roll", "PENDING_NODE_ASSIGNMENT", None, "sampler")]
    view = _view([QUEUE, sampler], tasks, [group], free={"CPU": 3.0})
    (found,) = explain([_worker("learner", 1, "fit", TAKING)], ray=view)
    assert found.kind == "not_scheduled"
    assert (
        "actor sampler should run roll, which may put an item in, but cannot be scheduled: its placement group is "
        "pending: its 4 bundles ask for 4 CPU; the cluster has 3 of 4 CPU free" in found.verdict
    )
    # AND one that Ray is about to start is not why
    assert "sampler" not in _verdicts([_worker("learner", 1, "fit", TAKING)], _view([QUEUE, sampler], tasks))


def test_a_loop_that_tries_to_get_what_a_dead_actor_has_made_is_told_so():
    polls = {
        "kind": "sleep",
        "polls": "that tries `ray.get(ref, timeout=3)` again",
        "tries": ["17" * 8 + "roller" + "00"],
    }
    actors = [_actor("learner", 1), _actor("roller", None, "DEAD"), _actor("other", None, "DEAD")]
    (found,) = explain([_worker("learner", 1, "fetch", polls)], ray=_view(actors, [_task("L.fetch", "RUNNING", 1)]))
    assert (
        found.kind == "ended" and "actor roller, which has made an object that it asks for, has died" in found.verdict
    )
    assert "other" not in found.verdict


def test_an_actor_of_a_full_placement_group_is_told_so():
    group = {
        "placement_group_id": "p1",
        "name": "pool",
        "state": "CREATED",
        "bundles": [{"unit_resources": {"CPU": 1.0}}],
    }
    full = {"required_resources": {"CPU_group_p1": 1.0}, "placement_group_id": "p1"}
    starting = _actor("second", None, "PENDING_CREATION")
    tasks = [_task("call", "RUNNING", 1), _task("T.fit", "PENDING_NODE_ASSIGNMENT", None, "trainer", parent="call")]
    trainer = _actor("trainer", None, "PENDING_CREATION", **full)
    said = _verdicts([_worker("caller", 1, "call")], _view([trainer, starting], tasks, [group]))
    asks = (
        "trainer should run fit, but cannot be scheduled: it asks for 1 CPU; placement group pool, in which it belongs"
    )
    assert f"{asks}, has 1 CPU in all, and others use it" in said and "second" not in said
    # AND who uses the group is named, not who uses others
    uses = full | {"required_resources": {"CPU_group_p1": 1.0, "CPU_group_0_p1": 1.0, "bundle_group_p1": 0.001}}
    actors = [trainer, _actor("server", 3, **uses), _actor("free", 4, required_resources={"CPU": 1.0})]
    said = _verdicts([_worker("caller", 1, "call")], _view(actors, tasks, [group]))
    assert f"{asks}, has 1 CPU in all; in use by server (1 CPU)" in said and "free" not in said


def test_a_removed_placement_group_is_told_without_what_it_asked_for():
    group = {"placement_group_id": "p1", "name": "pool", "state": "REMOVED", "strategy": "PACK"}
    group["bundles"] = [{"unit_resources": {"CPU": 1.0}}]
    inside = {"required_resources": {"CPU_group_p1": 1.0}, "placement_group_id": "p1"}
    lost = _task("evaluate", "PENDING_NODE_ASSIGNMENT", None, parent="call") | inside
    tasks = [_task("call", "RUNNING", 1), lost]
    (said,) = _verdicts([_worker("caller", 1, "call")], _view([_actor("caller", 1)], tasks, [group])).splitlines()
    assert said.endswith("task evaluate is that task, but cannot be scheduled: its placement group pool was removed")


def test_a_crashed_actor_that_is_held_is_named_with_its_exception():
    held = _worker("engine", 2, "step") | {
        "state": "stopped",
        "reason": "exception",
        "message": "ValueError: bad batch",
        "raised_at": {"file": "/x/engine.py", "line": 9, "function": "Engine.step"},
        "thread": "MainThread",
    }
    tasks = [_task("call", "RUNNING", 1), _task("Engine.step", "RUNNING", 2, "engine", parent="call")]
    said = _verdicts([_worker("caller", 1, "call"), held], _view([_actor("engine", 2)], tasks))
    assert (
        "engine runs step, but raised ValueError: bad batch at engine.py:9 (step), and is held for inspection" in said
    )


def test_a_pending_placement_group_is_told_to_who_waits_for_it():
    group = {"placement_group_id": "0123456789", "name": "pool", "state": "PENDING"}
    group["bundles"] = [{"unit_resources": {"CPU": 16.0}}]
    waiting = _worker("caller", 1, "call", WAITING | {"methods": ["get", "ready"]})
    said = _verdicts([waiting], _view([], [_task("call", "RUNNING", 1)], [group]))
    assert "for a placement group to be ready; placement group pool is pending: it asks for 16 CPU" in said


def test_an_actor_that_is_stuck_in_its_constructor_is_followed_there():
    loader = _actor("loader", 0, "PENDING_CREATION", required_resources={"CPU": 1.0})
    tasks = [
        _task("call", "RUNNING", 1),
        _task("Loader.__init__", "RUNNING", 2, "loader", type="ACTOR_CREATION_TASK"),
        _task("Loader.weights", "PENDING_NODE_ASSIGNMENT", None, "loader", parent="call"),
    ]
    stuck = _worker("loader", 2, "Loader.__init__", {"kind": "event", "name": "self.loaded", "key": "0x1"})
    said = _verdicts([_worker("caller", 1, "call"), stuck], _view([loader], tasks, free={"CPU": 3.0}))
    assert (
        "loader should run weights and is still in its constructor, and waits at job.py:5 (__init__) for event" in said
    )
    assert "scheduled" not in said


def test_a_call_that_is_queued_behind_one_of_the_same_method_is_told_so():
    tasks = [
        _task("A.score", "RUNNING", 1, "a"),
        _task("A.score", "SUBMITTED_TO_WORKER", None, "a", parent="call", task_id="second"),
        _task("call", "RUNNING", 2),
    ]
    stacks = [
        _worker("a", 1, "score", {"kind": "computing"}),
        _worker("caller", 2, "call", WAITING | {"tasks": ["second"]}),
    ]
    said = _verdicts(stacks, _view([_actor("a", 1)], tasks))
    assert "a should run score (queued behind another call of score), but is computing" in said


def test_an_actor_that_calls_itself_is_told():
    tasks = [_task("A.plan", "RUNNING", 1, "a"), _task("A.refine", "SUBMITTED_TO_WORKER", None, "a", parent="A.plan")]
    said = _verdicts([_worker("a", 1, "plan")], _view([_actor("a", 1)], tasks))
    assert "it should run refine itself (queued behind plan) (deadlock)" in said


def test_what_is_free_is_not_called_missing():
    tasks = [_task("call", "RUNNING", 1), _task("load", "PENDING_NODE_ASSIGNMENT", parent="call")]
    tasks[1]["required_resources"] = {"memory": 2.0**31}
    said = _verdicts([_worker("caller", 1, "call")], _view([], tasks, free={"memory": 2.0**32}))
    assert "load is that task, but has not started yet" in said
    said = _verdicts([_worker("caller", 1, "call")], _view([], tasks, free={"memory": 2.0**30}))
    assert (
        "cannot be scheduled: it asks for 2 GiB memory; the node with the most has 1 GiB of 0 GiB memory free" in said
    )


def test_bundles_that_fit_alone_and_not_together_are_told():
    group = {"placement_group_id": "g", "name": "pool", "state": "PENDING", "bundles": [{"CPU": 1.0}] * 2}
    said = _verdicts([], _view(groups=[group], free={"CPU": 4.0}))
    assert "it is pending: its 2 bundles ask for 2 CPU, each fits on a node, but not all of them" in said


def test_a_group_that_wants_more_nodes_than_there_are_is_told_so():
    bundles = [{"unit_resources": {"CPU": 1.0}}] * 2
    group = {"placement_group_id": "p1", "name": "pool", "state": "PENDING", "bundles": bundles}
    view = _view(groups=[group | {"strategy": "STRICT_SPREAD"}], free={"CPU": 4.0})
    said = _verdicts([_worker("caller", 1, "call", WAITING | {"methods": ["get", "ready"]})], view)
    assert "placement group pool is pending: its 2 bundles ask for 2 CPU; STRICT_SPREAD wants" in said
    assert "each bundle on a node of its own, and the cluster has 1 node" in said


def test_an_actor_whose_constructor_keeps_dying_is_told_with_how_often():
    tasks = [
        _task("call", "RUNNING", 1),
        _task("Engine.step", "PENDING_NODE_ASSIGNMENT", None, "engine", parent="call"),
    ]
    said = _verdicts([_worker("caller", 1, "call")], _view([_actor("engine", 7, "RESTARTING", num_restarts=3)], tasks))
    assert (
        "actor engine should run step, but is restarting (started again 3 times so far): its process keeps ending"
        in said
    )
    view = _view([_actor("engine", 7, "RESTARTING", num_restarts=3)], tasks)
    detail = "Worker unexpectedly exits with a connection error code 2. End of file."
    row = {
        "node_id": view["actors"][0]["node_id"],
        "pid": 7,
        "is_alive": False,
        "worker_type": "WORKER",
        "exit_detail": detail,
    }
    said = _verdicts([_worker("caller", 1, "call")], view | {"workers": [row]})
    assert "its process keeps ending (without an error message: it was killed" in said, said


def test_who_has_not_come_to_a_process_group_of_actors_is_told():
    joins = [{"kind": "rendezvous", "call": "init_process_group", "rank": rank, "world_size": 3} for rank in range(2)]
    said = _verdicts([_worker(f"t{n}", n + 1, "setup", join) for n, join in enumerate(joins)], _view())
    assert (
        "t0 waits at job.py:5 (setup) for other ranks to join its process group (init_process_group, as rank 0 of 3"
        in (said)
    )
    assert said.count("rank 2 is not among the processes that join it") == 1


def test_of_several_placement_groups_the_one_that_is_waited_for_is_named():
    bundles = [{"unit_resources": {"CPU": 16.0}}]
    groups = [
        {"placement_group_id": number, "name": name, "state": "PENDING", "bundles": bundles}
        for number, name in (("aa01", "actors"), ("bb02", "critics"))
    ]
    waiting = _worker("caller", 1, "call", WAITING | {"methods": ["get"], "groups": ["00bb0200"]})
    (said, *_) = [cause.verdict for cause in explain([waiting], ray=_view(groups=groups))]
    assert "for a placement group to be ready; placement group critics is pending: it asks for 16 CPU" in said


def test_what_a_coroutine_of_an_async_actor_awaits_is_found_by_its_source():
    tasks = [
        _task("Engine.update", "RUNNING", 1, "engine"),
        _task("load", "PENDING_NODE_ASSIGNMENT", required_resources={"CPU": 2.0}),
    ]
    awaits = {"kind": "future", "name": "load.options(num_cpus=2).remote(path)", "key": "0x1"}
    said = _verdicts([_worker("engine", 1, "update", awaits)], _view([_actor("engine", 1)], tasks))
    assert "for the result of load; task load is that task, but cannot be scheduled: it asks for 2 CPU" in said


def test_a_worker_that_was_not_seen_is_no_hang():
    tasks = [_task("call", "RUNNING", 1), _task("Learner.fit", "RUNNING", 2, "learner", parent="call")]
    (found,) = explain([_worker("caller", 1, "call")], ray=_view([_actor("learner", 2)], tasks))
    assert (
        found.kind == "unknown" and "learner (pid 2) runs fit, but was not seen: it is still starting" in found.verdict
    )


ADDED = {"kind": "condition", "name": "self.filled", "key": "0x3", "ended_by": ["notify"], "users": []}
ADDED |= {"functions": ["add:16"]}


def test_who_calls_the_method_that_would_end_a_wait_is_followed():
    tasks = [_task("Buffer.sample", "RUNNING", 1, "buffer"), _task("Sampler.run", "RUNNING", 2, "sampler")]
    sampler = _worker("sampler", 2, "run", {"kind": "socket", "file": {"peer": "1.2.3.4:80"}})
    sampler["threads"][0]["calls"] = ["add"]
    view = _view([_actor("buffer", 1), _actor("sampler", 2)], tasks)
    said = _verdicts([_worker("buffer", 1, "sample", ADDED), sampler], view)
    assert "condition `self.filled` to be notified; sampler should call add, and waits" in said and "1.2.3.4:80" in said


def test_who_may_have_called_it_and_has_died_is_told():
    dead = _actor("sampler", 2, "DEAD", death_cause={"actor_died_error_context": {"error_message": "exit code 13"}})
    tasks = [_task("Buffer.sample", "RUNNING", 1, "buffer")]
    said = _verdicts([_worker("buffer", 1, "sample", ADDED)], _view([_actor("buffer", 1), dead], tasks))
    assert "only add (line 16) would notify it" in said and "actor sampler has died: exit code 13" in said


def test_who_asks_an_actor_for_what_a_dead_one_would_tell_it_is_told_of_its_death():
    # GIVEN two actors that ask a registry for what a third would have told it, and threads of libraries in `run`
    trace = 'File "/x/job.py", line 26, in load\nFileNotFoundError: no weights'
    dead = _actor(
        "reward", 5, "DEAD", death_cause={"creation_task_failure_context": {"formatted_exception_string": trace}}
    )
    polls = {"kind": "sleep", "polls": "while `address is None`", "delay_s": 0.5}
    asking = [_worker(f"rollout_{n}", n, "run", polls) for n in (1, 2)]
    for each, file in zip(asking, ("/x/site-packages/ray/gc.py", "/usr/lib/python3.11/threading.py"), strict=True):
        each["threads"][0]["calls"] = ["lookup"]
        frame = {"file": file, "line": 3, "function": "Thread.run"}
        service = {"kind": "event", "name": "", "key": "0x9", "users": [], "ended_by": ["set"]}
        each["threads"].append(
            each["threads"][0]
            | {"thread": "service", "ident": 99, "native": 99, "main": False, "frames": [frame]}
            | {"place": frame, "background": True, "wait": service}
        )
    driver = _worker("driver", 3, "main", WAITING | {"tasks": ["A.run", "B.run"]})
    tasks = [_task("A.run", "RUNNING", 1, "rollout_1"), _task("B.run", "RUNNING", 2, "rollout_2")]
    actors = [_actor("rollout_1", 1), _actor("rollout_2", 2), _actor("registry", 4), dead]
    registry = _worker("registry", 4, "main_loop", {"kind": "idle"})
    registry["threads"][0]["background"] = True
    (found,) = explain([*asking, driver, registry], ray=_view(actors, tasks))
    assert found.verdict.endswith(
        "rollout_1 runs run, but polls (a loop while `address is None`) at job.py:5 (run); actor reward has died: "
        "its constructor raised FileNotFoundError: no weights at job.py:26 (load); rollout_2 waits in the same way"
    )
    assert found.to_finding().severity == "error"
    # AND not while another works, which may answer, or where it lives again
    registry["threads"][0] |= {"background": False, "wait": {"kind": "computing"}}
    assert "has died" not in _verdicts([*asking, driver, registry], _view(actors, tasks))
    registry["threads"][0] |= {"background": True, "wait": {"kind": "idle"}}
    again = _view([*actors, _actor("reward", 6)], tasks)
    assert "has died" not in _verdicts([*asking, driver, registry], again)


def test_an_actor_that_is_asked_for_by_name_and_does_not_exist_is_told():
    polls = {"kind": "sleep", "polls": "that tries `ray.get_actor('learner')` again after each ValueError"}
    stacks = [_worker("driver", 1, "find", polls)]
    assert "again after each ValueError; Ray lists no actor of that name)" in _verdicts(stacks, _view())
    dead = _actor("learner", 2, "DEAD", death_cause={"actor_died_error_context": {"error_message": "exit code 1"}})
    assert "actor learner has died: exit code 1)" in _verdicts(stacks, _view([dead]))
    assert "learner has" not in _verdicts(stacks, _view([_actor("learner", 2)]))


def _async_worker(who, pid, *functions, wait):
    """An async actor: one asyncio task per call."""
    stack = _worker(who, pid, "main_loop", {"kind": "idle"})
    frames = [{"file": "/x/job.py", "line": 9, "function": f"Engine.{function}"} for function in functions]
    stack["tasks"] = [
        {"task": f"Task-{n}", "key": f"0x{n}", "loop": "0x9", "frames": [frame], "place": frame, "background": False}
        | {"serves": True, "wait": dict(wait), "holds": []}
        for n, frame in enumerate(frames)
    ]
    return stack


RUNNING_EVENT = {"kind": "event", "name": "self.running", "key": "0x7", "users": [], "ended_by": ["set"]}


@pytest.mark.parametrize("calls", [1, 4])
def test_an_actor_that_runs_as_many_calls_as_it_can_is_told(calls):
    """The call that would free the others is queued behind them, as resume behind generate."""
    generating = [
        _task(f"Engine.generate_{n}", "RUNNING", 2, "engine") | {"name": "Engine.generate"} for n in range(calls)
    ]
    queued = _task("Engine.load", "SUBMITTED_TO_WORKER", None, "engine", parent="call")
    waits = RUNNING_EVENT | {"functions": ["resume:19"]}
    engine = _async_worker("engine", 2, *["generate"] * calls, wait=waits)
    caller = _worker("caller", 1, "call", WAITING | {"tasks": ["Engine.load"]})
    said = _verdicts([caller, engine], _view([_actor("engine", 2)], [_task("call", "RUNNING", 1), queued, *generating]))
    slot = "one of the 4 slots" if calls == 4 else "the only slot"
    assert f"has {slot} of its actor (max_concurrency) while load is queued, and waits" in said
    assert "should run load" not in said
    assert "resume cannot be called either: its actor runs as many calls as it can" in said


def test_who_has_not_come_to_a_barrier_of_an_actor_is_told():
    tasks = [_task("Barrier.arrive", "RUNNING", 9, "barrier", parent="Engine.update")]
    tasks += [_task("Engine.update", "RUNNING", 1, "engine_0"), _task("other", "RUNNING", 2)]
    actors = [_actor("barrier", 9), *(_actor(f"engine_{n}", n + 1) | {"class_name": "Engine"} for n in range(3))]
    waits = RUNNING_EVENT | {"functions": ["arrive:19"], "users": [{"who": "0x0", "acts": ["set"]}]}
    barrier = _async_worker("barrier", 9, "arrive", wait=waits)
    asks = _worker("engine_0", 1, "update", WAITING | {"tasks": ["Barrier.arrive"]})
    idle = [_worker(f"engine_{n}", n + 1, "main_loop", {"kind": "idle"}) for n in (1, 2)]
    for each in idle:
        each["threads"][0]["background"] = True
    said = _verdicts([barrier, asks, *idle], _view(actors, tasks))
    assert "engine_1 has not called arrive: it is idle (Ray runs no task in it); engine_2 has not called arrive" in said


def test_who_cannot_come_to_a_rendezvous_is_the_root():
    """Three of four are in their constructors and wait for the fourth, for which they leave no room."""
    actors = [_actor("meeting", 9)]
    tasks, workers = [], []
    for number in range(4):
        placed = number < 3
        pid, name = number + 1 if placed else None, f"fsdp_{number}"
        actors.append(
            _actor(name, None, "PENDING_CREATION", required_resources={"CPU": 2.0}) | {"class_name": "Worker"}
        )
        if placed:
            tasks.append(_task(f"init_{number}", "RUNNING", pid, name) | {"type": "ACTOR_CREATION_TASK"})
            tasks.append(_task(f"Meeting.join_{number}", "RUNNING", 9, "meeting", parent=f"init_{number}"))
            tasks[-1]["name"] = "Meeting.join"
            workers.append(_worker(name, pid, "__init__", WAITING | {"tasks": [f"Meeting.join_{number}"]}))
    guard = "`len(self.joined) == self.world_size` (len(self.joined) = 3, self.world_size = 4)"
    waits = RUNNING_EVENT | {"functions": ["join:15"], "users": [{"who": "0x0", "acts": ["set"]}], "guard": guard}
    tasks.append(_task("Worker.ready", "PENDING_NODE_ASSIGNMENT", None, "fsdp_3", parent="main"))
    tasks.append(_task("main", "RUNNING", 8))
    driver = _worker("driver", 8, "main", WAITING | {"tasks": ["Worker.ready"]})
    view = _view(actors, tasks, free={"CPU": 1.0})
    found = explain([_async_worker("meeting", 9, *["join"] * 3, wait=waits), *workers, driver], ray=view)
    assert found[0].kind == "not_scheduled" and len(found) == 1
    said = found[0].verdict
    assert f"for event `self.running` to be set; actor fsdp_3 has not called join ({guard} is needed), but" in said
    assert (
        "cannot be scheduled: it asks for 2 CPU; the node with the most has 1 of 4 CPU free; in use by fsdp_0" in said
    )
    assert "fsdp_0 (2 CPU), fsdp_1 (2 CPU), fsdp_2 (2 CPU)" in said


def test_tasks_that_asyncio_makes_for_results_are_not_told_as_the_users():
    """`gather` of two results of Ray makes a task for each."""
    controller = _async_worker("controller", 1, "collect", "wrap", "wrap", wait={"kind": "ray_get", "count": 1})
    gathered, *made = controller["tasks"]
    gathered["wait"] = {"kind": "task", "name": "asyncio.gather(*scores)", "keys": ["0x1", "0x2"]}
    for number, each in enumerate(made):
        each |= {"background": True, "wait": {"kind": "ray_get", "count": 1, "tasks": [f"Judge.score_{number}"]}}
    tasks = [_task(f"Judge.score_{n}", "RUNNING", n + 2, f"judge_{n}") | {"name": "Judge.score"} for n in range(2)]
    judges = [_worker(f"judge_{n}", n + 2, "score", {"kind": "stdin", "file": {}}) for n in range(2)]
    view = _view([_actor("controller", 1), *(_actor(f"judge_{n}", n + 2) for n in range(2))], tasks)
    (found,) = explain([controller, *judges], ray=view)
    said = " ".join([found.verdict, *found.evidence])
    assert "(collect) for the result of Judge.score (actor judge_0) and 1 more" in said and "wrap" not in said


def test_a_blocked_event_loop_does_not_run_what_others_wait_for():
    wait = WAITING | {"tasks": ["Pool.pull"]}
    manager = _worker("manager", 1, "main_loop", {"kind": "idle"})
    loop = _worker("manager", 1, "generate", wait)["threads"][0]
    manager["threads"].append(loop | {"thread": "AsyncIO Thread: default", "ident": 7, "native": 7, "main": False})
    tasks = [
        _task("Manager.generate", "RUNNING", 1, "manager"),
        _task("Pool.pull", "RUNNING", 2, "pool", parent="Manager.generate"),
        _task("Manager.acquire", "RUNNING", 1, "manager", parent="Pool.pull"),
    ]
    pool = _worker("pool", 2, "pull", WAITING | {"tasks": ["Manager.acquire"]})
    said = _verdicts([manager, pool], _view([_actor("manager", 1), _actor("pool", 2)], tasks))
    assert "of manager blocks the event loop of its actor, so acquire cannot begin" in said
    assert "runs acquire" not in said


def test_an_idle_actor_is_told_with_what_its_last_task_raised():
    trace = 'Traceback\n  File "/job/train.py", line 22, in update\n    x / 0\nZeroDivisionError: division by zero'
    tasks = [
        _task("call", "RUNNING", 1),
        _task("Rank.update", "FAILED", 2, "rank_1", error_message=trace),
        _task("Rank.fit", "SUBMITTED_TO_WORKER", 2, "rank_1", parent="call"),
    ]
    idle = _worker("rank_1", 2, "main_loop", {"kind": "idle"})
    idle["threads"][0]["background"] = True
    said = _verdicts(
        [_worker("caller", 1, "call", WAITING | {"tasks": ["Rank.fit"]}), idle], _view([_actor("rank_1", 2)], tasks)
    )
    assert "its update has failed: ZeroDivisionError: division by zero at train.py:22 (update)" in said


def test_a_loop_that_asks_ray_for_progress_is_told_with_who_has_died():
    died = {"actor_died_error_context": {"error_message": "worker killed"}}
    dead = _actor("collector", 3, "DEAD", death_cause=died)
    driver = _worker(
        "driver", 1, "wait_for_groups", {"kind": "sleep", "polls": "until `size >= needed`", "delay_s": 0.5}
    )
    driver["threads"][0]["calls"] = ["size"]
    idle = _worker("buffer", 2, "main_loop", {"kind": "idle"})
    idle["threads"][0]["background"] = True
    (found,) = explain([driver, idle], ray=_view([_actor("buffer", 2), dead], []))
    assert found.kind == "ended" and found.to_finding().severity == "error"
    assert "driver polls (a loop until `size >= needed`)" in found.verdict
    assert found.verdict.endswith("all workers are idle; actor collector has died: worker killed")


_WORKER_DIED = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
)
_TRACE = """Traceback (most recent call last):
  File "python/ray/_raylet.pyx", line 2205, in ray._raylet.execute_task
  File "/job/engine.py", line 6, in __init__
    raise ValueError("no weights")
ValueError: no weights"""


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"told": "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes"},
            "killed",
        ),
        ({"told": "Worker exits unexpectedly. Worker exits with an exit code 4."}, "has ended (exit code 4)"),
        ({"trace": _TRACE}, "its constructor raised ValueError: no weights at engine.py:6 (__init__)"),
        (
            {
                "fatal": {
                    "signal": "SIGSEGV",
                    "trace": 'File "/x/lib/python3.11/ctypes.py", line 2 in s\n  File "/job/e.py", line 9 in f',
                }
            },
            "its process was ended by SIGSEGV at e.py:9 (f)",
        ),
    ],
)
def test_how_an_actor_died_is_told_in_plain_words(row, said):
    causes = {"actor_died_error_context": {"error_message": f"{_WORKER_DIED}{row['told']}"}} if "told" in row else {}
    causes |= {"creation_task_failure_context": {"formatted_exception_string": row["trace"]}} if "trace" in row else {}
    engine = _actor("engine", 3, "DEAD", death_cause=causes) | {"fatal": row.get("fatal")}
    tasks = [_task("call", "RUNNING", 1), _task("Engine.ping", "SUBMITTED_TO_WORKER", None, "engine", parent="call")]
    verdict = _verdicts([_worker("caller", 1, "call")], _view([engine], tasks))
    assert "actor engine should run ping, but has died: " in verdict and said in verdict
    assert "Worker exit" not in verdict


@pytest.mark.parametrize("strategy", ["STRICT_PACK", "PACK", "SPREAD"])
def test_a_placement_group_is_told_with_what_the_cluster_lacks_and_who_has_it(strategy):
    bundles = [{"unit_resources": {"CPU": 1.0, "slot": 1.0}}] * 2
    group = {"placement_group_id": "g", "name": "reference", "state": "PENDING", "bundles": bundles}
    taken = {"placement_group_id": "t", "name": "policy", "state": "CREATED", "bundles": bundles, "strategy": "PACK"}
    view = _view(groups=[group | {"strategy": strategy}, taken], free={"CPU": 4.0, "slot": 1.0})
    view["nodes"][0]["total"] = {"CPU": 8.0, "slot": 3.0}
    said = _verdicts([], view)
    assert "its 2 bundles ask for 2 CPU, 2 slot; the cluster has 1 of 3 slot free" in said and "STRICT" not in said
    assert said.endswith("in use by placement group policy (2 slot)")


def test_a_placement_group_for_one_node_is_told_with_the_node_that_has_the_most():
    bundles = [{"unit_resources": {"GPU": 4.0}}] * 2
    group = {"placement_group_id": "g", "name": "tp", "state": "PENDING", "bundles": bundles, "strategy": "STRICT_PACK"}
    view = _view(groups=[group], free={"GPU": 4.0})
    view["nodes"] = [view["nodes"][0] | {"node_id": name, "total": {"GPU": 8.0}} for name in "ab"]
    assert "STRICT_PACK wants all bundles on one node, and the node with the most has 4 of 8 GPU free" in _verdicts(
        [], view
    )


def test_a_constructor_that_waits_for_an_event_of_its_own_is_a_hang():
    loading = _actor("loading", 2, "PENDING_CREATION")
    tasks = [_task("call", "RUNNING", 1), _task("Loading.ping", "SUBMITTED_TO_WORKER", None, "loading", parent="call")]
    tasks.append(_task("Loading.__init__", "RUNNING", 2, "loading") | {"type": "ACTOR_CREATION_TASK"})
    stuck = _worker("loading", 2, "__init__", RUNNING_EVENT | {"nobody_elses": True})
    asks = _worker("caller", 1, "call", WAITING | {"tasks": ["Loading.ping"]})
    said = _verdicts([asks, stuck], _view([loading], tasks))
    assert "still in its constructor, and waits at job.py:5 (__init__) for event" in said


@pytest.mark.parametrize("awaits", ["an answer", "a future"])
def test_a_lock_that_a_suspended_coroutine_of_the_blocked_loop_holds_is_a_deadlock(awaits):
    # GIVEN a coroutine that awaits with a lock, which another one wants without awaiting
    waits = {
        "an answer": {"kind": "stream", "ends": [3]},
        "a future": {"kind": "future", "name": "reply", "key": "0x5"},
    }
    rollouter = _async_worker("rollouter", 1, "process", "one", wait=waits[awaits])
    held = {"file": "/x/job.py", "line": 8, "function": "process", "key": "0x4", "name": "self.lock", "loops": False}
    rollouter["tasks"][0]["holds"] = [held]
    wanted = {"kind": "lock", "name": "self.lock", "choices": [{"name": "self.lock", "key": "0x4", "owner": None}]}
    thread = _worker("rollouter", 1, "reset", wanted)["threads"][0] | {"thread": "loop", "ident": 7, "native": 7}
    rollouter["threads"].append(thread | {"main": False, "loops": True, "loop": "0x9"})
    server = _worker("server", 3, "serve", {"kind": "serving"})
    found, *_ = explain([rollouter, server])
    # THEN the two are the root, and what else the loop would run waits because of that
    assert (
        found.kind == "deadlock" and "task process (Task-0) of rollouter holds it (taken in job.py:8" in found.verdict
    )
    assert "thread loop of rollouter runs its event loop, so they wait for each other" in found.verdict
    assert awaits == "an answer" or "task one (Task-1) of rollouter waits" in " ".join(found.evidence)
    # AND a loop that runs other tasks goes on
    rollouter["threads"][-1]["loop"] = "0x8"
    assert awaits == "a future" or all(each.kind != "deadlock" for each in explain([rollouter, server]))


def test_an_actor_that_cannot_be_placed_again_is_told_as_a_shortage():
    died = {"worker_id": "w", "worker_type": "WORKER", "pid": 7, "node_id": "n", "ip": "1", "is_alive": False}
    died |= {"exit_detail": "Worker exits with an exit code 139."}
    tasks = [
        _task("call", "RUNNING", 1),
        _task("Engine.step", "PENDING_NODE_ASSIGNMENT", None, "engine", parent="call"),
    ]
    engine = _actor("engine", 7, "RESTARTING", num_restarts=1, required_resources={"CPU": 1.0})
    view = _view([engine, _actor("judge", 8, required_resources={"CPU": 4.0})], tasks)
    (found,) = explain([_worker("caller", 1, "call")], ray=view | {"workers": [died]})
    assert found.kind == "not_scheduled" and "keeps ending" not in found.verdict
    assert (
        "actor engine should run step, but its process has ended (exit code 139) and it cannot be scheduled again: "
        "it asks for 1 CPU; the node with the most has 0 of 4 CPU free; in use by judge (4 CPU)" in found.verdict
    )


def test_an_actor_of_another_namespace_is_not_found_by_its_name():
    polls = {"kind": "sleep", "polls": "that tries `ray.get_actor('store')` again after each ValueError"}
    asking, store = _actor("asking", 1, job_id="1"), _actor("store", 2, ray_namespace="shared")
    view = _view([asking, store]) | {"jobs": [{"job_id": "1", "namespace": "grpo", "host": "h", "pid": 5}]}
    (found,) = explain([_worker("asking", 1, "find", polls)], ray=view)
    assert found.kind == "not_found"
    assert "; actor store is in namespace shared, and the loop looks in grpo)" in found.verdict
    # AND not where it says in which one it looks, or where it is found
    told = {**polls, "polls": "that tries `ray.get_actor('store', namespace='shared')` again after each ValueError"}
    assert "namespace shared," not in _verdicts([_worker("asking", 1, "find", told)], view)
    found = _view([asking, store, _actor("store", 3, ray_namespace="grpo")]) | {"jobs": view["jobs"]}
    assert "namespace shared," not in _verdicts([_worker("asking", 1, "find", polls)], found)


def _argument_ring(gives, times=(1, 2, 3)):
    tasks = [
        _task("Actor.fit", "RUNNING", 1, "actor"),
        _task("Actor.export", "SUBMITTED_TO_WORKER", None, "actor", parent="Actor.fit", creation_time_ms=times[0]),
        _task("Engine.generate", "PENDING_ARGS_AVAIL", None, "engine", parent="Actor.fit", creation_time_ms=times[1]),
        _task("Judge.score", "PENDING_ARGS_AVAIL", None, "judge", parent="Actor.fit", creation_time_ms=times[2]),
    ]
    actor = _worker("actor", 1, "fit", WAITING | {"tasks": ["Judge.score"]})
    actor["threads"][0]["gives"] = gives
    idle = [_worker(name, pid, "main_loop", {"kind": "idle"}) for name, pid in (("engine", 2), ("judge", 3))]
    view = _view([_actor("actor", 1), _actor("engine", 2), _actor("judge", 3)], tasks)
    return explain([actor, *idle], ray=view)[0]


def test_arguments_are_followed_to_the_tasks_that_make_them():
    found = _argument_ring(
        [
            {"name": "generate", "tasks": [], "inline": ["export"]},
            {"name": "score", "tasks": ["Engine.generate"], "inline": []},
        ]
    )
    assert found.kind == "deadlock"
    assert (
        "task Judge.score is that task, and waits for its arguments; task Engine.generate makes them, and waits "
        "for its arguments; actor should run export (queued behind fit), which makes them, so they wait for each other"
        in found.verdict
    )


def test_arguments_that_no_variable_tells_are_not_called_nobodys():
    found = _argument_ring([])
    assert "task Engine.generate may make them, and waits for its arguments; actor should run export" in found.verdict
    assert "so they may wait for each other" in found.verdict
    # AND where Ray does not tell what was started before
    found = _argument_ring([], (None, None, None))
    assert "they are not ready, and Ray does not tell which task makes them" in found.verdict


def test_who_asks_an_actor_for_what_an_ended_thread_of_another_would_bring_is_told():
    polls = {"kind": "sleep", "polls": "until `batch is not None`", "delay_s": 0.5}
    driver = _worker("driver", 1, "wait_for_batch", polls)
    driver["threads"][0]["calls"] = ["sample"]
    idle = [_worker(who, pid, "main_loop", {"kind": "idle"}) for who, pid in (("buffer", 2), ("collector", 3))]
    for each in idle:
        each["threads"][0]["background"] = True
    idle[1]["ended"] = [{"kind": "thread", "name": "collection", "kept_as": "thread"}]
    view = _view([_actor("buffer", 2), _actor("collector", 3)])
    (found,) = explain([driver, *idle], ray=view)
    assert found.kind == "ended"
    assert found.verdict.endswith(
        "polls (a loop until `batch is not None`) at job.py:5 (wait_for_batch); all others are idle or wait; "
        "thread collection of collector (self.thread) has ended"
    )
    # AND not while another works, or where a library has started the thread
    idle[0]["threads"][0] |= {"background": False, "wait": {"kind": "computing"}}
    assert "has ended" not in _verdicts([driver, *idle], view)
    idle[0]["threads"][0] |= {"background": True, "wait": {"kind": "idle"}}
    idle[1]["ended"][0]["kept_as"] = ""
    assert "has ended" not in _verdicts([driver, *idle], view)


@pytest.mark.parametrize(("others", "kind"), [("idle", "polling"), ("computing", "busy")])
def test_a_loop_that_asks_ray_in_each_look_polls_where_nobody_else_does_anything(others, kind):
    tasks = [_task("Rollout.run", "RUNNING", 2, "rollout")]
    rollout = _worker("rollout", 2, "run", WAITING)
    rollout["threads"][0] |= {"moved": True, "asks": "while `ray.get(t.version.remote()) < 3`", "calls": ["version"]}
    driver = _worker("driver", 1, "main", WAITING | {"tasks": ["Rollout.run"]})
    trainer = _worker("trainer", 3, "step", {"kind": others})
    view = _view([_actor("rollout", 2), _actor("trainer", 3)], tasks)
    (found,) = explain([driver, rollout, trainer], ray=view)
    assert found.kind == kind, found.verdict
    assert ("polls (a loop while `ray.get(" in found.verdict) == (kind == "polling")


def test_a_loop_that_asks_for_what_a_killed_actor_ran_is_told_so():
    polls = {"kind": "sleep", "polls": "while `ray.get(board.open.remote(step))`", "delay_s": 0.5}
    killed = {"actor_died_error_context": {"error_message": "The actor was killed by `ray.kill`."}}
    actors = [_actor("board", 2), _actor("worker_0", 3, "DEAD", death_cause=killed), _actor("worker_1", 4)]
    stacks = [_worker("driver", 1, "wait", polls)]
    stacks += [_worker(each["name"], each["pid"], "main_loop", {"kind": "idle"}) for each in (actors[0], actors[2])]
    lost, started = _task("W.rollout", "FAILED", 3, "worker_0"), _task("W.__init__", "FAILED", 3, "worker_0")
    (found,) = explain(stacks, ray=_view(actors, [lost]))
    assert found.kind == "ended" and not found.is_harmless
    assert "all workers are idle; actor worker_0 was killed (ray.kill) before W.rollout had returned" in found.verdict
    # AND one that was killed when it had nothing to do explains nothing
    assert explain(stacks, ray=_view(actors, [started]))[0].is_harmless


def test_actors_with_ranks_are_told_by_the_names_that_ps_shows():
    ranked = [_worker(f"policy/{rank}", 1 + rank, "call") | {"rank": rank, "role": "policy"} for rank in range(3)]
    for each in ranked:
        each["kind"] = "actor"
    ranked[2]["threads"][0]["wait"] = {"kind": "sleep", "seconds": 5}
    actors = [_actor(f"policy_{rank}", 1 + rank) for rank in range(3)]
    tasks = [
        _task("Policy.update", "RUNNING", 1, "policy_0"),
        _task("Policy.grade", "RUNNING", 3, "policy_2", parent="Policy.update"),
    ]
    said = _verdicts(ranked, _view(actors, tasks))
    assert "policy/0" in said and "policy/2" in said and "rank 0" not in said and "rank 2" not in said
