"""The diagnosis of hangs: from hand-made views, and from labelled dumps of real jobs."""

import pickle
from dataclasses import replace

import pytest

from rldbg.core import IncompleteDataError
from rldbg.live import Pending, RankView, Waits, diagnose_dumps
from rldbg.live import diagnose as diagnose_waits
from third_party import material, needs

WORLD = {"0": (0, 1, 2, 3)}
LABELLED = material("knowledge/flight_recorder")


def diagnose(views, groups):
    return diagnose_waits(Waits({view.rank: view for view in views}, groups))


def _waiting(rank, sequence, op="all_reduce", group="0", **options):
    return RankView(
        rank,
        f"policy/{rank}",
        "train.py:10",
        pending=(Pending(group, sequence, op, **options),),
        entered={group: sequence},
    )


def _elsewhere(rank, sequence, place="reward.py:88 (score)", state="running"):
    return RankView(rank, f"policy/{rank}", place, state, entered={"0": sequence})


def test_the_rank_that_never_came_is_named_with_its_place():
    found = diagnose([*(_waiting(rank, 1093) for rank in range(3)), _elsewhere(3, 1092)], WORLD)
    assert found.verdict == "rank 3 never entered all_reduce #1093; it is in reward.py:88 (score)"
    assert (found.kind, found.ranks) == ("absent", (3,))


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (_elsewhere(3, 4, "train.py:7", "stopped"), "stopped by the debugger at train.py:7"),
        (_elsewhere(3, 4, "train.py:7", "crashed"), "has crashed at train.py:7"),
        (_elsewhere(3, 4, "train.py:7", "suspended"), "is suspended by a signal (SIGSTOP) at train.py:7"),
        (_elsewhere(3, 4, "", "lost"), "has ended"),
        (None, "rank 3 was not found"),
    ],
)
def test_why_it_never_came_is_said(view, words):
    views = [_waiting(rank, 5) for rank in range(3)] + ([view] if view else [])
    assert words in diagnose(views, WORLD).verdict


def test_different_calls_at_the_same_place_disagree():
    views = [_waiting(0, 7), _waiting(1, 7), _waiting(2, 7), _waiting(3, 7, "broadcast")]
    found = diagnose(views, WORLD)
    assert (found.kind, found.ranks) == ("disagreement", (3,)) and "rank 3 called broadcast" in found.verdict
    sizes = [_waiting(rank, 7, shape="8x4" if rank else "8x5") for rank in range(4)]
    assert diagnose(sizes, WORLD).ranks == (0,)
    # AND who called something else because it raised is to blame, with what it raised
    handles = ", while it handles ValueError: no raised at reward.py:3 (score)"
    views = [_waiting(0, 7), replace(_waiting(1, 7, "barrier"), handles=handles)]
    found = diagnose(views, {"0": (0, 1)})
    assert found.ranks == (1,) and found.fix[0].startswith("correct what was raised")
    assert f"rank 1 called barrier and is at train.py:10{handles}" in found.verdict
    uneven = [_waiting(rank, 7, "all_to_all", shape=f"{rank}x4") for rank in range(4)]
    assert diagnose(uneven, WORLD).kind == "moving"


def test_a_victim_that_waits_elsewhere_is_not_blamed():
    # Rank 1 is missing in group A only because it waits in group B for rank 2, which is in no collective.
    groups = {"A": (0, 1), "B": (1, 2)}
    views = [
        RankView(0, "p/0", pending=(Pending("A", 3, "all_reduce"),), entered={"A": 3}),
        RankView(1, "p/1", pending=(Pending("B", 9, "all_gather"),), entered={"A": 2, "B": 9}),
        RankView(2, "p/2", "data.py:5", entered={"B": 8}),
    ]
    assert diagnose(views, groups).ranks == (2,)


def test_groups_entered_in_different_order_are_a_cycle():
    groups = {"A": (0, 1), "B": (0, 1)}
    views = [
        RankView(0, "p/0", pending=(Pending("A", 1, "all_reduce"),), entered={"A": 1, "B": 0}),
        RankView(1, "p/1", pending=(Pending("B", 1, "all_reduce"),), entered={"A": 0, "B": 1}),
    ]
    found = diagnose(views, groups)
    assert (found.kind, found.ranks) == ("cycle", (0, 1)) and "wait for each other" in found.verdict


def test_a_rank_that_left_a_call_in_which_another_waits_passed_something_else():
    # Gloo's all_reduce ends at once on the rank that passed the smaller tensor.
    views = [_waiting(0, 4, shape="8x16"), _waiting(1, 5, "barrier")]
    found = diagnose(views, {"0": (0, 1)})
    assert (found.kind, found.ranks) == ("disagreement", (0, 1))
    assert "rank 0 waits in all_reduce #4 of shape 8x16; rank 1 has left #4 and waits in barrier #5" in found.verdict
    assert "shape of the tensor" in found.fix[0]


def test_two_receives_are_a_cycle_and_a_send_answers_one():
    views = [RankView(r, f"p/{r}", pending=(Pending("0", 0, "recv", peer=1 - r),)) for r in range(2)]
    ring = diagnose(views, {"0": (0, 1)})
    assert ring.verdict.endswith("; all of them receive, none sends") and "count the sends" in ring.fix[0]
    assert diagnose(views, {"0": (0, 1)}).kind == "cycle"
    answered = [views[0], RankView(1, "p/1", pending=(Pending("0", 0, "send", peer=0),))]
    assert diagnose(answered, {"0": (0, 1)}).kind not in ("cycle", "absent")


def test_ranks_that_are_together_are_not_accused():
    found = diagnose([_waiting(rank, 5) for rank in range(4)], WORLD)
    assert found.kind == "moving" and found.to_finding().severity == "info"
    assert diagnose([_elsewhere(rank, 5) for rank in range(4)], WORLD).kind == "none"
    assert diagnose([], {}).kind == "none"


def test_two_stuck_ranks_of_one_group_are_both_named():
    # Ranks 2 and 3 still hold what 0 and 1 have finished; nobody is missing from it.
    done = [RankView(rank, f"p/{rank}", entered={"0": 5}, completed={"0": 5}) for rank in (0, 1)]
    held = [RankView(r, f"p/{r}", pending=(Pending("0", 5, "all_reduce"),), entered={"0": 5}) for r in (2, 3)]
    found = diagnose([*done, *held], WORLD)
    assert (found.kind, found.ranks) == ("stuck_device", (2, 3))


def test_a_root_that_has_sent_and_left_does_not_make_the_receivers_stuck():
    # The root of a broadcast may finish before others have entered; the rank that never came is to blame.
    views = [
        RankView(0, "p/0", entered={"0": 5}, completed={"0": 5}),
        _waiting(1, 5, "broadcast"),
        _waiting(2, 5, "broadcast"),
        _elsewhere(3, 4),
    ]
    found = diagnose(views, WORLD)
    assert (found.kind, found.ranks) == ("absent", (3,))


def test_operations_that_were_enqueued_in_different_order_are_a_cycle():
    # Both ranks have enqueued both, and each device stands at the one that the other has behind it.
    groups, order = {"A": (0, 1), "B": (0, 1)}, {0: ("A", "B"), 1: ("B", "A")}
    views = [
        RankView(r, f"p/{r}", pending=tuple(Pending(g, 1, "all_reduce") for g in order[r]), entered={"A": 1, "B": 1})
        for r in range(2)
    ]
    assert (diagnose(views, groups).kind, diagnose(views, groups).ranks) == ("cycle", (0, 1))


def _entry(group, sequence, state="completed", op="nccl:all_reduce", pg_id=0):
    return {
        "process_group": (group, "default_pg"),
        "pg_id": pg_id,
        "collective_seq_id": sequence,
        "is_p2p": False,
        "profiling_name": op,
        "state": state,
        "input_sizes": [[2, 3]],
    }


def _write_dumps(folder, entries, status):
    for rank, (mine, last) in enumerate(zip(entries, status, strict=True)):
        record = {
            "version": "2.9",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(len(entries))))}},
            "pg_status": {"0": {"last_enqueued_collective": last[0], "last_completed_collective": last[1]}},
            "entries": mine,
        }
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(record, protocol=2))


def test_dumps_of_a_rank_that_never_entered(tmp_path):
    entries = [[_entry("0", 4), _entry("0", 5, "scheduled")]] * 3 + [[_entry("0", 4)]]
    _write_dumps(tmp_path, entries, [(5, 4)] * 3 + [(4, 4)])
    found = diagnose_dumps(tmp_path)
    assert (found.kind, found.ranks) == ("absent", (3,)) and "all_reduce #5" in found.verdict


def test_dumps_of_a_device_that_stopped_finishing(tmp_path):
    entries = [[_entry("0", 4), _entry("0", 5)]] * 3 + [[_entry("0", 4, "started"), _entry("0", 5, "scheduled")]]
    _write_dumps(tmp_path, entries, [(5, 5)] * 3 + [(5, 3)])
    found = diagnose_dumps(tmp_path)
    assert (found.kind, found.ranks) == ("stuck_device", (3,))


def test_a_hostile_dump_is_not_executed(tmp_path):
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path).encode() + b"/owned'\ntR.")
    with pytest.raises(IncompleteDataError, match="plain data"):
        diagnose_dumps(tmp_path)
    assert not (tmp_path / "owned").exists()
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"\x80\x02")
    with pytest.raises(IncompleteDataError):
        diagnose_dumps(tmp_path)


@needs(LABELLED)
@pytest.mark.parametrize(
    ("name", "kind", "ranks"), [("lock_gil_1st", "absent", (9, 14)), ("gpu_error_1st", "stuck_device", (12, 14))]
)
def test_injected_faults_of_real_jobs_are_found(name, kind, ranks):
    found = diagnose_dumps(LABELLED / name)
    assert (found.kind, found.ranks) == (kind, ranks)


def test_a_transfer_in_a_dump_waits_for_its_other_end(tmp_path):
    receive = _entry("0", 4, "started", "nccl:recv 0<-1") | {"is_p2p": True}
    _write_dumps(tmp_path, [[receive], [_entry("0", 4)]], [(4, 4), (4, 4)])
    found = diagnose_dumps(tmp_path)
    assert (found.kind, found.ranks) == ("absent", (1,)) and "never answered recv of rank 0" in found.verdict


def test_a_dump_that_cannot_be_read_counts_as_a_missing_rank(tmp_path):
    entries = [[_entry("0", 4), _entry("0", 5, "scheduled")]] * 3
    _write_dumps(tmp_path, entries, [(5, 4)] * 3)
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"\x80\x04 cut")
    found = diagnose_dumps(tmp_path)
    assert (found.kind, found.ranks) == ("absent", (2,))
    assert "could not be read" in found.evidence[-1]


def test_the_doctor_blames_the_same_ranks(tmp_path):
    from rldbg.doctor.logs.flight_recorder import findings_of, read_dumps

    entries = [[_entry("0", 4), _entry("0", 5)]] * 2 + [[_entry("0", 4), _entry("0", 5, "started")]] * 2
    _write_dumps(tmp_path, entries, [(5, 5)] * 2 + [(5, 4)] * 2)
    found, report = diagnose_dumps(tmp_path), read_dumps(tmp_path)
    assert found.ranks == report.culprits == (2, 3)
    assert [each.where for each in findings_of(report)] == ["rank 2", "rank 3"]
