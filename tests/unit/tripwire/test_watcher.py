"""The watcher over real recordings: what it says, what it pins, how ranks stop."""

import errno
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

import rldbg
from rldbg.cli.watch import command
from rldbg.core import ExitCode, Identity, Run, UsageError
from rldbg.recording import Recorder, give_orders, note_judged
from rldbg.recording.recorder import orders as orders_module
from rldbg.recording.recorder.checked_steps import CheckedSteps
from rldbg.recording.recorder.orders import Orders
from rldbg.tripwire import Event, EventLog, Watcher, WatcherProcess, WatchSettings
from rldbg.tripwire import watcher as watcher_module
from rldbg.tripwire.measures import measure
from rldbg.tripwire.notification import Notifier

USUAL = {"loss": 0.01, "reward": 0.5, "grad_norm": 1.0}


def noisy(step: int, **changes: float) -> dict[str, float]:
    random = np.random.default_rng(step)
    return {name: value * (1 + 0.02 * random.standard_normal()) for name, value in USUAL.items()} | changes


def record_steps(recorder: Recorder, steps: range, **changes: float) -> None:
    for step in steps:
        recorder.record("training_metrics", step=step, metrics=noisy(step, **changes))
        recorder.end_step(step)
        recorder.flush()


def kept(folder: Path) -> list[int]:
    return list(rldbg.open(folder).steps("training_metrics"))


def jumped(tmp_path: Path) -> tuple[Path, Watcher]:
    """A recording that keeps five steps and was watched; of its thirty steps, one had a jump."""
    folder = tmp_path / "recording"
    watcher = Watcher(folder, WatchSettings(keep=5))
    with Recorder(folder, keep_last=5) as recorder:
        for step in range(30):
            record_steps(recorder, range(step, step + 1), **({"grad_norm": 50.0} if step == 12 else {}))
            watcher.look()
    return folder, watcher


def test_the_ring_keeps_the_last_steps_and_those_around_an_event(tmp_path: Path) -> None:
    folder, watcher = jumped(tmp_path)
    (event,) = watcher.events
    assert (event.rule, event.step, event.pinned) == ("grad-norm-jump", 12, (10, 11, 12, 13, 14))
    assert kept(folder) == [10, 11, 12, 13, 14, 25, 26, 27, 28, 29]
    assert EventLog(folder).new() == [event]


def test_steps_around_an_event_stay_however_far_the_checks_are_behind(tmp_path: Path) -> None:
    """The recorder hears of a pin at the very moment when it may remove the step, not at the end of a later one."""
    with Recorder(tmp_path, keep_last=5) as recorder:
        (tmp_path / ".watch").mkdir()
        for step in range(38):
            record_steps(recorder, range(step, step + 1), **({"grad_norm": 50.0} if step == 30 else {}))
        watcher = Watcher(tmp_path, WatchSettings(keep=5))
        watcher.look()  # all at once: no step ends between the pin and the removal
        recorder.record("training_metrics", step=38, metrics=noisy(38))
        recorder.flush()
    (event,) = watcher.events
    assert event.pinned == (28, 29, 30, 31, 32)
    assert set(event.pinned) <= set(kept(tmp_path))


def test_a_step_before_one_that_is_not_checked_stays(tmp_path: Path) -> None:
    """The next step to be checked may pin it."""
    (tmp_path / ".watch").mkdir()
    with Recorder(tmp_path, keep_last=5) as recorder:
        record_steps(recorder, range(20))
        note_judged(tmp_path, 17, around=2, pinned=[3, 4])
        record_steps(recorder, range(20, 25))
    assert kept(tmp_path) == [3, 4, *range(16, 25)]


def test_an_event_names_only_the_steps_that_are_still_there(tmp_path: Path) -> None:
    with Recorder(tmp_path, keep_last=1) as recorder:
        (tmp_path / ".watch").mkdir()
        record_steps(recorder, range(9), cost=1.0)  # eight are kept unchecked, so 0 is gone
    watcher = Watcher(tmp_path, WatchSettings(when=("cost > 0",)))
    watcher.look(ended=True)
    (event,) = watcher.events
    assert (event.step, event.pinned) == (1, (1, 2, 3))
    assert "; steps 1 to 3 are kept; step 0 is gone: removed before the checks came to step 1; look:" in event.message


def test_a_step_that_is_pinned_while_it_is_about_to_go_stays(tmp_path: Path, monkeypatch) -> None:
    """The recorder says which steps go, then reads the pins again."""
    say = CheckedSteps.remove_unchecked

    def pinned_meanwhile(checks: CheckedSteps, steps: list[int]) -> None:
        note_judged(tmp_path, -1, pinned=[0])
        say(checks, steps)

    (tmp_path / ".watch").mkdir()
    monkeypatch.setattr(CheckedSteps, "remove_unchecked", pinned_meanwhile)
    with Recorder(tmp_path, keep_last=1) as recorder:
        record_steps(recorder, range(10))
    assert kept(tmp_path) == [0, *range(2, 10)]


def test_the_ring_is_trimmed_once_the_checks_have_caught_up(tmp_path: Path) -> None:
    (tmp_path / ".watch").mkdir()
    with Recorder(tmp_path, keep_last=5) as recorder:
        for step in range(30):
            record_steps(recorder, range(step, step + 1), **({"grad_norm": 50.0} if step == 12 else {}))
    assert len(kept(tmp_path)) == 30
    Watcher(tmp_path, WatchSettings(keep=5)).look(ended=True)
    assert len(kept(tmp_path)) == 30, "who reads a recording removes nothing"
    Watcher(tmp_path, WatchSettings(keep=5), beside_training=True).look(ended=True)
    assert kept(tmp_path) == [10, 11, 12, 13, 14, 25, 26, 27, 28, 29]
    assert {finding.id for finding in rldbg.open(tmp_path).verify()} == {"deleted"}


def test_a_recorder_that_closes_after_the_checks_trims_the_ring_itself(tmp_path: Path) -> None:
    (tmp_path / ".watch").mkdir()
    with Recorder(tmp_path, keep_last=5) as recorder:
        record_steps(recorder, range(30))
        Watcher(tmp_path, WatchSettings(keep=5)).look(ended=True)
        assert len(kept(tmp_path)) == 30
    assert kept(tmp_path) == [25, 26, 27, 28, 29]


def test_steps_that_went_unchecked_are_said_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".watch").mkdir()
    watcher = Watcher(tmp_path, beside_training=True)
    with Recorder(tmp_path, keep_last=1) as recorder:
        record_steps(recorder, range(9))
        watcher.look()
        record_steps(recorder, range(9, 19))
        watcher.look()
        watcher.look()
        assert [note[:30] for note in watcher.notes] == ["step 0 was removed unchecked: "]
        record_steps(recorder, range(19, 39))
    watcher.look(ended=True)
    lost = 39 - len(watcher._checked)
    assert lost > 1 and watcher.steps == len(watcher._checked)
    assert watcher.notes[1].startswith(f"{lost} steps were removed unchecked: steps came faster than the checks (")
    assert EventLog(tmp_path).new_notes() == watcher.notes
    command.main([str(tmp_path)], standalone_mode=False)
    assert f"{lost} steps were removed unchecked" in capsys.readouterr().out


def test_a_rule_that_fires_again_and_again_does_not_fill_the_disk(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    watcher = Watcher(folder, WatchSettings(keep=5, when=("length > 100",)))
    with Recorder(folder, keep_last=5) as recorder:
        for step in range(300):
            record_steps(recorder, range(step, step + 1), length=200.0 if step % 10 == 0 else 10.0)
            watcher.look()
    own = [event for event in watcher.events if event.rule == "expression"]
    assert len(own) == 30
    assert [bool(event.pinned) for event in own] == [True] * 8 + [False] * 22
    assert "; its steps are not kept (--keep-events 8); look:" in own[-1].message
    assert len(kept(folder)) < 60


def test_an_expression_that_fires_again_and_again_takes_no_room_from_another(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        for step in range(12):
            record_steps(recorder, range(step, step + 1), length=step % 2, cost=step // 10)
    watcher = Watcher(tmp_path, WatchSettings(keep_events=2, when=("length > 0", "cost > 0")))
    watcher.look(ended=True)
    assert [(event.step, bool(event.pinned)) for event in watcher.events] == [
        (1, True), (3, True), (5, False), (7, False), (9, False), (10, True), (11, False)
    ]  # fmt: skip


def test_what_was_reported_during_a_run_is_shown_after_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ring has dropped most of the steps that made the event unusual."""
    folder, _ = jumped(tmp_path)
    for _ in range(2):
        code = command.main([str(folder), "--json"], standalone_mode=False)
        events = json.loads(capsys.readouterr().out)["events"]
        assert [(event["rule"], event["step"]) for event in events] == [("grad-norm-jump", 12)]
        assert code == ExitCode.FINDING


def test_who_follows_a_run_may_come_before_it_and_ends_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [
        sys.executable,
        "-m",
        "rldbg",
        "watch",
        str(folder),
        "--follow",
        "--stop",
        "--when",
        "length > 5",
        "--json",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as following:
        assert following.stderr is not None
        assert following.stderr.readline() == f"rldbg watch: nothing is recorded in {folder} yet\n"
        run = Run.create(name="followed", path=folder)
        with Recorder(run.path / "recording") as recorder:
            record_steps(recorder, range(3), length=9.0)
        assert "; all ranks stop at the end of one of the next steps; look:" in following.stderr.readline()
        assert (run.path / "recording" / ".watch" / "orders.json").exists() and not (run.path / ".watch").exists()
        assert following.poll() is None
        run.finish(0)
        assert json.loads(following.communicate(timeout=60)[0])["steps"] == 3


def test_the_message_says_what_where_and_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Recorder(tmp_path / "rec") as recorder:
        record_steps(recorder, range(10))
        record_steps(recorder, range(10, 11), reward=0.1)
    said: list[str] = []
    Watcher(Path("rec"), say=said.append).look(ended=True)
    assert len(said) == 1
    assert said[0].startswith("reward-drop at step 10: reward is 0.1, usually 0.5")
    assert said[0].endswith("; steps 8 to 12 are kept; look: rldbg show rec --step 10")


def test_a_step_is_judged_when_it_has_what_the_one_before_it_had(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    with Recorder(tmp_path) as recorder:
        recorder.record("training_metrics", step=0, metrics=noisy(0))
        recorder.record("loss", step=0, micro=0, loss=0.1)
        recorder.flush()
        watcher.look()
        assert watcher.steps == 0, "nothing says that step 0 is complete"
        recorder.record("training_metrics", step=1, metrics=noisy(1))
        recorder.flush()
        watcher.look()
        assert watcher.steps == 1, "step 1 has no loss yet"
        recorder.record("loss", step=1, micro=0, loss=0.1)
        recorder.end_step(1)
        recorder.flush()
        watcher.look()
        assert watcher.steps == 2


def test_not_finite_losses_say_which_rank_and_micro_batch(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        for micro, loss in enumerate((0.1, float("nan"), 0.2)):
            recorder.record("loss", step=0, micro=micro, loss=loss)
    watcher = Watcher(tmp_path)
    watcher.look(ended=True)
    rules = {event.rule: event for event in watcher.events}
    assert rules["loss-not-finite"].where == "step 0, rank 0, micro-batch 1"
    assert rules["losses-finite"].look.endswith("--step 0 --only losses-finite")


def test_a_check_that_fails_from_the_start_does_not_stop_the_run(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        for step in range(9):
            bad = step in (0, 7)
            recorder.record("forward_data", step=step, micro=0, log_probs=[[0.3 if bad else -1.0]], response_mask=[[1]])
    watcher = Watcher(tmp_path, WatchSettings(stop=True))
    watcher.look(ended=True)
    assert [(event.rule, event.step, event.stops) for event in watcher.events] == [("log-probs-not-positive", 0, False)]


def test_an_expression_fires_when_it_becomes_true(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        for step, length in enumerate((10, 900, 950, 10, 990)):
            recorder.record("training_metrics", step=step, metrics={"length": length})
    watcher = Watcher(tmp_path, WatchSettings(when=("length > 800",)))
    watcher.look(ended=True)
    assert [(event.rule, event.step, event.what) for event in watcher.events] == [
        ("expression", 1, "length > 800 is true (length 900)"),
        ("expression", 4, "length > 800 is true (length 990)"),
    ]


def test_the_users_command_gets_the_event(tmp_path: Path) -> None:
    with Recorder(tmp_path / "rec") as recorder:
        record_steps(recorder, range(1), length=9.0)
    command = f'printf "%s" "$RLDBG_EVENT" > {tmp_path}/event; printf "%s" "$RLDBG_MESSAGE" > {tmp_path}/message'
    Watcher(tmp_path / "rec", WatchSettings(when=("length > 5",), notify=command)).look(ended=True)
    assert json.loads((tmp_path / "event").read_text())["step"] == 0
    assert (tmp_path / "message").read_text().startswith("expression at step 0: length > 5 is true")


def test_a_command_that_fails_is_said_and_harms_nothing(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        record_steps(recorder, range(1), length=9.0)
    said: list[str] = []
    Watcher(tmp_path, WatchSettings(when=("length > 5",), notify="exit 7"), say=said.append).look(ended=True)
    assert said[1] == "the notification command failed with exit code 7: exit 7"
    assert EventLog(tmp_path).new_notes() == said[1:]


def has_a_reader(pipe: Path) -> bool:
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def test_a_command_that_hangs_delays_no_check_and_is_ended_with_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "never")
    said: list[str] = []
    notifier = Notifier(f"cat {tmp_path}/pipe/never; true", said.append, longest_s=0.2)
    notifier.call(Event("rule", 3, "step 3", "what", "cause", "look"))
    assert said == []
    notifier.finish()
    assert said == [f"the notification command took more than 0.2 s: cat {tmp_path}/pipe/never; true"]
    deadline = time.monotonic() + 30
    while has_a_reader(tmp_path / "pipe" / "never"):  # a killed process takes a moment to end
        assert time.monotonic() < deadline


def test_the_end_of_the_process_that_checks_is_noted_once(tmp_path: Path) -> None:
    process = WatcherProcess(tmp_path / "rec", WatchSettings(), log=tmp_path / "watch.log")
    assert process.new_notes() == []
    process._process.kill()
    process.close()
    (note,) = process.new_notes()
    assert note.startswith("the process that checks steps has ended (signal 9)")
    assert f"check them: rldbg watch {tmp_path}/rec" in note
    assert process.new_notes() == []


def test_a_name_in_an_expression_that_no_step_has_is_noted_once(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        record_steps(recorder, range(12))
    watcher = Watcher(tmp_path, WatchSettings(when=("rewrad < 1 and loss > 9",)))
    watcher.look(ended=True)
    (note,) = EventLog(tmp_path).new_notes()
    assert note.endswith("none of 8 steps has rewrad; did you mean 'reward'?")


def test_an_expression_that_cannot_be_evaluated_is_noted_once(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        record_steps(recorder, range(4), cost=0.0)
        record_steps(recorder, range(4, 6), cost=1.0)
    watcher = Watcher(tmp_path, WatchSettings(when=("1 / cost > 0.5",)))
    watcher.look(ended=True)
    (note,) = EventLog(tmp_path).new_notes()
    assert note.startswith("1 / cost > 0.5 cannot be evaluated at step 0 (float division by zero; cost 0)")
    assert [event.step for event in watcher.events] == [4]


def test_a_folder_that_cannot_be_written_never_harms_training(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    with rldbg.watch(tmp_path / "file" / "recording") as watch:
        for step in range(3):
            watch.log(step, {"reward": 0.5})
    assert watch.close() == []
    assert capsys.readouterr().err.count("rldbg: watch: no step is checked, training continues: ") == 1


@pytest.mark.parametrize(("records_losses", "command"), [(False, "rldbg show"), (True, "rldbg check")])
def test_the_command_looks_at_what_the_step_holds(tmp_path: Path, records_losses: bool, command: str) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.record("training_metrics", step=0, metrics={"loss": math.nan})
        if records_losses:
            recorder.record("loss", step=0, micro=0, loss=math.nan)
    watcher = Watcher(tmp_path, WatchSettings(checks=False))
    watcher.look(ended=True)
    (event,) = watcher.events
    assert event.look.startswith(command)


def test_an_event_on_a_full_disk_is_delivered_when_there_is_room_again(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Recorder(tmp_path) as recorder:
        record_steps(recorder, range(1), length=9.0)
    watcher = Watcher(tmp_path, WatchSettings(when=("length > 5",)))
    with monkeypatch.context() as patched:
        for name in ("give_orders", "note_judged"):
            patched.setattr(watcher_module, name, full)
        assert len(watcher.look(ended=True)) == 1
        assert EventLog(tmp_path).new() == []
    watcher.look(ended=True)
    assert EventLog(tmp_path).new() == watcher.events


def test_a_line_that_does_not_fit_on_the_disk_leaves_none_of_it(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.note("first")
    path = tmp_path / ".watch" / "notes.jsonl"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, limit[1]))
        with pytest.raises(OSError, match="No space left"):
            log.note("second")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    log.note("third")
    assert log.new_notes() == ["first", "third"]


def test_rules_of_a_file_join_or_replace_the_built_in_ones(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "- {id: grad-norm-jump, measure: grad_norm, moves: up, cause: mine, sigmas: 1e6}\n"
        "- {id: cost-jump, measure: cost/usd, moves: up, cause: too dear, factor: 2, history: 4}\n"
    )
    with Recorder(tmp_path / "rec") as recorder:
        for step in range(12):
            jump = {"grad_norm": 50.0, "cost/usd": 9.0} if step == 10 else {"cost/usd": 1.0}
            record_steps(recorder, range(step, step + 1), **jump)
    watcher = Watcher(tmp_path / "rec", WatchSettings(rules=str(rules)))
    watcher.look(ended=True)
    assert [event.rule for event in watcher.events] == ["cost-jump"]


def test_an_invalid_rule_names_its_key(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("- {id: a, measure: b, moves: sideways, cause: c}\n")
    with pytest.raises(UsageError, match="invalid moves: 'sideways'"):
        WatchSettings(rules=str(rules))
    rules.write_text("- {id: a, measure: b, moves: up, cause: c, look: 'echo {sep}'}\n")
    with pytest.raises(UsageError, match="invalid look of a"):
        WatchSettings(rules=str(rules))


def test_what_a_watcher_would_refuse_is_refused_before_it_is_started(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="invalid expression: 'reward <'"):
        rldbg.watch(tmp_path / "rec", when="reward <")
    with pytest.raises(UsageError, match="cannot read the rules"):
        rldbg.watch(tmp_path / "rec", rules=tmp_path / "none.yaml")
    assert not (tmp_path / "rec").exists()


def test_a_rank_stops_at_the_end_of_the_step_after_it_met_the_order(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        give_orders(tmp_path, stop="1", reason="reward-drop at step 1")
        recorder.record("loss", step=1, micro=0, loss=0.1)
        recorder.end_step(1)
        recorder.record("loss", step=2, micro=0, loss=0.1)
        with pytest.raises(SystemExit, match="stopped after step 2: reward-drop at step 1"):
            recorder.end_step(2)
        recorder.end_step(3)


def test_two_recorders_of_a_thread_stop_it_once(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder, Recorder(tmp_path) as capsules:
        give_orders(tmp_path, stop="0", reason="")
        recorder.end_step(0)
        with pytest.raises(SystemExit):
            recorder.end_step(1)
        capsules.end_step(1)


@pytest.mark.parametrize("seed", range(40))
def test_ranks_in_lockstep_stop_at_the_end_of_the_same_step(tmp_path: Path, seed: int) -> None:
    """Whenever the order comes and whoever meets it first: a rank ends a step only when all have begun it."""
    random = Random(seed)
    ranks = [Orders(tmp_path) for _ in range(4)]
    ended, stopped = [-1] * 4, [-1] * 4
    order_at = random.randrange(12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Orders, "_stop_here", lambda orders, step: stopped.__setitem__(ranks.index(orders), step))
        patch.setattr(orders_module, "_is_first", lambda _path, _stop: True)
        for turn in range(200):
            if turn == order_at:
                give_orders(tmp_path, stop="7", reason="")
            running = [rank for rank in range(4) if stopped[rank] < 0 and ended[rank] <= min(ended)]
            if not running:
                break
            rank = random.choice(running)
            ended[rank] += 1
            ranks[rank].obey(ended[rank])
    assert len(set(stopped)) == 1, stopped
    assert stopped[0] > 0


def test_one_stop_serves_all_events_before_it(tmp_path: Path) -> None:
    """A jump of several measures in one step, or in the steps until ranks stop, is one stop; a later one is another."""
    watcher = Watcher(tmp_path, WatchSettings(stop=True))
    event = Event("a", 5, "step 5", "", "", "", stops=True)
    orders = Orders(tmp_path)
    stops = []
    for judged in (5, 6, 9):
        watcher._judged = judged
        watcher._raise_alarm(replace(event, step=judged, where=f"step {judged}"))
        stops.append((watcher._stop, json.loads((tmp_path / ".watch" / "orders.json").read_text())["reason"][:11]))
        if judged == 5:
            orders.obey(7)  # a rank has met the order: all stop after step 8
    assert stops == [("5", "a at step 5"), ("5", "a at step 5"), ("9", "a at step 9")]


def test_orders_that_cannot_be_read_never_harm_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Recorder(tmp_path) as recorder:
        (tmp_path / ".watch").mkdir()
        (tmp_path / ".watch" / "orders.json").write_text("{")
        recorder.end_step(0)
    assert "cannot read the orders" in caplog.text


def test_measures_of_samples_count_before_what_was_logged(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.record(
            "trajectory",
            step=3,
            samples=[("g", 0), ("g", 1)],
            tokens=[[1, 2, 3], [1, 2, 3, 4, 5]],
            loss_mask=[[0, 1, 1], [0, 1, 1, 1, 1]],
            reward=[0.0, 1.0],
        )
        recorder.record(
            "forward_data", step=3, micro=0, log_probs=[[-1.0, -1.0]], entropy=[[0.5, 0.9]], response_mask=[[1, 0]]
        )
        recorder.record("training_metrics", step=3, metrics={"reward/mean": 9.0, "actor/grad_norm": 2.0})
    values, places, logged = measure(rldbg.open(tmp_path), 3)
    assert (values["reward"], values["length"], values["entropy"], values["grad_norm"]) == (0.5, 3.0, 0.5, 2.0)
    assert places["length"] == "the longest is sample g/1"
    assert "loss" in logged and logged.isdisjoint({"reward", "length", "entropy", "grad_norm"})


@pytest.mark.parametrize("format", ["safetensors", "pt", "jsonl"])
def test_a_metric_that_is_none_is_missing_and_not_nan(tmp_path: Path, format: str) -> None:
    with Recorder(tmp_path, format=format) as recorder:
        recorder.record("training_metrics", step=0, metrics={"reward": None, "loss": math.nan, "kl": math.inf})
    values, _, _ = measure(rldbg.open(tmp_path), 0)
    assert "reward" not in values
    assert math.isnan(values["loss"]) and values["kl"] == math.inf


def test_what_ranks_logged_is_averaged_unless_one_of_them_is_not_finite(tmp_path: Path) -> None:
    for rank, loss in enumerate((math.nan, 1.0)):
        with Recorder(tmp_path, identity=Identity(rank=rank)) as recorder:
            recorder.record("training_metrics", step=0, metrics={"train/loss": loss, "reward": float(rank)})
    values, places, _ = measure(rldbg.open(tmp_path), 0)
    assert math.isnan(values["loss"]) and places["loss"] == "rank 0"
    assert values["reward"] == 0.5


def test_too_few_steps_for_what_is_pinned_are_refused() -> None:
    with pytest.raises(UsageError, match="4 steps are kept, too few for 3 before an event"):
        WatchSettings(keep=4, around=3)
