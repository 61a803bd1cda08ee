"""What `rldbg track` logs per step, and how Prometheus and Grafana get it."""

import json
import math
import re
import shutil

import httpx
import pytest

from rldbg.cli.application import run
from rldbg.cli.track import _Board, _log
from rldbg.recording import open as open_recording
from rldbg.tracking import PrometheusEndpoint, RecordedSteps, StepMeasurements, exposition, grafana_dashboard
from ui_recordings import run_folder, two_turns


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return two_turns(tmp_path_factory.mktemp("run") / "recording", shift=0.5)


def test_a_step_has_metrics_checks_and_the_causes_of_the_gap(recording):
    numbers = StepMeasurements(open_recording(recording)).of(1)
    assert numbers["reward/mean"] == 0.5
    assert numbers["check/rewards-finite"] == 0 and numbers["check/rollout-matches-trainer"] > 0
    assert numbers["checks/failed"] >= 1 and numbers["checks/held"] > numbers["checks/failed"]
    shares = [value for name, value in numbers.items() if name.startswith("mismatch/")]
    assert shares and math.isclose(sum(shares), 1.0, abs_tol=1e-6)
    assert not any(name.startswith("noise/") for name in numbers)


def test_the_noise_of_a_repetition_is_logged_where_there_is_one(tmp_path):
    from rldbg.analysis import noise_folder

    first = two_turns(tmp_path / "run" / "recording")
    folder = noise_folder(open_recording(first))
    folder.mkdir(parents=True)
    two_turns(folder / "again", shift=0.25)
    measured = StepMeasurements(open_recording(first))
    assert measured.of(1)["noise/old_log_probs.old_log_probs"] == pytest.approx(0.25)
    assert measured.of(0)["noise/old_log_probs.old_log_probs"] == 0


def test_tensorboard_gets_every_step(recording, tmp_path, capsys):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run_folder = two_turns(tmp_path / "run" / "recording").parent
    assert run(["track", str(run_folder), "--to", "tensorboard", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["steps"] == 3 and printed["last_step"] == 2
    events = accumulator.EventAccumulator(str(run_folder / "logs" / "tensorboard"))
    events.Reload()
    assert set(printed["numbers"]) <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("checks/failed")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "track needs a run"),
        (["absent", "--to", "tensorboard"], 2, "no such folder"),
        (["RUN"], 2, "no tracker given"),
        (["RUN", "--prometheus", "0"], 2, "--follow"),
    ],
)
def test_errors_say_what_to_do(recording, capsys, words, code, said):
    assert run(["track", *(str(recording) if word == "RUN" else word for word in words)]) == code
    assert said in capsys.readouterr().err


def test_prometheus_reads_what_the_endpoint_gives(recording):
    parser = pytest.importorskip("prometheus_client.parser")
    numbers = StepMeasurements(open_recording(recording)).of(1) | {"odd/nan": math.nan, "odd/inf": -math.inf}
    endpoint = PrometheusEndpoint(
        lambda: exposition('a "run"\\', 1, numbers, {"running": 2, "stopped": 1}), host="127.0.0.1", port=0
    )
    try:
        answer = httpx.get(endpoint.url, trust_env=False)
        assert httpx.get(endpoint.url.replace("metrics", "other"), trust_env=False).status_code == 404
    finally:
        endpoint.close()
    samples = {
        (sample.name, sample.labels.get("check") or sample.labels.get("state")): sample
        for family in parser.text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["rldbg_step", None].value == 1 and samples["rldbg_step", None].labels == {"run": 'a "run"\\'}
    assert samples["rldbg_reward_mean", None].value == 0.5
    assert samples["rldbg_check", "rollout-matches-trainer"].value > 0
    assert samples["rldbg_processes", "stopped"].value == 1
    assert math.isnan(samples["rldbg_odd_nan", None].value) and samples["rldbg_odd_inf", None].value == -math.inf


def test_the_dashboard_asks_for_metrics_that_there_are(recording, capsys):
    numbers = StepMeasurements(open_recording(recording)).of(1)
    given = set(re.findall(r"^(rldbg_\w+)\{", exposition("r", 1, numbers, {"running": 1}), re.MULTILINE))
    assert run(["track", "--grafana"]) == 0
    asked = set(re.findall(r"rldbg_\w+", json.dumps(json.loads(capsys.readouterr().out)["panels"])))
    assert len(asked) >= 8 and asked <= given


def test_the_dashboard_has_what_grafana_requires():
    """Of the classic dashboard model: what Grafana would refuse, or would show wrongly without a message."""
    dashboard = grafana_dashboard()
    assert 8 <= len(dashboard["uid"]) <= 40 and dashboard["schemaVersion"] >= 36
    assert re.fullmatch(r"\d+[smh]", dashboard["refresh"])
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    assert {each["type"] for each in variables.values()} <= {"query", "datasource"}
    panels, taken = dashboard["panels"], set()
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24 and not cells & taken
        taken |= cells
        assert panel["type"] in ("timeseries", "stat", "table")
        assert set(re.findall(r"\$\{?(\w+)", json.dumps(panel))) <= set(variables)
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        # A table of a range has a row per scrape.
        assert all(target.get("instant") for target in panel["targets"]) or panel["type"] != "table"


def test_a_growing_recording_gives_each_complete_step_once(tmp_path):
    folder = tmp_path / "run"
    steps = RecordedSteps(folder)
    assert list(steps.new(ended=False)) == []
    two_turns(folder / "recording", steps=3)
    assert [step for _, step in steps.new(ended=False)] == [0, 1]
    assert [step for _, step in steps.new(ended=False)] == []
    assert [step for _, step in steps.new(ended=True)] == [2]


def test_following_ends_with_the_run(tmp_path):
    folder = run_folder(tmp_path / "run", two_turns(tmp_path / "recording"), started_at=1.0)
    steps = RecordedSteps(folder)
    assert not steps.ended and not RecordedSteps(folder / "recording").ended
    (folder / "run.json").write_text(json.dumps({"command": [], "started_at": 1.0, "ended_at": 2.0}))
    assert steps.ended and RecordedSteps(folder / "recording").ended
    (folder / "run.json").write_text("{")
    assert not steps.ended


def test_prometheus_is_scraped_while_a_run_is_followed(tmp_path):
    """A run that grows while it is asked: the newest complete step, then all of them once it has ended."""
    folder = run_folder(tmp_path / "run", two_turns(tmp_path / "recording", steps=2), started_at=1.0)
    board, seen = _Board("live", folder), []
    endpoint = PrometheusEndpoint(board.text, host="127.0.0.1", port=0)

    def grow(_seconds):
        seen.append(re.findall(r"rldbg_step{.*} (.*)", httpx.get(endpoint.url, trust_env=False).text))
        shutil.rmtree(folder / "recording")
        two_turns(folder / "recording", steps=4)
        facts = {"command": [], "started_at": 1.0, "ended_at": 2.0 if len(seen) > 1 else None}
        (folder / "run.json").write_text(json.dumps(facts))

    try:
        assert _log(RecordedSteps(folder), [], board, follow=True, wait=grow) == 4
        assert seen == [["0.0"], ["2.0"]]
        assert 'rldbg_step{run="live"} 3.0' in httpx.get(endpoint.url, trust_env=False).text
    finally:
        endpoint.close()
