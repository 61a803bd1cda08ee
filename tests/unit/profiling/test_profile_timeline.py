"""Phases and foreign traces on one axis; the report's arithmetic; files that are damaged or large."""

import gzip
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from rldbg.core import IncompleteDataError, Run
from rldbg.profiling import make_report, write_timeline
from rldbg.profiling.trace_events import ChromeTrace, spy_slices
from rldbg.profiling.tracks import PhaseSpan, read_tracks, self_times
from rldbg.reports.profile import timeline_lines

SECOND = 10**9


def write_track(run: Path, worker: str, pid: int, spans: list, *, offset_ns=0, rank=None, host="h") -> Path:
    folder = run / "profiling" / "phases"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{"worker": worker, "role": worker, "rank": rank, "host": host, "pid": pid, "kind": "actor"}]
    lines += [{"clock": {"offset_ns": offset_ns, "round_trip_ns": 1000}}] if offset_ns is not None else []
    path = folder / f"h_{pid}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *spans]))
    return path


def torch_trace(path: Path, pid: int, events: int, *, base_ns: int) -> None:
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(f'{{"schemaVersion": 1, "baseTimeNanoseconds": {base_ns}, "traceEvents": [\n')
        for number in range(events):
            event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": 1, "ts": number, "dur": 0.5}
            file.write(json.dumps(event | {"args": {"External id": number, "Input Dims": "[[1, 2], [2, 3]]"}}) + ",\n")
        file.write(json.dumps({"ph": "X", "name": "kernel", "pid": 0, "tid": 7, "ts": 1, "dur": 1}) + "\n]}\n")


def merged(run: Path) -> list[dict]:
    write_timeline(run, run / "trace.json")
    return json.loads((run / "trace.json").read_text())["traceEvents"]


def test_clocks_are_put_right_and_stated(tmp_path):
    write_track(tmp_path, "policy/0", 1, [["loss", SECOND, 5000, 1, 9]])
    late = [["loss", SECOND + 300_000_000, 5000, 1, 9]]
    write_track(tmp_path, "policy/1", 2, late, offset_ns=-300_000_000, host="other")
    write_track(tmp_path, "policy/2", 3, [["loss", SECOND, 5000, 1, 9]], offset_ns=None)
    events = [event for event in merged(tmp_path) if event["name"] == "loss"]
    assert [event["ts"] for event in events] == [0, 0, 0]
    lines = timeline_lines(write_timeline(tmp_path, tmp_path / "again.json"))
    assert any("-300.000 ms" in line for line in lines)


def test_torch_and_device_events_come_along(tmp_path):
    base = 5 * SECOND
    write_track(tmp_path, "policy/0", 41, [["loss", base, 5000, 1, 9]])
    (tmp_path / "profiles").mkdir()
    torch_trace(tmp_path / "profiles" / "policy_0_2:3_41.torch.json.gz", 41, 3, base_ns=base + 2_000_000)
    events = merged(tmp_path)
    assert [event["ts"] for event in events if event["name"] == "aten::mm"] == [2000, 2001, 2002]
    titles = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    (kernel,) = [event for event in events if event["name"] == "kernel"]
    assert titles[kernel["pid"]] == "policy/0 GPU 0"


def test_a_file_that_was_cut_off_gives_what_is_whole(tmp_path):
    path = write_track(tmp_path, "a", 1, [["loss", 1, 1, 1, 1], ["loss", 2, 1, 1, 1]])
    path.write_text(path.read_text()[:-6])
    assert len(read_tracks(tmp_path)[0].spans) == 1
    trace = tmp_path / "cut.json"
    trace.write_text('{"traceEvents": [{"name": "a"}, {"name": "b"}, {"na')
    assert [event["name"] for event in ChromeTrace(trace).events()] == ["a", "b"]
    trace.write_text("[]")
    assert list(ChromeTrace(trace).events()) == []


def test_events_across_chunks(tmp_path):
    trace = tmp_path / "large.json"
    names = ["x" * (number * 7919 % 5000) + str(number) for number in range(900)]
    trace.write_text(json.dumps({"traceEvents": [{"name": name} for name in names]}))
    assert [event["name"] for event in ChromeTrace(trace).events()] == names


def test_spy_samples_become_slices(tmp_path):
    frames = [{"name": "main", "file": "a.py", "line": 1}, {"name": "f"}, {"name": "g"}]
    profile = {"type": "sampled", "name": "t", "samples": [[0, 1], [0, 1], [0, 2], [0]], "weights": [1, 1, 1, 1]}
    file = tmp_path / "x.speedscope.json"
    file.write_text(json.dumps({"shared": {"frames": frames}, "profiles": [profile]}))
    assert sorted(spy_slices(file)) == [("t", "f", 0, 2), ("t", "g", 2, 1), ("t", "main (a.py:1)", 0, 4)]


def test_a_phase_does_not_own_the_time_of_those_inside_it():
    spans = [PhaseSpan("update", 0, 100, 1, 1), PhaseSpan("forward", 10, 30, 1, 1), PhaseSpan("backward", 50, 20, 1, 1)]
    assert {span.phase: own for span, own in self_times(spans)} == {"update": 50, "forward": 30, "backward": 20}


def test_the_report_finds_bubbles_tails_and_the_slow_rank(tmp_path):
    step = [["step", number * SECOND, SECOND, number, 1] for number in (1, 2)]
    write_track(tmp_path, "driver", 1, step)
    for rank, length in ((0, 0.1), (1, 0.1), (2, 0.6)):
        spans = [["backward", number * SECOND, int(length * SECOND), number, 1] for number in (1, 2)]
        write_track(tmp_path, f"policy/{rank}", 10 + rank, spans, rank=rank)
    rollouts = [["rollout", number * SECOND, SECOND // 10, number, 1] for number in (1, 2) for _ in range(4)]
    rollouts += [["rollout", number * SECOND, SECOND * 9 // 10, number, 1] for number in (1, 2)]
    write_track(tmp_path, "rollout/0", 20, rollouts)
    report = make_report(tmp_path)
    assert (report.steps, report.step_seconds) == (2, 1.0)
    (policy,) = [row for row in report.roles if row.role == "policy"]
    assert policy.slowest == "policy/2"
    assert policy.slowest_ratio == pytest.approx(6)
    assert policy.waits_for_slowest_share == pytest.approx(0.6 - 0.8 / 3)
    (tail,) = report.tails
    assert tail.cost_share == pytest.approx(0.8)
    assert any("policy/2" in text for text in report.advice)
    assert any("longest rollout" in text for text in report.advice)
    assert "policy" in report._repr_html_()


def test_actors_with_random_names_are_ranks_of_one_role(tmp_path):
    for number, name in enumerate(("agent_loop_worker_0_1f0c88e2", "agent_loop_worker_1_90ab12cd")):
        write_track(tmp_path, name, number + 1, [["request", 0, SECOND, 1, 1]])
    (row,) = make_report(tmp_path).phases
    assert (row.role, row.processes) == ("agent_loop_worker", 2)
    assert row.slowest in ("agent_loop_worker_0", "agent_loop_worker_1")


def test_a_run_without_phases_says_how_to_get_some(tmp_path):
    with pytest.raises(IncompleteDataError) as caught:
        make_report(tmp_path)
    assert "--tool phases" in caught.value.hint


def test_a_run_that_failed_before_its_first_step_is_not_told_to_mark_steps(tmp_path):
    run = Run(tmp_path)
    run.start(command=["python", "train.py"])
    (tmp_path / "profiling" / "phases").mkdir(parents=True)
    with pytest.raises(IncompleteDataError) as caught:
        make_report(tmp_path)
    assert "call rldbg.step" in caught.value.hint
    run.finish(1)
    with pytest.raises(IncompleteDataError, match="ended with exit code 1") as caught:
        make_report(tmp_path)
    assert f"rldbg doctor {tmp_path}" in caught.value.hint


def test_memory_does_not_grow_with_the_trace(tmp_path):
    write_track(tmp_path, "policy/0", 41, [["loss", SECOND, 5000, 1, 9]])
    (tmp_path / "profiles").mkdir()
    torch_trace(tmp_path / "profiles" / "policy_0_41.torch.json.gz", 41, 4_000, base_ns=SECOND)
    tracemalloc.start()
    try:
        assert write_timeline(tmp_path, tmp_path / "trace.json.gz").events > 4_000
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.soak
def test_a_gigabyte_is_merged_in_bounded_memory(tmp_path):
    write_track(tmp_path, "policy/0", 41, [["loss", SECOND, 5000, 1, 9]])
    (tmp_path / "profiles").mkdir()
    torch_trace(tmp_path / "profiles" / "policy_0_41.torch.json.gz", 41, 6_700_000, base_ns=SECOND)
    code = (
        "import pathlib, resource, sys; from rldbg.profiling import write_timeline; run = pathlib.Path(sys.argv[1]);"
        "made = write_timeline(run, run / 'trace.json.gz');"
        "print(made.events, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    events, peak_kib = map(int, done.stdout.split())
    assert events > 6_700_000
    # Streamed, not loaded: less than a quarter of the trace, which has over 100 bytes per event.
    assert peak_kib * 1024 < events * 100 / 4
