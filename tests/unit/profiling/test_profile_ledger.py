"""The ledger: memory per phase, growth over steps, real idleness, ranks of one role."""

import io
import json
import sys
import types
from pathlib import Path

import pytest

from rldbg.agent.profiling import Held, Phases, Plan, during, held
from rldbg.core import IncompleteDataError
from rldbg.profiling.growth import leaks_of
from rldbg.profiling.ledger import residues_of
from rldbg.profiling.report import make_report
from rldbg.profiling.timeline import write_timeline
from rldbg.profiling.tracks import PhaseSpan, Track, read_tracks
from rldbg.reports.profile import to_terminal

MS = 1_000_000
MIB = 1024


def write_run(run: Path, processes: dict[str, list[list]]) -> Path:
    folder = run / "profiling" / "phases"
    folder.mkdir(parents=True, exist_ok=True)
    for pid, (worker, lines) in enumerate(processes.items(), 1):
        who = {"worker": worker, "role": worker, "rank": None, "host": "h", "pid": pid}
        text = [json.dumps(who), *map(json.dumps, lines)]
        (folder / f"h_{pid}.jsonl").write_text("\n".join(text) + "\n")
    return run


def track(spans: list[PhaseSpan]) -> Track:
    return Track("policy/0", "policy", 0, "h", 1, spans=spans)


def run_of(steps: int, *, leak_kib: int, begins: int = 0, phase: str = "rollout", noise: int = 0) -> Track:
    """Three phases per step; one of them keeps some memory from a step on."""
    spans, kept = [], 500 * MIB
    for step in range(1, steps + 1):
        for place, name in enumerate(("rollout", "log_probs", "update")):
            gain = leak_kib if name == phase and step >= begins else 0
            wobble = noise * ((step * 7 + place * 3) % 5 - 2)
            start = (step * 10 + place) * MS
            entry, kept = kept, kept + gain
            spans.append(PhaseSpan(name, start, MS, step, 1, [entry, kept + MIB // 2, kept + wobble, None, None, None]))
    return track(spans)


def test_a_leak_of_a_megabyte_per_step_is_named_within_30_steps() -> None:
    (leak,) = leaks_of("policy/0", run_of(30, leak_kib=MIB, phase="log_probs", noise=40))
    assert (leak.phase, leak.memory) == ("log_probs", "host")
    assert leak.mib_per_step == pytest.approx(1.0, rel=0.1)


def test_a_phase_that_takes_and_frees_more_is_not_accused_by_resident_memory() -> None:
    """What others keep is taken from what this phase freed; then it takes as much from the machine anew."""
    leaking = run_of(30, leak_kib=MIB, phase="rollout")
    leaking.spans = [
        span._replace(memory_kib=[span.memory_kib[0], (span.memory_kib[1] or 0) + 24 * MIB, *span.memory_kib[2:]])
        if span.phase == "rollout"
        else span
        for span in leaking.spans
    ]
    (leak,) = leaks_of("p", leaking)
    assert leak.phase is None and "not clear" in leak.text


def test_the_first_step_that_leaks_is_named() -> None:
    (leak,) = leaks_of("policy/0", run_of(40, leak_kib=2 * MIB, begins=18, phase="update"))
    assert (leak.first_step, leak.phase) == (18, "update")
    assert "since step 18, in phase update" in leak.text


@pytest.mark.parametrize("noise", [400, 1500])
def test_a_leak_is_named_and_dated_although_memory_goes_up_and_down(noise: int) -> None:
    (leak,) = leaks_of("policy/0", run_of(30, leak_kib=MIB, begins=9, noise=noise))
    assert abs(leak.first_step - 9) <= 2
    assert leak.mib_per_step == pytest.approx(1.0, rel=0.2)


def test_a_leak_is_named_although_the_allocator_takes_memory_in_portions() -> None:
    held = [44, 44, 44, 44, 46, 46, 47, 47, 49, 49, 50, 51, 51, 53, 53, 54, 55, 55, 57, 57]
    spans = [PhaseSpan("rollout", s * 10 * MS, MS, s, 1, [0, 0, mib * MIB]) for s, mib in enumerate(held)]
    (leak,) = leaks_of("policy/0", track(spans))
    assert leak.first_step in (4, 5)


def test_growth_that_has_ended_is_no_leak() -> None:
    spans = [PhaseSpan("rollout", s * 10 * MS, MS, s, 1, [0, 0, min(s, 20) * MIB]) for s in range(30)]
    assert leaks_of("p", track(spans)) == []


@pytest.mark.parametrize("noise", [0, 300, 5000])
def test_memory_that_does_not_grow_is_no_leak(noise: int) -> None:
    assert leaks_of("p", run_of(60, leak_kib=0, noise=noise)) == []


def test_what_is_allocated_once_is_no_leak() -> None:
    once = run_of(40, leak_kib=0)
    once.spans = [
        span._replace(
            memory_kib=[(number or 0) + (900 * MIB if span.step >= 20 else 0) for number in span.memory_kib[:3]]
        )
        for span in once.spans
    ]
    assert leaks_of("p", once) == []


def test_growth_outside_every_phase_is_said_to_be_there() -> None:
    grown = run_of(30, leak_kib=0)
    grown.spans = [
        span._replace(memory_kib=[(number or 0) + span.step * MIB for number in span.memory_kib[:3]])
        for span in grown.spans
    ]
    (leak,) = leaks_of("p", grown)
    assert leak.phase == ""
    assert "outside every phase" in leak.text


def gpu_run(steps: int, *, leaking: str, begins: int = 0) -> Track:
    """As a training loop on a GPU counts: activations are kept from the loss to the backward pass."""
    usual = {"rollout": 0, "log_probs": 0, "loss": 256 * MIB, "backward": -192 * MIB, "optimizer": -64 * MIB}
    spans, held = [], 500 * MIB
    for step in range(1, steps + 1):
        for place, (name, gain) in enumerate(usual.items()):
            entry, held = held, held + gain + (MIB if name == leaking and step >= begins else 0)
            memory = [9, 9, 9, entry, max(entry, held), held]
            spans.append(PhaseSpan(name, (step * 10 + place) * MS, MS, step, 1, memory))
    return track(spans)


@pytest.mark.parametrize("phase", ["rollout", "log_probs", "loss", "backward"])
def test_a_leak_on_the_gpu_is_told_from_what_is_returned(phase: str) -> None:
    (leak,) = leaks_of("p", gpu_run(40, leaking=phase, begins=11))
    assert (leak.memory, leak.first_step, leak.phase) == ("GPU", 11, phase)


def test_a_leak_from_the_first_step_is_told_where_it_can_be() -> None:
    (leak,) = leaks_of("p", gpu_run(40, leaking="log_probs"))
    assert leak.phase == "log_probs"
    (leak,) = leaks_of("p", gpu_run(40, leaking="loss"))
    assert leak.phase is None and "not clear" in leak.text


def test_growth_in_lumps_begins_where_it_begins() -> None:
    """Resident memory of a process that keeps a megabyte per step, as an allocator of the system gave it."""
    lumps = [2500, 2048, 2048, -768, 2304, 2048, 2048, -768, 2304, 2048, 2048, -768, 2304, 2048, 2048, 1216, 0, 2048]
    spans, held = [], 500 * MIB
    for step in range(1, 29):
        entry, held = held, held + (lumps[step - 11] if step > 10 else 0)
        spans.append(PhaseSpan("log_probs", step * 10 * MS, MS, step, 1, [entry, held, held, None, None, None]))
    (leak,) = leaks_of("p", track(spans))
    assert leak.first_step in (10, 11) and leak.phase == "log_probs"


def test_processes_at_different_steps_do_not_make_a_step_longer(tmp_path: Path) -> None:
    def loop(begin: int) -> list[list]:
        return [["loss", (begin + 10 * step) * MS, 10 * MS, step, 1] for step in range(1, 41)]

    report = make_report(write_run(tmp_path, {"policy/0": loop(0), "policy/1": loop(50)}))
    assert report.step_seconds == pytest.approx((400 + 50) / 40 / 1000)


def test_a_phase_inside_one_of_the_same_name_counts_once(tmp_path: Path) -> None:
    lines = [[name, (100 * step + begin) * MS, length * MS, step, 1] for step in (1, 2)
             for name, begin, length in (("backward", 0, 50), ("backward", 5, 40))]  # fmt: skip
    report = make_report(write_run(tmp_path, {"policy/0": lines}))
    assert [(row.phase, row.seconds) for row in report.ledger] == [("backward", 0.05)]


def test_what_an_engine_keeps_while_it_sleeps() -> None:
    engine = track([PhaseSpan("sleep", 0, MS, 1, 1, [0, 0, 0, 9000 * MIB, 9000 * MIB, 640 * MIB])])
    (residue,) = residues_of("engine/0", engine)
    assert residue.mib == 640


def test_a_real_leak_in_a_real_process_is_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace())  # other tests of this process may use a GPU
    step = 0
    phases = Phases(
        str(tmp_path / "profiling"),
        about=lambda: {"worker": "policy/0", "role": "policy", "rank": 0, "host": "h", "pid": 1},
        step=lambda: step,
        clock=lambda: None,
    )
    kept = []
    for step in range(1, 31):  # noqa: B007 - `phases` reads it
        with phases.span("update"):
            pass
        with phases.span("rollout"):
            kept.append(bytearray(b"x" * 4 * 2**20))
    report = make_report(tmp_path)
    assert [leak.phase for leak in report.leaks] == ["rollout"]
    assert report.leaks[0].mib_per_step == pytest.approx(4.0, rel=0.25)
    assert report.advice[0].startswith("policy/0 gains")
    assert {row.phase for row in report.ledger} == {"update", "rollout"}
    assert all(row.host_mib is not None and row.gpu_mib is None for row in report.ledger)


def test_peaks_are_exact_only_where_they_were_the_highest_so_far() -> None:
    assert during(Held(10, 50, None, None), Held(12, 90, None, None)) == [10, 90, 12, None, None, None]
    assert during(Held(10, 90, 5, 40), Held(12, 90, 7, 60)) == [10, 12, 12, 5, 60, 7]
    assert held().host > 1000


def test_gpu_memory_is_that_of_the_device_while_an_engine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = types.SimpleNamespace(
        is_initialized=lambda: True,
        memory_allocated=lambda: 5 * 2**20,
        max_memory_allocated=lambda: 9 * 2**20,
        mem_get_info=lambda: (60 * 2**20, 80 * 2**20),
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert held()[2:4] == (5 * MIB, 9 * MIB)
    assert held(whole_device=True)[2:4] == (20 * MIB, 20 * MIB)
    cuda.is_initialized = lambda: False
    assert held()[2:4] == (None, None)


def test_ranks_with_names_of_their_own_are_one_role(tmp_path: Path) -> None:
    lines = {
        f"lm_policy-0-{rank}": [["update", step * 10 * MS, (9 if rank == 2 else 3) * MS, step, 1] for step in (1, 2, 3)]
        for rank in range(4)
    }
    report = make_report(
        write_run(tmp_path, lines | {"driver": [["step", s * 10 * MS, 10 * MS, s, 1] for s in (1, 2, 3)]})
    )
    (role,) = [row for row in report.roles if row.processes == 4]
    assert (role.role, role.slowest, round(role.slowest_ratio, 6)) == ("lm_policy", "lm_policy-0-2", 3.0)
    assert [text for text in report.advice if "lm_policy" in text] == [
        "lm_policy-0-2 works 3.00 times as long as its peers: balance its data (by tokens), or check its host"
    ], "what a role waits for its slowest rank is not told twice"


def test_a_process_that_works_between_its_phases_is_not_idle(tmp_path: Path) -> None:
    steps = [["step", step * 10 * MS, 10 * MS, step, 1] for step in range(1, 6)]

    def phases(gap_cpu_ms: int) -> list[list]:
        return [
            [
                "update",
                step * 10 * MS,
                2 * MS,
                step,
                1,
                [],
                [step * (2 + gap_cpu_ms) * MS, (step * (2 + gap_cpu_ms) + 2) * MS],
            ]
            for step in range(1, 6)
        ]

    report = make_report(write_run(tmp_path, {"driver": steps, "works": phases(8), "waits": phases(0)}))
    by_role = {row.role: row for row in report.roles}
    assert by_role["works"].outside_share == pytest.approx(0.8 * 4 / 5, abs=0.01)
    assert by_role["works"].idle_share < 0.2
    assert by_role["waits"].idle_share == pytest.approx(0.8)


def test_idleness_between_two_steps_counts(tmp_path: Path) -> None:
    lines = [
        ["update", step * 10 * MS, 4 * MS, step, 1, [], [step * 4 * MS, (step + 1) * 4 * MS]] for step in range(1, 6)
    ]
    (role,) = make_report(write_run(tmp_path, {"trainer": lines})).roles
    assert role.idle_share == pytest.approx(1 - 20 / 44)


def test_a_helper_of_the_same_name_without_phases_does_not_halve_the_work(tmp_path: Path) -> None:
    """`python train.py` that starts itself again as a server."""
    work = [["loss", step * 10 * MS, 8 * MS, step, 1] for step in range(1, 5)]
    write_run(tmp_path, {"train": work})
    other = {"worker": "train", "role": "train", "rank": None, "host": "h", "pid": 2}
    (tmp_path / "profiling" / "phases" / "h_2.jsonl").write_text(json.dumps(other) + "\n")
    report = make_report(tmp_path)
    (row,) = report.phases
    assert (row.processes, row.seconds) == (1, pytest.approx(0.008))
    assert report.roles[0].busy_share > 0.7 and len(read_tracks(tmp_path)) == 2


def test_processes_of_one_name_are_told_apart(tmp_path: Path) -> None:
    slow = [["loss", step * 10 * MS, 9 * MS, step, 1] for step in range(1, 5)]
    fast = [["loss", step * 10 * MS, 2 * MS, step, 1] for step in range(1, 5)]
    write_run(tmp_path, {"train": slow})
    other = {"worker": "train", "role": "train", "rank": None, "host": "h", "pid": 2}
    text = "\n".join([json.dumps(other), *map(json.dumps, fast)])
    (tmp_path / "profiling" / "phases" / "h_2.jsonl").write_text(text + "\n")
    report = make_report(tmp_path)
    assert report.roles[0].slowest == "train (1)"
    assert {row.process for row in report.ledger} == {"train (1)", "train (2)"}


def test_a_process_without_phases_stays_on_the_timeline(tmp_path: Path) -> None:
    run = write_run(tmp_path, {"trainer": [["update", MS, MS, 1, 1]], "generator": []})
    assert [each.worker for each in read_tracks(run)] == ["generator", "trainer"]
    merged = write_timeline(run, tmp_path / "trace.json")
    assert "generator" in merged.path.read_text()


def test_the_terminal_shows_memory(tmp_path: Path) -> None:
    from rich.console import Console

    lines = [
        ["update", s * 10 * MS, 5 * MS, s, 1, [100 * MIB, 300 * MIB, 120 * MIB, None, None, None], []] for s in (1, 2)
    ]
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(to_terminal(make_report(write_run(tmp_path, {"policy": lines}))))
    assert "100 / 300 / 120" in console.export_text()


@pytest.mark.parametrize("tool", ["phases", "torch"])
def test_without_a_tool_the_steps_that_were_asked_for_are_reported(tmp_path: Path, tool: str) -> None:
    """The rollout of step n takes n squared milliseconds."""
    lines = [["rollout", step * 100 * MS, step**2 * MS, step, 1, [5, 5, 5], []] for step in range(1, 7)]
    run = write_run(tmp_path, {"policy": lines})
    plan = Plan(tool, (), str(run), str(run), steps=(3, 5))
    (run / "profiling" / "plan.json").write_text(plan.to_text())
    report = make_report(run)
    chosen = range(3, 5) if tool == "phases" else range(1, 7)
    assert report.steps == len(chosen)
    seconds = sum(step**2 for step in chosen) / len(chosen) / 1000
    assert (report.phases[0].seconds, report.ledger[0].seconds) == pytest.approx((seconds, seconds))
    (run / "profiling" / "plan.json").write_text(Plan(tool, (), "", "", steps=(9, 11)).to_text())
    if tool == "phases":
        with pytest.raises(IncompleteDataError, match="this run has steps 1 to 6"):
            make_report(run)
