"""Ranks that join a process group at different addresses; from hand-made snapshots."""

from rldbg.live import explain


def _joining(pid, rank, place, *, size=2, **more):
    line = {"file": "/x/sync.py", "line": 28, "function": "connect"}
    wait = {"kind": "rendezvous", "call": "init_process_group", "rank": rank, "world_size": size, "meets_at": place}
    thread = {"thread": "MainThread", "ident": pid, "native": pid, "main": True, "background": False, "holds": []}
    thread |= {"frames": [line], "place": line, "kernel": {}, "wait": wait | more}
    facts = {"who": f"actor@{pid}", "role": "actor", "rank": None, "state": "running", "host": "h", "pid": pid}
    return facts | {"threads": [thread], "tasks": [], "ended": [], "children": []}


def test_ranks_that_look_for_each_other_at_different_addresses_are_one_finding():
    trainer = _joining(1, 0, "127.0.0.1:4000", listened=True)
    (found,) = explain([trainer, _joining(2, 1, "127.0.0.1:4001", listened=False)])
    assert (
        "for other ranks to join its process group (init_process_group, as rank 0 of 2); they look for each other at "
        "different addresses: actor@1 (rank 0) at 127.0.0.1:4000; actor@2 (rank 1) at 127.0.0.1:4001, where nobody "
        "listens; actor@2 waits in the same way"
    ) in found.verdict
    assert found.kind == "never_joined"


def test_ranks_that_were_told_different_addresses_are_of_one_job():
    facts = {"world_size": 2, "role": "train"}
    ranks = [
        _joining(1, 0, "127.0.0.1:4000", listened=True) | facts | {"rank": 0, "job": "127.0.0.1:4000"},
        _joining(2, 1, "127.0.0.1:4001", listened=False) | facts | {"rank": 1, "job": "127.0.0.1:4001"},
    ]
    (found,) = explain(ranks)
    assert "rank 0 at 127.0.0.1:4000; rank 1 at 127.0.0.1:4001, where nobody listens" in found.verdict
    assert "was not found" not in found.verdict


def test_two_names_of_one_host_are_not_different_addresses():
    ranks = [_joining(1, 0, "localhost:4000", listened=True), _joining(2, 1, "127.0.0.1:4000", listened=True)]
    assert not any("different addresses" in each.verdict for each in explain(ranks))


def test_ranks_of_different_groups_are_not_compared():
    # GIVEN two groups of the same size that are joined at once, each without its rank 1
    found = explain([_joining(1, 0, "a:1", listened=True), _joining(2, 0, "b:1", listened=True)])
    assert not any("different addresses" in each.verdict for each in found)
    assert all("rank 1 is not among the processes that join it" in each.verdict for each in found)


def test_that_nobody_listens_is_said_with_who_is_missing():
    (found,) = explain([_joining(2, 1, "127.0.0.1:4001", listened=False)])
    assert found.verdict.endswith(
        "; nobody listens at 127.0.0.1:4001, where the ranks should meet; "
        "rank 0 is not among the processes that join it"
    )
    # AND that rank 0 listens elsewhere, if the port was left open
    first = _joining(1, 0, "127.0.0.1:0", listened=False, listens=["0.0.0.0:36725"])
    (found,) = explain([first, _joining(2, 1, "127.0.0.1:0", listened=False, listens=[])])
    assert (
        "nobody listens at 127.0.0.1:0, where the ranks should meet; port 0 stands for any free one, "
        "and rank 0 listens at 0.0.0.0:36725; actor@2 waits in the same way"
    ) in found.verdict
    # AND nothing is said of another host
    (found,) = explain([_joining(2, 1, "trainer-0:4001", listened=None)])
    assert "listens" not in found.verdict
