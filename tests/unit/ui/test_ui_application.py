"""The JSON of the web application: the same numbers as the verbs', nothing outside the roots, nobody else's request."""

import base64
import gzip
import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import pytest
from starlette.testclient import TestClient

import rldbg
from rldbg.analysis import check
from rldbg.reports.json_text import to_json
from rldbg.ui import Access, Catalogue, build_application
from rldbg.ui.jobs import Jobs
from rldbg.ui.run_pages import samples_csv
from ui_recordings import (
    HOSTILE_GROUP,
    HOSTILE_TEXT,
    hostile,
    long_sample,
    run_folder,
    two_turns,
    weights_of_two_replicas,
)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    return two_turns(tmp_path_factory.mktemp("ui") / "small")


def client_of(*roots, access=None, **options):
    application = build_application(Catalogue([str(root) for root in roots], **options), access)
    return TestClient(application, base_url="http://127.0.0.1:8400", raise_server_exceptions=False)


def done(client, path, **query):
    for _ in range(600):
        answer = client.get(path, params=query).json()
        if answer.get("state") != "running":
            return answer.get("result", answer)
    raise AssertionError(f"{path} is not done")


def test_the_overview_and_the_check_are_those_of_the_verbs(recording):
    client = client_of(recording)
    (row,) = client.get("/api/runs").json()["runs"]
    assert (row["name"], row["samples"], row["steps"]) == ("small", 48, [0, 2, 3])
    assert row["kinds"] == ["trajectory", "old_log_probs"]
    shown = client.get("/api/runs/small").json()
    assert shown["kinds"] == json.loads(json.dumps(rldbg.open(recording).summary().to_dict()["kinds"]))
    assert done(client, "/api/runs/small/check") == check(rldbg.open(recording)).to_dict()


def test_samples_are_sorted_filtered_counted_and_paged(recording):
    client = client_of(recording)
    query = {"filter": "reward == 1 and step > 0", "sort": "score", "order": "down", "limit": 3}
    page = client.get("/api/runs/small/samples", params=query).json()
    score = page["columns"].index("score")
    assert (page["count"], page["matched"], page["remaining"]) == (48, 16, 0)
    assert [row[score] for row in page["rows"]] == [7.5, 7.5, 6.5]
    assert page["histograms"]["step"] == {"edges": [1, 2, 3], "counts": [8, 8], "unknown": 0}
    second = client.get("/api/runs/small/samples", params={**query, "offset": 3}).json()
    assert second["rows"][0][score] == 6.5 and second["histograms"] is None
    turns = page["columns"].index("turns")
    assert {row[turns] for row in page["rows"]} == {2}
    wrong = client.get("/api/runs/small/samples", params={"filter": "rewrad > 1"})
    assert wrong.status_code == 400 and "did you mean 'reward'" in wrong.json()["error"]["hint"]


def test_a_sample_has_parts_odd_tokens_and_the_difference_of_log_probs(recording):
    answer = client_of(recording).get("/api/runs/small/sample", params={"sample": "g0/1", "step": 1}).json()
    assert [part["role"] for part in answer["parts"]] == ["prompt", "model", "environment", "model"]
    assert answer["odd"]["trainer - rollout"] == [6]
    assert answer["columns"]["trainer - rollout"][6] == pytest.approx(-5.0)
    assert answer["columns"]["trainer - rollout"][0] is None
    assert answer["text"] is None and "--tokenizer" in answer["no_text"]


def test_a_group_shows_its_answers_side_by_side(recording):
    client = client_of(recording)
    client.get("/api/runs/small/samples")
    members = client.get("/api/runs/small/group", params={"group": "g1", "step": 2}).json()["members"]
    assert [member["sample"] for member in members] == ["g1/0", "g1/1", "g1/2", "g1/3"]
    assert [member["values"]["reward"] for member in members] == [0, 1, 0, 1]


def test_a_step_names_the_samples_that_carry_the_loss(recording):
    answer = done(client_of(recording), "/api/runs/small/step/1")
    first = answer["samples"][0]
    assert (first["sample"], first["worst_token"]) == ("g0/1", 6)
    assert sum(row["share"] for row in answer["samples"]) == pytest.approx(1.0)
    assert first["gradient"] is None  # neither advantages nor ratios are recorded
    assert "reward - mean of its group" in answer["by"]


def test_a_step_weighs_the_gradient_and_puts_what_is_not_finite_first(tmp_path):
    import numpy as np

    samples = [("g", row) for row in range(3)]
    with rldbg.Recorder(tmp_path / "run") as recorder:
        recorder.record(
            "trajectory", step=0, samples=samples, tokens=[[5, 6, 7]] * 3, loss_mask=[[0, 1, 1]] * 3,
            logprobs=[[0.0, -1.0, -1.0]] * 3, reward=[1.0, 0.0, 0.0],
        )  # fmt: skip
        loss = np.array([[4.0, 4.0], [1.0, 1.0], [1.0, np.nan]], np.float32)
        advantages = np.array([[1.0, 1.0], [-3.0, -3.0], [0.0, 0.0]], np.float32)
        ratio = np.array([[1.0, 2.0], [1.0, 1.0], [1.0, 1.0]], np.float32)
        recorder.record(
            "is_loss_debug", step=0, micro=0, samples=samples, elementwise_loss=loss, advantages=advantages,
            prob_ratio=ratio, log_probs=np.full((3, 2), -1.0, np.float32),
        )  # fmt: skip
    run = run_folder(tmp_path / "clipped", tmp_path / "run", config={"clip_low": 0.2, "clip_high": 0.2})
    rows = done(client_of(run), "/api/runs/clipped/step/0")["samples"]
    assert [row["sample"] for row in rows] == ["g/2", "g/0", "g/1"]
    assert (rows[0]["not_finite"], rows[0]["worst_token"]) == (1, 2)
    assert [row["gradient"] for row in rows] == [0.0, 1.0, 6.0]  # the second token of g/0 is clipped
    assert rows[1]["share"] == pytest.approx(8 / 11) and rows[2]["gradient_share"] == pytest.approx(6 / 7)


def test_the_same_prompt_is_found_over_steps(tmp_path):
    with rldbg.Recorder(tmp_path / "run") as recorder:
        for step in range(3):
            samples = [(f"step {step} first", 0), (f"step {step} second", 0)]
            recorder.record(
                "trajectory", step=step, samples=samples, tokens=[[5, 6, 7], [8, 6, 7 + step]],
                loss_mask=[[0, 0, 1]] * 2, logprobs=[[0.0, 0.0, -1.0]] * 2, reward=[1.0, 0.0],
            )  # fmt: skip
    client = client_of(tmp_path / "run")
    hashed = client.get("/api/runs/run/sample", params={"sample": "step 1 second/0", "step": 1}).json()["prompt_hash"]
    page = client.get("/api/runs/run/samples", params={"filter": f'prompt_hash == "{hashed}"'}).json()
    assert [row[1] for row in page["rows"]] == [f"step {step} second" for step in range(3)]
    assert "prompt_hash" not in page["columns"]


def test_findings_mark_their_samples_whenever_they_are_read(recording):
    client = client_of(recording)
    findings = done(client, "/api/runs/small/check")["findings"]
    said = " ".join(text for finding in findings for text in (finding["where"], *finding["evidence"]))
    page = client.get("/api/runs/small/samples", params={"filter": 'finding != ""'}).json()
    marked = {(str(row[0]), f"{row[1]}/{row[2]}") for row in page["rows"]}
    assert marked and marked == set(re.findall(r"step (\d) sample (g\d/\d)\b", said))


def test_the_list_checks_small_recordings_when_asked_to(recording):
    client = client_of(recording)
    assert client.get("/api/runs").json()["runs"][0]["verdict"] is None
    client.get("/api/runs", params={"check": 1})
    done(client, "/api/runs/small/check")
    assert client.get("/api/runs").json()["runs"][0]["verdict"] == check(rldbg.open(recording)).to_dict()["verdict"]


def test_a_report_holds_what_the_server_answers(recording, tmp_path):
    from rldbg.cli.application import run as main

    assert main(["ui", str(recording), "--export", str(tmp_path / "out")]) == 0
    index = (tmp_path / "out" / "data" / "index.js").read_text()
    places = json.loads(index.partition("= ")[2].rpartition(";")[0])["places"]
    group = (tmp_path / "out" / "data" / f"{places['runs/small/group?g0&1']}.js").read_text()
    packed = re.search(r',"([^"]+)"\);', group).group(1)
    answers = json.loads(gzip.decompress(base64.b64decode(packed)))
    live = client_of(recording).get("/api/runs/small/sample", params={"sample": "g0/1", "step": 1}).json()
    shown = answers["runs/small/sample?g0/1&1"]
    assert shown["tokens"] == live["tokens"] and shown["parts"] == live["parts"]
    assert shown["columns"]["logprobs"] == pytest.approx(live["columns"]["logprobs"], rel=1e-6)
    assert [member["sample"] for member in answers["runs/small/group?g0&1"]["members"]] == [f"g0/{n}" for n in range(4)]
    expected = {"runs", "runs/small", *(f"runs/small/{view}" for view in ("check", "metrics", "table", "step/1"))}
    assert expected <= places.keys()
    scripts = "".join(file.read_text() for file in (tmp_path / "out" / "static").glob("*.js"))
    assert "/debug`" not in scripts and "breakpoint" not in scripts
    assert main(["ui", str(recording), "--export", str(tmp_path / "out")]) == 2  # never overwritten


def test_the_mismatch_is_that_of_the_verb(recording):
    from rldbg.mismatch import explain_mismatch

    shown = done(client_of(recording), "/api/runs/small/mismatch")
    assert shown["causes"] == json.loads(to_json(explain_mismatch(rldbg.open(recording)).to_dict()["causes"]))


def test_the_timeline_has_a_lane_per_process(recording, tmp_path):
    run = run_folder(tmp_path / "run", recording)
    folder = run / "profiling" / "phases"
    folder.mkdir(parents=True)
    for rank in range(2):
        who = {
            "worker": f"policy/{rank}",
            "role": "policy",
            "rank": rank,
            "host": "h",
            "pid": 10 + rank,
            "before_steps": -1,
        }
        spans = [["step", 1_000_000_000 * step, 900_000_000, step, 1] for step in range(3)]
        (folder / f"{rank}.jsonl").write_text("\n".join(map(json.dumps, [who, *spans])))
    client = client_of(run)
    shown = done(client, "/api/runs/run/timeline")
    assert [lane["worker"] for lane in shown["lanes"]] == ["policy/0", "policy/1"]
    assert sorted(shown["lanes"][1]["spans"])[2] == [2.0, 0.9, "step", 2] and shown["steps"] == [0, 1, 2]
    assert [len(lane["spans"]) for lane in done(client, "/api/runs/run/timeline", step=1)["lanes"]] == [1, 1]
    assert "not a run" in client_of(recording).get("/api/runs/small/timeline").json()["error"]["message"]
    trace = client.get("/api/runs/run/trace.json.gz")
    assert "run-trace.json.gz" in trace.headers["content-disposition"]
    assert {event["name"] for event in json.loads(gzip.decompress(trace.content))["traceEvents"]} >= {"step"}


def test_weights_by_replica_and_layer_with_the_first_wrong_tensor(recording, tmp_path):
    client = client_of(weights_of_two_replicas(tmp_path / "held"), recording)
    shown = done(client, "/api/runs/held/weights")
    assert [(cell["version"], cell["replica"], cell["wrong"]) for cell in shown["cells"]] == [(1, 0, 0), (1, 1, 1)]
    assert shown["layers"] == ["layer 0", "layer 1", "layer 2"] and shown["cells"][1]["layers"] == {"layer 1": 1}
    assert shown["faults"][0]["where"] == "version 1 replica 1 tensor model.layers.1.mlp.down_proj.weight"
    assert shown["faults"][0]["text"] == "is stale: it equals version 0"
    assert "--record weights" in done(client, "/api/runs/small/weights")["error"]["hint"]


def test_the_template_of_the_recorded_tokenizer_is_examined(tmp_path):
    shown = done(client_of(weights_of_two_replicas(tmp_path / "held")), "/api/runs/held/template")
    assert {item["verdict"] for item in shown["properties"]} <= {"holds", "broken", "not tried"}
    first = shown["conversations"][0]
    assert len(first["texts"]) == len(first["tokens"]) == len(first["trained"]) and any(first["trained"])


def test_two_runs_are_compared_as_the_verb_does(recording, tmp_path):
    other = two_turns(tmp_path / "other", shift=0.5)
    client = client_of(recording, other)
    (pair,) = done(client, "/api/compare", run=["small", "other"])["pairs"]
    assert pair["verdict"] == "different"
    assert (pair["first_difference"]["step"], pair["first_difference"]["sample"]) == (1, "g0/2")
    assert pair["strips"]["samples"][0]["sample"] == "g0/2"
    assert client.get("/api/compare", params={"run": ["small"]}).status_code == 400


def test_the_csv_has_every_row_and_no_formulas(recording, tmp_path):
    lines = client_of(recording).get("/api/runs/small/samples.csv?filter=step==1").text.splitlines()
    assert len(lines) == 17 and lines[0].startswith("step,group,run,reward")
    text = client_of(hostile(tmp_path / "hostile")).get("/api/runs/hostile/samples.csv").text
    assert "'=1+1" in text


def test_a_csv_that_is_not_read_to_its_end_holds_nothing_up(recording):
    run = Catalogue([str(recording)]).run("small")
    lines = samples_csv(run)
    next(lines)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(run.lock.acquire, timeout=10).result()
        other.submit(run.lock.release).result()
        assert other.submit(lambda: len("".join(lines).splitlines())).result() == 48


def test_an_answer_reaches_a_page_that_waits_for_it_while_the_recording_grows(monkeypatch):
    monkeypatch.setattr("rldbg.ui.jobs._LEFT_S", 3600)
    jobs, go_on, begun = Jobs(), Event(), []

    def work(stamp):
        begun.append(stamp)
        assert go_on.wait(60)
        return stamp

    try:
        for stamp in (1, 2, 3):
            assert jobs.ask("q", stamp, partial(work, stamp), patience_s=0)["state"] == "running"
        go_on.set()
        assert jobs.ask("q", 4, partial(work, 4), patience_s=60)["result"] == 1
        assert jobs.ask("q", 5, partial(work, 5), patience_s=60)["result"] == 5
        assert jobs.ask("q", 5, partial(work, 5), patience_s=60)["result"] == 5
        assert begun == [1, 5]
    finally:
        jobs.close()


def test_hostile_text_arrives_as_text(tmp_path):
    client = client_of(hostile(tmp_path / "hostile"))
    rows = client.get("/api/runs/hostile/samples").json()["rows"]
    assert rows[0][1] == HOSTILE_GROUP
    response = client.get("/api/runs/hostile/sample", params={"sample": f"{HOSTILE_GROUP}/0", "step": 0})
    answer = response.json()
    assert answer["values"]["note"] == HOSTILE_TEXT
    assert len(response.content) < 20_000 and "1,000,000 characters" in answer["values"]["long"]
    assert answer["columns"]["logprobs"][2] == float("-inf")


def test_broken_recordings_say_what_is_wrong(tmp_path):
    (tmp_path / "empty").mkdir()
    torn = two_turns(tmp_path / "torn", steps=2)
    second = torn / "trajectory" / "step_000001.safetensors"
    second.write_bytes(second.read_bytes()[:100])
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "run.json").write_text("{not json")
    client = client_of(tmp_path / "empty", torn, tmp_path / "lost")
    rows = {row["name"]: row for row in client.get("/api/runs").json()["runs"]}
    assert "error" in rows["empty"] and "JSON" in rows["lost"]["error"]["message"]
    assert client.get("/api/runs/empty").status_code == 422
    page = client.get("/api/runs/torn/samples").json()
    assert page["count"] == 16 and "step_000001" in page["unreadable"][0]


def test_only_what_was_opened_is_read(recording, tmp_path):
    secret = two_turns(tmp_path / "secret", steps=1)
    opened = tmp_path / "opened"
    run = run_folder(opened / "run", recording)
    (run / "run.json").write_text(json.dumps({"recording": str(secret)}))
    linked = run_folder(opened / "linked", recording)
    for file in sorted((linked / "recording" / "trajectory").iterdir()):
        file.unlink()
        file.symlink_to(next(each for each in (secret / "trajectory").iterdir() if each.is_file()))
    client = client_of(opened)
    rows = {row["name"]: row for row in client.get("/api/runs").json()["runs"]}
    assert "outside the opened folders" in rows["run"]["error"]["message"]
    page = client.get("/api/runs/linked/samples").json()
    assert page["count"] == 0 and "outside the opened folders" in page["unreadable"][0]
    for path in ("/api/runs/..%2f..%2fsecret", "/static/../application.py", "/static/%2e%2e/application.py"):
        assert client.get(path).status_code in (400, 404)


def test_a_tokenizer_outside_the_roots_must_be_named(recording, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    words = {"[UNK]": 0, **{f"w{number}": number for number in range(1, 100)}}
    (model / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
    }))  # fmt: skip
    run = run_folder(tmp_path / "runs" / "run", recording, config={"model_path": str(model)})
    query = {"sample": "g0/0", "step": 0}
    refused = client_of(tmp_path / "runs").get("/api/runs/run/sample", params=query).json()
    assert refused["text"] is None and "outside the opened folders" in refused["no_text"]
    shown = client_of(run, tokenizer=str(model)).get("/api/runs/run/sample", params=query).json()
    assert shown["text"][0].strip() == f"w{shown['tokens'][0]}"


def test_other_hosts_and_other_origins_are_refused(recording):
    client = client_of(recording)
    assert client.get("/api/runs", headers={"host": "attacker.example"}).status_code == 403
    assert client.get("/api/runs", headers={"host": "127.0.0.1.attacker.example:8400"}).status_code == 403
    assert client.get("/api/runs", headers={"origin": "http://attacker.example"}).status_code == 403
    assert (
        client.get("/api/runs", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}).status_code == 403
    )
    assert client.get("/api/runs", headers={"host": "localhost:9999"}).status_code == 200
    page = client.get("/")
    assert "unsafe" not in page.headers["content-security-policy"]
    assert "script-src 'self'" in page.headers["content-security-policy"]


def test_other_addresses_need_the_token(recording):
    access = Access("0.0.0.0")
    client = client_of(recording, access=access)
    assert client.get("/api/runs").status_code == 401
    assert client.get("/").status_code == 401
    assert client.get("/?token=wrong").status_code == 401
    assert client.get("/api/runs", headers={"authorization": f"Bearer {access.token}"}).status_code == 200
    opened = client.get(f"/?token={access.token}")
    assert opened.status_code == 200 and "token" not in str(opened.url)
    assert client.get("/api/runs").status_code == 200
    assert client.get("/api/runs", headers={"host": "attacker.example"}).status_code == 403


def test_the_assets_parse_no_text_as_html_and_name_no_other_host():
    from rldbg.ui.compare_pages import STATIC

    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8")
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "https://",
        ):
            assert forbidden not in text, (file.name, forbidden)
        assert "<script>" not in text and " onclick=" not in text


def test_a_long_sample_is_answered_whole(tmp_path):
    answer = client_of(long_sample(tmp_path / "long", 4096)).get("/api/runs/long/sample", params={"sample": "long/0"})
    assert len(answer.json()["tokens"]) == 4096
    assert answer.json()["odd"]["logprobs"] == [20_000 % 4096]


def test_a_run_that_was_not_recorded_is_no_error(tmp_path, recording):
    folder = tmp_path / "runs" / "plain"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(
        json.dumps({"command": ["train.py"], "started_at": 1.0, "ended_at": 2.0, "exit_code": 1})
    )
    (folder / "armed.json").write_text("{}")
    client = client_of(folder.parent, recording)
    plain, small = client.get("/api/runs").json()["runs"]
    assert (plain["state"], plain["healthy"], plain["kinds"]) == ("failed", None, []) and "error" not in plain
    shown = client.get("/api/runs/plain").json()
    assert (shown["kinds"], shown["run"]["exit_code"]) == ({}, 1)
    assert small["verdict"] is None
    verdict = done(client, "/api/runs/small/check")["verdict"]
    assert client.get("/api/runs").json()["runs"][1]["verdict"] == verdict


def log_probs_times(folder, factor):
    """One step of old log probs, in which only the factor differs."""
    import numpy as np

    draw = np.random.default_rng(0)
    values = -draw.random((4, 12)) - 0.1
    tokens = draw.integers(3, 90, (4, 12)).tolist()
    with rldbg.Recorder(folder) as recorder:
        samples = [("g", row) for row in range(4)]
        masks = [[1] * 12] * 4
        recorder.record(
            "trajectory", step=0, samples=samples, tokens=tokens, loss_mask=masks, logprobs=values.tolist(),
            reward=[0.0, 1.0, 0.0, 1.0],
        )  # fmt: skip
        recorder.record("old_log_probs", step=0, samples=samples, old_log_probs=(values * factor).astype(np.float32))
    return folder


def test_a_hypothesis_is_applied_beside_both_sides(tmp_path):
    client = client_of(log_probs_times(tmp_path / "a", 1.0), log_probs_times(tmp_path / "b", 1.5))
    (pair,) = done(client, "/api/compare", run=["a", "b"])["pairs"]
    (scaled,) = [item for key in ("explanations", "candidates") for item in pair[key] if item["id"] == "scaled"]
    made = pair["recomputed"][scaled["id"] + scaled["explains"]]
    assert (made["count"], made["places"]) == (48, list(range(48)))
    assert made["recorded"] == pytest.approx([1.5 * value for value in made["given"]])
    assert made["made"] == pytest.approx(made["recorded"], abs=1e-5)


def test_a_hypothesis_that_does_not_fit_leaves_what_it_leaves():
    import numpy as np

    from rldbg.analysis.explain.evidence import Recomputed, applied

    given, recorded = np.array([1.0, 2.0, 3.0]), np.array([1.0, 5.0, 4.0])
    item = applied("scaled", "B is A times 2", given, recorded, 2 * given, 1e-6, {})
    assert (item.residual, item.fits) == (2.0, False)
    shown = item.recomputed.to_dict(2)
    assert shown.pop("names") is None
    assert shown == {"count": 3, "places": [1, 2], "given": [2.0, 3.0], "recorded": [5.0, 4.0], "made": [4.0, 6.0]}
    assert Recomputed.of_rows([(1.0, None, 2.0)]) is None


def test_a_token_shows_in_how_many_layers_engine_and_trainer_agree(tmp_path):
    import numpy as np

    engine = np.tile(np.array([[0, 1], [2, 3]]), (1, 5, 1, 1))
    engine[0, 4] = -1  # the last token of an answer has none
    trainer = engine[..., ::-1].copy()  # another order is the same set
    trainer[0, 2, 1] = [0, 1]
    trainer[0, 3] = [[2, 3], [0, 1]]
    weights = np.full(engine.shape, 0.5, np.float32)
    samples = [("g", 0)]
    with rldbg.Recorder(tmp_path / "mixture") as recorder:
        recorder.record(
            "trajectory", step=0, samples=samples, tokens=[[5, 6, 7, 8, 9]], loss_mask=[[0, 1, 1, 1, 1]],
            logprobs=[[0.0, -1.0, -1.0, -1.0, -1.0]], reward=[1.0],
        )  # fmt: skip
        recorder.record("rollout_routing", step=0, samples=samples, experts=engine, expert_weights=weights)
        recorder.record("routing", step=0, micro=0, samples=samples, experts=trainer, expert_weights=weights)
    shown = client_of(tmp_path / "mixture").get("/api/runs/mixture/sample", params={"sample": "g/0"}).json()
    assert shown["columns"]["routing agreement"] == [1.0, 1.0, 0.5, 0.0, None]


def exported(folder):
    index = (folder / "data" / "index.js").read_text()
    return json.loads(index.partition("= ")[2].rpartition(";")[0])["places"]


def test_a_report_of_a_recording_with_a_damaged_file_has_the_other_steps(tmp_path):
    from rldbg.cli.application import run as main

    recording = two_turns(tmp_path / "small")
    damaged = sorted(recording.rglob("trajectory/*"))[0]
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert main(["ui", str(recording), "--export", str(tmp_path / "out")]) == 0
    assert {"runs/small/check", "runs/small/metrics", "runs/small/group?g0&1"} <= exported(tmp_path / "out").keys()


def test_no_report_of_nothing_is_written(tmp_path, capsys):
    from rldbg.cli.application import run as main

    (tmp_path / "empty").mkdir()
    assert main(["ui", str(tmp_path / "empty"), "--export", str(tmp_path / "out")]) == 4
    assert "holds no files" in capsys.readouterr().err and not (tmp_path / "out").exists()
