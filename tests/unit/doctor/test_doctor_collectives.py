"""Flight-recorder dumps: the ranks that held the others up, dumps that are missing, damaged or hostile."""

import pickle
from pathlib import Path

import pytest

from rldbg.doctor import Library, SearchIndex, diagnose
from rldbg.doctor.logs.flight_recorder import findings_of, read_dumps
from third_party import material, needs

SETS = material("knowledge/flight_recorder")


def dump(folder, rank, world, *, enqueued, completed, name="nccl:all_reduce", pending=None):
    """A dump of one group over all ranks; by default everything between completed and enqueued is unfinished."""
    sequence = range(completed + 1, enqueued + 1) if pending is None else pending
    entries = [
        {
            "record_id": number,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "profiling_name": name,
            "input_sizes": [[4]],
            "state": "scheduled",
            "is_p2p": False,
            "retired": False,
        }
        for number in sequence
    ]
    status = {
        "last_enqueued_collective": enqueued,
        "last_started_collective": -1,
        "last_completed_collective": completed,
    }
    content = {
        "version": "2.9",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}},
        "pg_status": {"0": status},
        "entries": entries,
    }
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content))


@needs(SETS)
@pytest.mark.parametrize(("name", "ranks"), [("gpu_error_1st", (12, 14)), ("lock_gil_1st", (9, 14))])
def test_injected_faults_are_found_on_the_right_ranks(name, ranks):
    assert read_dumps(SETS / name).culprits == ranks


def test_a_rank_held_up_on_the_cpu_is_the_culprit(tmp_path):
    for rank in range(4):
        dump(tmp_path, rank, 4, enqueued=7 if rank == 2 else 8, completed=7)
    report = read_dumps(tmp_path)
    assert (report.culprits, tuple(report.waits.stuck)) == ((2,), ())
    assert "on the CPU" in findings_of(report)[0].cause


def test_a_rank_whose_peers_are_done_is_stuck_on_its_device(tmp_path):
    for rank in range(4):
        dump(tmp_path, rank, 4, enqueued=9, completed=5 if rank == 1 else 9)
    report = read_dumps(tmp_path)
    assert (report.culprits, tuple(report.waits.stuck)) == ((1,), (1,))


def test_a_rank_without_a_dump_comes_first(tmp_path):
    for rank in (0, 1, 3):
        dump(tmp_path, rank, 4, enqueued=8, completed=7)
    report = read_dumps(tmp_path)
    assert (report.culprits, report.waits.missing) == ((2,), (2,))


def test_different_collectives_at_one_place_are_a_mismatch(tmp_path):
    dump(tmp_path, 0, 2, enqueued=8, completed=7)
    dump(tmp_path, 1, 2, enqueued=8, completed=7, name="nccl:broadcast")
    report = read_dumps(tmp_path)
    assert [each["ranks"] for each in report.mismatches] == [[0, 1]]
    # AND a barrier, which torch makes of an all_reduce, is called by its name
    dump(tmp_path, 1, 2, enqueued=8, completed=7, name="nccl:all_reduce_barrier")
    assert set(read_dumps(tmp_path).waits.mismatches[0].calls) == {"all_reduce of shape 4", "barrier"}


def test_ranks_that_all_finished_blame_nobody(tmp_path):
    for rank in range(3):
        dump(tmp_path, rank, 3, enqueued=8, completed=8)
    assert read_dumps(tmp_path).culprits == ()


def test_a_damaged_and_a_hostile_dump_are_findings_and_run_nothing(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "owned",))

    for rank in (0, 1):
        dump(tmp_path, rank, 4, enqueued=8, completed=7)
    (tmp_path / "nccl_trace_rank_2").write_bytes(pickle.dumps({"entries": Hostile()}))
    (tmp_path / "nccl_trace_rank_3").write_bytes(b"\x80\x04 cut")
    report = read_dumps(tmp_path)
    assert not (tmp_path / "owned").exists()
    assert [finding.id for finding in findings_of(report)][:2] == ["flight-recorder-unreadable"] * 2
    assert report.culprits == (2, 3)


def test_dumps_and_logs_are_one_story(tmp_path):
    for rank in range(4):
        dump(tmp_path, rank, 4, enqueued=7 if rank == 2 else 8, completed=7)
    (tmp_path / "rank0.log").write_text("[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8)\n")
    found = diagnose([tmp_path], index=SearchIndex(Library.load()))
    assert found.verdict == "unknown"
    assert found.to_dict()["flight_recorder"][0]["culprit_ranks"] == [2]
    assert found.next[0].startswith("read the log of rank 2")
