"""Process groups in the diagnosis: members, groups that differ between ranks; from hand-made snapshots."""

from rldbg.live import explain


def _rank(rank, wait, *groups, world=3, made=None, line=7, **more):
    place = {"file": "/x/job.py", "line": line, "function": "build"}
    thread = {"thread": "MainThread", "ident": rank, "native": rank, "main": True, "background": False, "holds": []}
    thread |= {"frames": [place], "place": place, "kernel": {}, "wait": wait}
    known = [{"name": name, "ranks": ranks, "size": len(ranks or [0, 1])} for name, ranks in groups]
    facts = {"who": f"job/{rank}", "role": "job", "rank": rank, "world_size": world, "state": "running", "host": "h"}
    facts |= {"threads": [thread], "tasks": [], "ended": [], "children": []}
    return facts | {"pid": 10 + rank, "process_groups": known, "groups_made": made, "distributed": world} | more


def _collective(op="all_reduce", group="default", members=None, **more):
    return {"kind": "collective", "op": op, "group": group, "members": members, "peer": None} | more


def _making(group, members):
    return {"kind": "rendezvous", "call": "new_group", "group": group, "members": members}


WORLD = ("0", [0, 1, 2])


def test_ranks_outside_of_a_group_are_not_missing_from_it():
    pair = ("1", [0, 1])
    ranks = [
        _rank(0, {"kind": "sleep"}, WORLD, pair),
        _rank(1, _collective(group="1", members=[0, 1]), WORLD, pair),
        _rank(2, {"kind": "sleep"}, WORLD),
    ]
    (found,) = explain(ranks)
    assert "rank 0 never entered it" in found.verdict and "rank 2" not in found.verdict
    # AND those that make a group wait for its members only
    ranks = [_rank(0, _making("1", [0, 2]), WORLD), _rank(1, {"kind": "sleep"}, WORLD), _rank(2, {"kind": "sleep"})]
    (found,) = explain(ranks)
    assert "for other ranks to join its process group (new_group of ranks 0, 2); rank 2 has not joined" in found.verdict
    assert "rank 1" not in found.verdict


def test_it_is_said_where_the_members_are_not_seen():
    ranks = [_rank(0, _making(None, None), WORLD, ("1", [0, 1])), _rank(1, {"kind": "sleep"}, WORLD, world=2)]
    (found,) = explain([each | {"world_size": 2} for each in ranks])
    assert "rank 1 has not joined it (whether it is a member is not seen), but sleeps" in found.verdict


def test_the_group_of_all_ranks_is_the_same_by_any_name():
    ranks = [_rank(rank, _collective(group=group), WORLD) for rank, group in enumerate(["default", "0", "default"])]
    (found,) = explain(ranks)
    assert "all ranks are in it" in found.verdict


def test_nobody_is_said_to_be_in_a_collective_who_is_not():
    # GIVEN counters that blame rank 2, and rank 1 in a group with rank 0, which is elsewhere
    ranks = [
        _rank(0, {"kind": "event", "name": "go", "users": []}, WORLD, ("1", [0, 1])),
        _rank(1, _collective(group="1", members=[0, 1]), WORLD, ("1", [0, 1])),
        _rank(2, {"kind": "sleep"}, WORLD),
    ]
    counters = [{"name": "0", "ranks": [0, 1, 2], "sequence": 1}]
    assert not any("all ranks are in it" in each.verdict for each in explain([r | {"groups": counters} for r in ranks]))


def test_a_group_that_ranks_have_made_of_other_members_is_told():
    ranks = [
        _rank(0, _making("2", [0, 2]), WORLD, ("1", [0, 1]), made=3),
        _rank(1, _collective(group="1", members=[0, 1]), WORLD, ("1", [0, 1]), made=3, line=9),
        _rank(2, _making("3", [0, 2]), WORLD, ("1", [2]), ("2", [2]), made=4),
    ]
    found, *rest = explain(ranks)
    assert found.verdict == (
        "process group 2 is not the same on all ranks: its members are ranks 0, 2 on rank 0 and rank 2 on rank 2; "
        "new_group numbers groups in the order of its calls: 2 so far on ranks 0, 1, 3 so far on rank 2"
    )
    assert found.kind == "disagreement" and not rest
    assert found.evidence[1] == "rank 1 waits at job.py:9 (build) for all_reduce of group 1 (ranks 0, 1)"
    assert "use_local_synchronization" in found.fix[0]
    # AND a process that waits for one of them
    child = {"kind": "child", "pid": 10, "name": "trainer", "child": {"state": "sleeping"}}
    launcher = _rank(7, child, line=3) | {"rank": None, "children": [{"pid": 10, "state": "sleeping"}]}
    (found,) = explain([*ranks, launcher])
    assert found.evidence[-1].startswith("because of that job/7 waits at job.py:3 (build)")


def test_a_group_that_a_member_has_made_before_under_its_number_is_told():
    ranks = [
        _rank(0, _making("2", [0, 2]), WORLD, ("1", [0, 1]), made=3),
        _rank(1, _collective("barrier"), WORLD, ("1", [0, 1]), made=3),
        _rank(2, _collective("barrier"), WORLD, ("1", [0, 2]), made=2),
    ]
    (found,) = explain(ranks)
    assert (
        "group 1 is not the same on all ranks: its members are ranks 0, 1 on ranks 0, 1 and ranks 0, 2" in found.verdict
    )


def test_a_group_that_members_make_under_different_names_is_told():
    names = {0: "0" * 40, 1: "1" * 40}
    ranks = [_rank(rank, _making(names[rank], [0, 1]), ("0", [0, 1]), world=2, made=1) for rank in names]
    (found,) = explain(ranks)
    assert "make the group of ranks 0, 1 under different names, so they never meet" in found.verdict
    assert "of its calls" not in found.verdict


def test_another_group_of_the_same_name_does_not_explain_a_member_that_is_late():
    ranks = [
        _rank(0, {"kind": "sleep"}, WORLD, ("1", [0, 1]), made=2),
        _rank(1, _collective(group="1", members=[0, 1]), WORLD, ("1", [0, 1]), made=2),
        _rank(2, {"kind": "sleep"}, WORLD, ("1", [2]), made=2),
    ]
    (found,) = explain(ranks)
    assert "rank 0 never entered it, but sleeps" in found.verdict


def _broadcasting(rank, root, *, round_=3, place=30, loop=20):
    """In a broadcast within a loop whose round is known, or not."""
    step = {"file": "/x/job.py", "line": place, "function": "send", "escapes": [], "tested": {}}
    found = _rank(rank, _collective("broadcast", peer=root), WORLD, line=place)
    found["threads"][0]["route"] = [step | {"rounds": [[loop, 40, round_]]}]
    return found


def test_ranks_that_disagree_on_the_root_of_the_same_call_are_told():
    (found,) = explain([_broadcasting(0, 0), _broadcasting(1, 1), _broadcasting(2, 0)])
    assert found.verdict == (
        "rank 0 waits at job.py:30 (build) for broadcast; the ranks in it disagree on its root: "
        "ranks 0, 2 from rank 0, rank 1 from rank 1"
    )
    assert (found.kind, found.ranks) == ("disagreement", (0, 1, 2)) and "same root" in found.fix[0]
    # AND where it is not known how far they are, but all are there
    (found,) = explain([_broadcasting(rank, rank, round_=None) for rank in range(3)])
    assert "disagree on its root: rank 0 from rank 0, rank 1 from rank 1, rank 2 from rank 2" in found.verdict
    # AND not those at another line
    found = explain([_broadcasting(0, 0), _broadcasting(1, 1, place=31), _broadcasting(2, 0)])
    assert "disagree" not in found[0].verdict


def test_a_rank_in_a_later_round_is_not_said_to_be_missing():
    slow = _rank(2, {"kind": "sleep"}, WORLD)
    for later in (4, None):
        found = explain([_broadcasting(0, 0), _broadcasting(1, 1, round_=later), slow])
        assert any("rank 2 never entered it, but sleeps" in each.verdict for each in found)
        assert not any("disagree" in each.verdict for each in found)
    assert "rank 1 never" not in explain([_broadcasting(0, 0), _broadcasting(1, 1, round_=4), slow])[0].verdict


def _line(function, line, peer):
    return {"file": "/x/job.py", "line": line, "function": function, "peer": peer}


def test_ranks_that_all_send_before_they_receive_are_told():
    ranks = [_rank(rank, _collective("send", peer=(rank + 1) % 3), WORLD, line=19) for rank in range(3)]
    ranks[1]["threads"][0]["enters"] = {"recv": [_line("build", 20, "before")]}
    (found,) = explain(ranks)
    assert "for send to rank 1; rank 1 does not receive it, and waits at job.py:19 (build) for send" in found.verdict
    assert found.verdict.endswith("so they wait for each other (deadlock); all of them send, none receives")
    assert "batch_isend_irecv" in found.fix[0]


def test_where_the_other_side_of_a_send_receives_is_told():
    receives = {"recv": [_line("pull", 34, "self.source()")]}
    ranks = [_rank(rank, _collective("barrier"), WORLD, line=55) for rank in range(3)]
    ranks[1] = _rank(1, _collective("send", peer=2), WORLD, line=22)
    ranks[2]["threads"][0]["enters"] = receives
    (found,) = explain(ranks)
    assert (
        "rank 2 does not receive it (it receives at job.py:34 (pull), from `self.source()`), and waits" in found.verdict
    )
    assert "batch_isend_irecv" not in found.fix[0]
    # AND by the counters of an armed job
    groups = [{"name": "0", "ranks": [0, 1, 2], "sequence": 3}]
    armed = [rank | {"groups": groups} for rank in ranks]
    for rank, call in enumerate([{"op": "barrier"}, {"op": "send", "peer": 2}, {"op": "barrier"}]):
        armed[rank]["threads"][0]["collective"] = {"group": "0"} | call
    found = explain(armed)[0]
    assert found.kind == "cycle" and "passed" not in found.verdict
    assert found.verdict.endswith(
        "; rank 2 does not answer rank 1 (it receives at job.py:34 (pull), from `self.source()`)"
    )


def _step(function, line, escapes=()):
    escapes = [
        {"kind": "test", "what": f"`{each}`", "word": "did not hold", "line": 41, "from": 42, "to": 43}
        for each in escapes
    ]
    return {"file": "/x/job.py", "line": line, "function": function, "escapes": escapes, "tested": {}, "rounds": []}


def test_a_rank_that_torchrun_has_seen_end_is_told_with_how_it_may_have_come_to_its_end():
    waits = _rank(0, _making("1", [0, 1]), ("0", [0, 1]), world=2, ended_ranks=[1])
    waits["threads"][0]["route"] = [_step("<module>", 55), _step("save", 42, ["self.is_saving()"]), _step("layout", 32)]
    (found,) = explain([waits])
    assert (
        "rank 1 has not joined it (it may have skipped it: `self.is_saving()` (job.py:41) did not hold), but has "
        "ended with exit code 0"
    ) in found.verdict
    assert found.kind == "ended"
    waits["threads"][0]["route"][1]["escapes"] = None
    assert "passed" not in explain([waits])[0].verdict


def test_ranks_at_the_same_line_are_told_with_where_they_come_from():
    counters = [{"name": name, "ranks": [0, 1], "sequence": 1} for name in "01"]
    ranks = []
    for rank, group in enumerate("10"):
        wait = _collective("all_gather", group=group, members=[0, 1])
        ranks.append(_rank(rank, wait, ("0", [0, 1]), ("1", [0, 1]), world=2, groups=counters))
        thread = ranks[rank]["threads"][0]
        thread |= {"collective": {"op": "all_gather", "group": group}}
        thread["route"] = [_step("train", 51 + rank), _step("build", 7)]
    (found,) = explain(ranks)
    assert (
        found.kind == "cycle"
        and "rank 0 came there from job.py:51 (train), rank 1 from job.py:52 (train)" in found.evidence
    )


NAMED = ("weight_sync", None)


def test_a_group_that_a_library_names_joins_processes_of_several_jobs():
    # GIVEN two trainers, of which the first sends weights to an engine of another job
    sends = _collective("broadcast", group="weight_sync", peer=0)
    trainers = [
        _rank(0, sends, ("0", [0, 1]), NAMED, world=2, job="a:1"),
        _rank(1, _collective("barrier"), ("0", [0, 1]), world=2, job="a:1"),
    ]
    engine = _rank(0, {"kind": "sleep"}, ("0", [0]), NAMED, world=1, job="b:1") | {
        "pid": 50,
        "who": "engine/0",
        "role": "engine",
    }
    (found,) = explain([*trainers, engine])
    assert "of group weight_sync; engine/0 has process group weight_sync and is not in it, but sleeps" in found.verdict
    assert any("job/1 waits at job.py:7 (build) for barrier" in each for each in found.evidence)
    # AND it is not known who is missing where the other process is not found
    found = explain(trainers)
    assert any(
        "1 of the 2 processes of group weight_sync were not found, the others are in it" in each.verdict
        for each in found
    )
    assert not any("rank 1 never" in each.verdict or "all ranks are in it" in each.verdict for each in found)


def test_a_named_group_that_is_made_waits_for_its_own_ranks():
    making = {"kind": "rendezvous", "call": "group weight_sync", "group": "weight_sync", "rank": 0, "world_size": 2}
    trainers = [_rank(0, making, ("0", [0, 1]), world=2), _rank(1, {"kind": "sleep"}, ("0", [0, 1]), world=2)]
    (found,) = explain(trainers)
    assert found.verdict.endswith("(group weight_sync, as rank 0 of 2); rank 1 is not among the processes that join it")


def test_counters_of_a_named_group_are_of_the_ranks_that_have_it():
    # GIVEN ranks 0 and 2 in a group where they are 0 and 1
    named = {"name": "weights", "ranks": [0, 1], "sequence": 1}
    world = {"name": "0", "ranks": [0, 1, 2], "sequence": 2}
    ranks = [_rank(rank, _collective("barrier"), WORLD, groups=[world]) for rank in range(3)]
    for rank in (0, 2):
        ranks[rank] |= {
            "groups": [world, named],
            "process_groups": [*ranks[rank]["process_groups"], {"name": "weights", "ranks": None, "size": 2}],
        }
    ranks[0]["threads"][0]["wait"] = _collective("broadcast", group="weights", peer=0)
    calls = [
        {"op": "broadcast", "group": "weights", "root": 0},
        {"op": "barrier", "group": "0"},
        {"op": "barrier", "group": "0"},
    ]
    for rank, call in zip(ranks, calls, strict=True):
        rank["threads"][0]["collective"] = call
    ranks[2]["groups"] = [world, named | {"sequence": 0}]
    found = explain(ranks)[0]
    assert found.ranks == (0, 2) and "group weights (ranks 0, 2)" in found.verdict


def test_a_collective_that_was_begun_before_is_compared_with_those_of_others():
    begun = _rank(0, _collective(begun=True, name="work"), WORLD)
    found = explain([begun, _rank(1, _collective("barrier"), WORLD), _rank(2, _collective("all_reduce"), WORLD)])
    assert "rank 0 waits at job.py:7 (build) for all_reduce (begun before); rank 1 never entered it" in found[0].verdict
    assert "rank 2 never" not in found[0].verdict


def test_ranks_of_another_job_do_not_wait_for_the_same_collective():
    def job(name, port):
        wait = _collective(members=[0, 1])
        ranks = [_rank(0, dict(wait), ("0", [0, 1]), world=2), _rank(1, {"kind": "sleep"}, ("0", [0, 1]), world=2)]
        named = [{"job": f"h:{port}", "role": name, "who": f"{name}/{n}", "pid": 10 * port + n} for n in range(2)]
        return [rank | own for rank, own in zip(ranks, named, strict=True)]

    found = explain([*job("train", 1), *job("eval", 2)])
    assert len(found) == 2 and not any("the same collective" in each.verdict or each.evidence for each in found)


def test_a_rank_that_has_left_a_call_has_not_passed_it_by():
    ranks = []
    for rank, (op, line) in enumerate([("all_reduce", 15), ("barrier", 26)]):
        counters = [{"name": "0", "ranks": [0, 1], "sequence": 4 + rank}]
        ranks.append(_rank(rank, _collective(op, members=[0, 1]), ("0", [0, 1]), world=2, line=line, groups=counters))
        thread = ranks[rank]["threads"][0]
        thread |= {"collective": {"op": op, "group": "0", "shape": "8"}}
        thread["route"] = [_step("build", line, ["step < 3"] if rank == 0 else [])]
    found = explain(ranks)[0]
    assert "rank 1 has left #4" in found.verdict and "passed" not in found.verdict
