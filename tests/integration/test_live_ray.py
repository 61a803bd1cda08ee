"""Armed Ray jobs on a cluster that was there before: workers, tasks, the driver, and what lives below them."""

import json

import pytest
from live_job import LiveJob, assert_not_in_processes, until
from ray_stage import SCENES, Stage
from ui_site import CHROMIUM, Site, opened_browser, served


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with LiveJob(tmp_path_factory.mktemp("live")) as job:
        yield job


@pytest.fixture(scope="module")
def stage(job, ray_cluster):
    environment = job.environment | {"SCENE_HOOK": "1", "RAY_AUTH_MODE": "token"}
    environment["SCENE_RECORDING"] = str(job.run.path / "recording")
    stage = Stage(environment, address=ray_cluster.stage.gcs_address)
    yield stage
    stage.end()


@pytest.fixture(autouse=True)
def _the_next_test_finds_nothing_stopped(job):
    """Without this, a test that fails leaves its scene stopped, and every later scene here waits behind it."""
    yield
    if job.stopped():
        job.client.request("break_clear")
        job.client.request("continue", who="all")


def _line_of(text):
    return next(n for n, line in enumerate(SCENES.read_text().splitlines(), 1) if text in line)


def test_four_actors_stop_under_their_names_and_go_on(job, stage):
    stage.play("actors")
    job.wait_stopped(4)
    body = json.loads(job.rldbg("ps", "--json").stdout)
    stopped = {p["who"]: p for p in body["processes"] if p["state"] == "stopped"}
    assert sorted(stopped) == [f"dtensor_policy_worker/{rank}" for rank in range(4)]
    assert all(p["line"] in (_line_of("secret = ") + 1, _line_of("return secret")) for p in stopped.values())
    cast = json.loads(job.rldbg("cast", "*policy*", "p secret", "--json").stdout)
    assert [answer["value"] for answer in cast["answers"]] == [1, 8, 15, 22] or sorted(
        answer["value"] for answer in cast["answers"]
    ) == [1, 8, 15, 22]
    assert "secret" in job.rldbg("attach", "dtensor_policy_worker/2", "-c", "locals").stdout
    job.rldbg("continue", "all")
    assert stage.result("actors") == [1, 8, 15, 22]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
def test_actors_are_asked_stepped_paused_and_resumed_in_the_browser(job, stage):
    line = _line_of("total = add(total, i)")
    stage.play("training")
    job.wait_stopped(2)
    with served(job.run.path) as url, opened_browser() as browser:
        site = Site(browser, url)
        page = site.open("run/run/ranks", "#processes .verdict:has-text('stopped') >> nth=1")
        page.get_by_label("Ranks", exact=True).fill("*policy*")

        def asked(expression, *answers):
            page.get_by_label("Command", exact=True).fill(f"p {expression}")
            page.keyboard.press("Enter")
            answer = page.locator("section.answer", has_text=f"p {expression}").first
            answer.locator(f".group >> nth={len(answers) - 1}").wait_for()
            assert sorted(answer.locator(".group pre").all_inner_texts()) == sorted(answers)

        asked("self.rank", "0", "1")
        asked("hidden.shape", "(8, 8)")  # the same answer once
        page.locator("#processes a.where").first.click()
        page.locator("#variables summary", has_text="hidden").click()
        page.wait_for_selector("#variables figure:has-text('histogram') svg")
        page.locator("#recorded a").click()
        page.wait_for_selector(".flow .t")
        page.go_back()
        page.locator("#processes a.where").first.click()
        page.get_by_label("Ranks", exact=True).fill("*policy*")
        page.get_by_role("button", name=f"breakpoint at line {line}", exact=True).click()
        page.wait_for_selector(f"#breakpoints :text('{SCENES.name}:{line}')")
        page.wait_for_selector(f"button.gutter.set[data-place$=':{line}']")
        page.locator("#resume").click()  # at once: nothing may still be asked of a rank that has gone on
        page.wait_for_selector(f"#processes code:has-text('{SCENES.name}:{line} count') >> nth=1")
        asked("(total, i)", "(0, 0)")
        page.get_by_role("button", name="next", exact=True).click()
        until(lambda: all(p["line"] == line - 1 for p in job.stopped()) and len(job.stopped()) == 2, "both step")
        page.get_by_role("button", name="remove", exact=True).click()
        page.wait_for_selector("#breakpoints", state="detached")
        page.wait_for_selector("button.gutter.set", state="detached")
        page.locator("#resume").click()
        until(lambda: not job.stopped(), "both run")
        page.locator("#pause").click()
        job.wait_stopped(2)
        asked("40 + 2", "42")
        (job.run.path / "recording" / "go").touch()
        page.locator("#resume").click()
        assert stage.result("training") == [3, 3]
        assert (site.elsewhere, site.complaints) == ([], [])


@pytest.mark.soak
@pytest.mark.timeout(560)
def test_thirty_two_actors_stop_answer_and_go_on(job, stage):
    stage.play("thirty_two_actors")
    until(lambda: len(job.stopped()) == 32, "32 stopped workers", 400)
    assert len({p["pid"] for p in job.stopped()}) == 32
    for _ in range(5):
        cast = json.loads(job.rldbg("cast", "all", "p secret", "--json").stdout)
        assert sorted(answer["value"] for answer in cast["answers"]) == [rank * 7 + 1 for rank in range(32)]
    job.rldbg("continue", "all")
    assert stage.result("thirty_two_actors") == [rank * 7 + 1 for rank in range(32)]


def test_a_task_and_the_driver_stop_too(job, stage):
    stage.play("task")
    assert [p["who"] for p in job.wait_stopped()] == ["reward"]
    assert "\n10\n" in job.rldbg("attach", "reward", "-c", "p doubled", "-c", "c").stdout
    assert stage.result("task") == 10
    stage.play("driver")
    assert [p["who"] for p in job.wait_stopped()] == ["driver"]
    assert "'the driver'" in job.rldbg("attach", "driver", "-c", "p here", "-c", "c").stdout
    assert stage.result("driver") == "the driver"


def test_breakpoints_from_outside_reach_actors_by_rank(job, stage):
    job.client.request("break_set", file=str(SCENES), line=_line_of("return total + i"), ranks="dtensor*/1", once=True)
    stage.play("loops")
    job.wait_stopped()
    assert [p["who"] for p in job.stopped()] == ["dtensor_policy_worker/1"]
    job.client.request("break_clear")
    job.client.request("continue", who="all")
    assert stage.result("loops") == [sum(range(1500))] * 2


def test_an_async_actor_says_that_its_loop_is_blocked(job, stage):
    stage.play("async_actor")
    (stopped,) = job.wait_stopped()
    assert stopped["function"] == "step" and any("event loop is blocked" in note for note in stopped["notes"])
    job.client.request("continue", who="all")
    assert stage.result("async_actor") == "async"


def test_a_threaded_actor_shows_the_thread_that_stopped(job, stage):
    stage.play("threaded_actor")
    (stopped,) = job.wait_stopped()
    assert stopped["function"] == "step"
    thread = json.loads(job.rldbg("attach", stopped["who"], "-c", "p mine", "--json").stdout)["answers"][0]["value"]
    assert stopped["thread"] == thread
    job.client.request("continue", who="all")
    assert stage.result("threaded_actor") == thread


def test_a_subprocess_of_a_worker_stops_where_rays_own_debugger_crashes(job, stage):
    stage.play("child")
    (stopped,) = job.wait_stopped()
    assert stopped["who"].startswith("dtensor_policy_worker.child")
    assert "'popen'" in job.rldbg("attach", stopped["who"], "-c", "p kind", "-c", "c").stdout
    assert stage.result("child") == 0


def test_a_task_that_fails_leaves_a_crash_file(job, stage):
    stage.play("crash")
    assert "RuntimeError" in stage.result("crash")
    files = until(lambda: list((job.run.path / "crashes").glob("*.json")), "a crash file")
    text = files[0].read_text()
    record = json.loads(text)
    assert [error["type"] for error in record["exceptions"]] == ["RuntimeError", "ZeroDivisionError"]
    assert (record["who"]["role"], record["who"]["rank"], record["step"]) == ("dtensor_policy_worker", 3, 31)
    assert "sk-aaaa" not in text
    shown = job.rldbg("attach", str(files[0]), "-c", "p reason", "-c", "u", "-c", "p global_step", run=None).stdout
    assert "'a zero in the batch'" in shown and "\n31\n" in shown
    # A task keeps its name, although its own frames are gone when it is looked at.
    stage.play("failing_task")
    assert stage.result("failing_task") == "ValueError"
    (file,) = until(lambda: list((job.run.path / "crashes").glob("*failing_reward*.json")), "the task's crash file")
    assert json.loads(file.read_text())["who"]["role"] == "failing_reward"


def test_the_users_own_hook_and_variables_are_kept(job, stage):
    stage.play("variables")
    found = stage.result("variables")
    assert found["USER_HOOK_RAN"] == "yes" and found["USER_VARIABLE"] == "kept"
    assert found["RLDBG_RUN"] == str(job.run.path) and found["RAY_DEBUG_POST_MORTEM"] == "1"


def test_nothing_of_the_token_is_where_others_look(job, stage, ray_cluster):
    token = json.loads((job.run.path / "broker.json").read_text())["token"]
    assert_not_in_processes(token)
    for log in (*job.run.path.rglob("*.log"), *ray_cluster.folder.rglob("*.log")):
        assert token not in log.read_text(errors="replace"), log


def test_the_job_ends_and_takes_its_agents_with_it(job, stage):
    stage.end()
    assert stage.process.returncode == 0
    until(lambda: not [p for p in job.ps(all=True) if p["state"] in ("running", "stopped")], "no process left")
