"""`rldbg ui` in a real browser that can reach nothing but the server: every view, hostile text, broken recordings."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from live_job import LOOP, LiveJob, until
from ui_site import CHROMIUM, WAIT_MS, Site, opened_browser, served

from third_party import material, needs
from ui_recordings import agent, crashed, hostile, long_sample, two_turns, weights_of_two_replicas

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
FIXTURES = material("fixtures")
RECORDS = """
import os
import rldbg
recorder = rldbg.Recorder({folder!r})
recorder.record(
    "trajectory", step=0, samples=[("g0", int(os.environ["RANK"]))], tokens=[[5, 6, 7]], loss_mask=[[0, 1, 1]],
    logprobs=[[0.0, -1.0, -0.5]], reward=[1.0],
)
recorder.close()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Two ranks that wait at a breakpoint."""
    with LiveJob(tmp_path_factory.mktemp("live")) as job:
        for rank in range(2):
            (job.folder / f"break_{rank}").touch()
        job.ranks(job.write("loop.py", RECORDS.format(folder=str(job.run.path / "recording")) + LOOP), 2)
        yield job


@pytest.fixture(scope="module")
def server(tmp_path_factory, job):
    folder = tmp_path_factory.mktemp("ui")
    two_turns(folder / "first", steps=10)
    two_turns(folder / "second", steps=10, shift=0.5)
    hostile(folder / "hostile")
    long_sample(folder / "long")
    weights_of_two_replicas(folder / "held")
    agent(folder / "agent")
    (folder / "broken").mkdir()
    (folder / "broken" / "run.json").write_text("{not json")
    roots = [folder / name for name in ("first", "second", "hostile", "long", "held", "agent", "broken")]
    crashed(folder / "crashed")
    roots += [folder / "crashed", job.run.path]
    with served(*roots) as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    with opened_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def site(browser, server):
    return Site(browser, server)


@pytest.fixture(autouse=True)
def nothing_is_wrong(site):
    site.complaints.clear()
    yield
    # A page that explains an error logs the status of the answer.
    assert [text for text in site.complaints if "Failed to load resource" not in text] == []
    assert site.elsewhere == []
    assert "pwned" not in site.page.title()


def test_the_runs_are_listed_and_a_broken_one_says_why(site):
    page = site.open("", "#runs")
    names = page.locator("#runs a.name").all_inner_texts()
    assert names == ["first", "second", "hostile", "long", "held", "agent", "broken", "crashed", "run"]
    assert "is not valid JSON" in site.text()
    page.locator("#runs a.name", has_text="broken").click()
    page.wait_for_selector(".card.error")
    assert "is not valid JSON" in site.text() and "restore it" in site.text()


def test_the_overview_shows_kinds_and_the_verdict(site):
    page = site.open("run/first", "#check .verdict")
    assert page.locator("#kinds td:first-child").all_inner_texts() == ["trajectory", "old_log_probs"]
    page.get_by_role("link", name="step 1 sample g0/1 token 6").click()  # from a finding to its token
    page.wait_for_selector(".details:has-text('token 6, id')")


def test_samples_are_filtered_by_expression_and_by_histogram_and_opened_by_key(site):
    page = site.open("run/first/samples", ".vrow .vcell")
    page.wait_for_selector("#matched:text-is('160 samples')")
    page.keyboard.press("/")
    page.keyboard.type("step == 1 and reward > 0")
    page.keyboard.press("Enter")
    page.wait_for_selector("#matched:text-is('8 of 160 samples')")
    assert "filter=step" in page.url  # a link to what is seen
    page.locator(".vth", has_text="run").locator(".bar").first.click(force=True)
    page.wait_for_selector("#matched:text-is('4 of 160 samples')")
    page.fill("#filter", "rewrad > 1")
    page.keyboard.press("Enter")
    page.wait_for_selector(".problem:has-text('did you mean')")
    page.fill("#filter", "")
    page.keyboard.press("Enter")
    page.wait_for_selector("#matched:text-is('160 samples')")
    page.locator(".vtable").focus()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".flow .t")
    assert "sample=g0%2F0" in page.url


def test_a_sample_is_coloured_explained_and_its_odd_token_found(site):
    page = site.open("run/first/sample?step=1&sample=g0%2F1", ".flow .t")
    roles = [text.split()[0] for text in page.locator(".part .role").all_inner_texts()]
    assert roles == ["prompt", "model", "environment", "model"]
    page.keyboard.press("n")
    page.wait_for_selector(".details:has-text('token 6, id')")
    assert "Trained: loss mask 1." in page.inner_text(".details")
    assert "−5" in page.inner_text(".details tr.chosen")
    page.hover('[data-t="0"]')
    page.wait_for_selector(".details:has-text('belongs to the prompt')")
    page.hover('[data-t="12"]')
    page.wait_for_selector(".details:has-text('the environment wrote it')")
    page.select_option("#color", "logprobs")
    assert "color=logprobs" in page.url


def test_a_group_and_a_step_lead_to_samples(site):
    page = site.open("run/first/group?group=g1&step=2", ".member")
    assert page.locator(".member").count() == 4
    page = site.open("run/first/step/1", ".share")
    page.locator("table a", has_text="g0/1").click()
    page.wait_for_selector(".t.current")
    assert "token=6" in page.url


def test_a_click_on_a_curve_opens_the_step(site):
    page = site.open("run/first/metrics", "figure svg")
    page.locator("figure", has_text="rollout/abs_diff_max").locator("circle").nth(3).click()
    page.wait_for_selector("h1:has-text('Step 3')")


def test_causes_of_the_mismatch_have_their_shares(site):
    page = site.open("run/first/mismatch", "h1:has-text('Rollout and trainer')")
    assert "different" in page.inner_text("h1") and page.locator("main .share").count() >= 1


def test_two_runs_are_compared(site):
    page = site.open("compare?run=first&run=second", ".stage.first")
    assert "old_log_probs" in page.inner_text(".firstcard")
    assert "g0/2" in page.inner_text(".firstcard")
    assert page.locator(".strip").count() >= 1
    apply = page.locator("button.apply").first
    apply.click()
    page.wait_for_selector(
        ".why figure:has-text('recomputed by this hypothesis') svg polyline >> nth=2", state="attached"
    )
    apply.scroll_into_view_if_needed()
    site.picture("ui-apply")
    apply.click()
    page.wait_for_selector(".why figure", state="detached")


def test_the_third_run_has_a_row_and_a_section_of_its_own(site):
    page = site.open("compare?run=first&run=second&run=first", "#pairs button >> nth=1")
    verdicts = page.locator("#pairs .verdict").all_inner_texts()
    assert [text.split(" ", 1)[1] for text in verdicts] == ["different", "equal"]
    page.locator("#pairs button").nth(1).click()
    assert page.locator("#pair-1 .stage.first").count() == 0 and page.locator("#pair-0 .stage.first").count() == 1


def test_thinking_tools_and_the_environment_are_told_apart(site):
    page = site.open("run/agent/samples?filter=reward+%3E+0", ".vrow .vcell")
    page.wait_for_selector("#matched:has-text('of 96 samples')")
    site.picture("ui-samples")
    page = site.open("run/agent/sample?step=3&sample=task-01%2F1&color=trainer+-+rollout", ".flow .t")
    roles = [re.sub(r" \d+–\d+", "", text) for text in page.locator(".part .role").all_inner_texts()]
    assert roles[0] == "user" and roles[-1] == "model" and {"thinking", "tool call", "tool"} <= set(roles)
    page.keyboard.press("n")
    page.wait_for_selector(".details:has-text('thirty')")
    site.picture("ui-sample")


def test_the_first_wrong_tensor_and_the_template_are_shown(site):
    site.open("run/held/weights", "#first-wrong")
    assert "version 1 replica 1 tensor model.layers.1.mlp.down_proj.weight is stale" in site.text()
    page = site.open("run/held/template", "#properties")
    assert page.locator(".t.trained").count() > 0 and page.locator(".t.off").count() > 0
    site.open("run/first/weights", ".card.error")
    assert "--record weights" in site.text()


@needs(FIXTURES)
def test_samples_of_other_frameworks_are_shown(browser):
    names = ("verl/exp_proj", "trl/completions", "nexrl/self_hosted_pt", "slime", "areal/rollout")
    with served(*(FIXTURES / name for name in names)) as url:
        site = Site(browser, url)
        site.page.wait_for_selector("#runs a.name >> nth=4")
        for run in site.page.locator("#runs a.name").all_inner_texts():
            site.open(f"run/{run}", "#kinds td")
            page = site.open(f"run/{run}/samples", ".vrow .vcell")
            page.locator(".vrow").first.click()
            page.wait_for_selector(".tokenhead, .card.error")
            assert page.locator(".card.error").count() == 0, (run, site.text())
        assert (site.elsewhere, site.complaints) == ([], [])
        site.page.context.close()


def test_hostile_text_is_shown_and_never_run(site):
    page = site.open("run/hostile/samples", ".vrow .vcell")
    page.wait_for_selector(".vcell:has-text('onerror=document.title')")
    page.locator(".vrow").first.click()
    page.wait_for_selector(".flow .t")
    page.locator("summary", has_text="note").click()
    shown = page.inner_text("main")
    assert "<script>document.title='pwned'</script>" in shown
    assert "␛[31mred" in shown and "⟨U+202E⟩evil" in shown and "⟨U+D800⟩" in shown
    assert page.locator("main img, main script").count() == 0


def test_a_long_sample_exists_only_where_it_is_seen(site):
    page = site.open("run/long/sample?sample=long%2F0", ".flow .t")
    assert page.locator(".flow .t").count() < 16_000
    page.keyboard.press("n")
    page.wait_for_selector(".details:has-text('token 20000, id')")
    assert page.locator('.t.current[data-t="20000"]').is_visible()


def test_a_report_opens_from_disk(browser, tmp_path):
    two_turns(tmp_path / "runs" / "first", steps=2)
    two_turns(tmp_path / "runs" / "second", steps=2, shift=0.5)
    command = [sys.executable, "-m", "rldbg", "ui", str(tmp_path / "runs"), "--export", str(tmp_path / "out")]
    subprocess.run(command, check=True, capture_output=True)
    page = browser.new_context(offline=True).new_page()
    page.set_default_timeout(WAIT_MS)
    failed = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on("console", lambda message: message.type == "error" and failed.append(message.text))
    start = (tmp_path / "out" / "index.html").as_uri()
    page.goto(start)
    page.wait_for_selector("#runs")
    page.goto(f"{start}#/run/first/samples?filter=reward+%3E+0+and+not+%22g1%22+in+group")
    page.wait_for_selector("#matched:text-is('12 of 32 samples')")
    page.locator(".vrow").first.click()
    page.wait_for_selector(".flow .t")
    views = {
        "run/first": "#check .verdict",
        "run/first/metrics": "figure svg",
        "run/first/step/1": ".share",
        "compare?run=first&run=second": ".stage.first",
        "run/first/group?group=g1&step=1": ".member",
    }
    for path, expected in views.items():
        page.goto(f"{start}#/{path}")
        page.wait_for_selector(expected)
    page.context.close()
    assert failed == []


def test_one_comparison_is_one_file_that_opens_from_disk(browser, tmp_path):
    first, second = (two_turns(tmp_path / name, steps=2, shift=shift) for name, shift in (("a", 0), ("b", 0.5)))
    command = [sys.executable, "-m", "rldbg", "compare", str(first), str(second), "--html", str(tmp_path / "c.html")]
    assert subprocess.run(command, capture_output=True).returncode == 1
    page = browser.new_context(offline=True).new_page()
    page.set_default_timeout(WAIT_MS)
    failed = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on("console", lambda message: message.type == "error" and failed.append(message.text))
    page.goto((tmp_path / "c.html").as_uri())
    page.wait_for_selector("h2:has-text('First difference: stage')")
    assert page.locator(".stage.first").count() == 1 and page.locator(".strip .t").count() > 10
    page.context.close()
    assert failed == []


def test_stopped_ranks_are_listed_asked_and_resumed(site, job):
    job.wait_stopped(2)
    page = site.open("run/run/ranks", "#processes .verdict:has-text('stopped') >> nth=1")
    page.fill("#debug-command", "p 40 + 2")
    page.press("#debug-command", "Enter")
    page.wait_for_selector("#answers pre:has-text('42')")
    assert len(re.findall(r"/[01]", page.inner_text("#answers .group b"))) == 2  # both ranks in one group
    page.click("#look")
    page.wait_for_selector("#stacks .frame")
    page.locator("#processes a.where").first.click()
    page.wait_for_selector("#variables .value:has-text('total')")
    page.locator(".line.here .gutter").click()
    page.wait_for_selector(".line.here .gutter.set")
    site.picture("ui-ranks")
    assert [item["line"] for item in job.client.request("break_list")["breaks"]] != []
    page.locator("#recorded a", has_text="g0/0").click()
    page.wait_for_selector(".flow .t")
    page.go_back()
    page.locator("button:has-text('remove')").click()
    page.wait_for_selector("button:has-text('remove')", state="detached")
    before = {process["line"] for process in job.stopped()}
    page.get_by_role("button", name="next", exact=True).click()
    until(lambda: len(now := job.stopped()) == 2 and not before & {each["line"] for each in now}, "both ranks step")
    page.click("#resume")
    page.wait_for_selector("#processes .verdict:has-text('stopped')", state="detached")
    until(lambda: all(process["state"] == "running" for process in job.ps()), "both ranks run again")
    page.click("#pause")
    job.wait_stopped(2)
    page.click("#resume")
    until(lambda: all(process["state"] == "running" for process in job.ps()), "both ranks run after a pause")


def test_a_crash_is_shown_frame_by_frame(site):
    page = site.open("run/crashed/ranks", "#crashes details[open] .line.here")
    assert "return REWARDS[step]" in page.inner_text("#crashes .line.here >> nth=0")
    assert page.locator("#crashes #variables-of-frame >> nth=0 >> tbody td").all_inner_texts() == ["step", "int", "3"]
    page.locator("#crashes details.frame summary", has_text="train").click()
    page.wait_for_selector("#crashes code:has-text('<img src=x onerror=document.title=1>')")
    assert "tuple index out of range" in site.text() and "[object" not in site.text()


def test_debug_actions_need_the_token(site, job):
    body = json.dumps({"action": "pause", "who": "all"}).encode()
    url = f"{site.base}api/runs/run/debug"

    def status(**headers):
        request = urllib.request.Request(url, body, {"content-type": "application/json", **headers})
        try:
            return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).status
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code

    assert status() == 403
    assert status(Authorization="Bearer wrong") == 403
    token = json.loads((job.run.path / "broker.json").read_text())["token"]
    assert status(Authorization=f"Bearer {token}", Origin="http://attacker.example") == 403
    assert all(process["state"] == "running" for process in job.ps())
    assert status(Authorization=f"Bearer {token}") == 200


def test_keys_help_theme_and_the_command(site):
    page = site.open("run/first/samples?filter=step+%3D%3D+1", ".vrow .vcell")
    page.keyboard.press("?")
    page.wait_for_selector("#help")
    page.keyboard.press("Escape")
    page.wait_for_selector("#help", state="detached")
    page.locator("#bar").click()
    page.keyboard.press("t")
    page.wait_for_selector("html[data-theme]")
    page.click("#copy-command")
    page.wait_for_selector("#toast:has-text('rldbg show')")


def test_tables_and_plots_are_saved(site):
    page = site.open("run/first/step/1", "#carriers")
    with page.expect_download() as table:
        page.locator("#carriers").get_by_role("button", name="Save this table as CSV").click()
    assert table.value.suggested_filename == "first-carriers.csv"
    lines = Path(table.value.path()).read_text().splitlines()
    assert lines[0].startswith('"sample","share of loss"') and len(lines) == 17
    page = site.open("run/first/metrics", "figure svg")
    plot = page.locator("figure", has_text="rollout/abs_diff_max")
    with page.expect_download() as drawn:
        plot.get_by_role("button", name="as SVG").click()
    assert ">rollout/abs_diff_max<" in Path(drawn.value.path()).read_text()
    with page.expect_download() as image:
        plot.get_by_role("button", name="as PNG").click()
    assert Path(image.value.path()).read_bytes().startswith(b"\x89PNG")
    page = site.open("run/first/samples", ".vrow .vcell")
    page.get_by_role("button", name="Histograms").click()
    with page.expect_download() as histogram:
        page.locator("#histograms figure", has_text="reward").get_by_role("button", name="as SVG").first.click()
    assert ">reward<" in Path(histogram.value.path()).read_text()


def test_the_same_prompt_is_followed_over_steps(site):
    page = site.open("run/first/sample?step=1&sample=g0%2F1", ".flow .t")
    page.get_by_role("link", name="same prompt over steps").click()
    page.wait_for_selector("#over-steps")
    page.get_by_role("link", name="g0/1").first.click()
    page.wait_for_selector(".flow .t")


def test_keys_lead_through_the_views(site):
    page = site.open("run/first/samples?filter=step+%3D%3D+1", ".vrow .vcell")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".flow .t")
    page.keyboard.press("Escape")  # back to the table as it was
    page.wait_for_selector("#matched:text-is('16 of 160 samples')")
    page.keyboard.press("3")
    page.wait_for_selector("h1:has-text('Metrics over steps')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#kinds")
    page.keyboard.press("Escape")
    page.wait_for_selector("#runs a.name")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('second')")


# Every text whose contrast with what lies behind it is below 4.5, as WCAG AA wants it.
LOW_CONTRAST = """() => {
  const numbers = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (color) => color.slice(0, 3).map((part) => part / 255).map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)).reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) { const [r, g, b, a = 1] = numbers(getComputedStyle(at).backgroundColor); if (a) layers.unshift([r, g, b, a]); if (a === 1) break; }
    return layers.reduce((below, [r, g, b, a]) => [r, g, b].map((part, at) => part * a + below[at] * (1 - a)), [255, 255, 255]);
  };
  const low = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.checkVisibility() || element.closest("[disabled], #toast, .t.trained")) continue;
    const style = getComputedStyle(element), pair = [light(numbers(element.tagName === "text" ? style.fill : style.color)), light(behind(element))].sort((a, b) => b - a);
    if ((pair[0] + 0.05) / (pair[1] + 0.05) < 4.5) low.push(texts.currentNode.data);
  }
  return low;
}"""  # noqa: E501


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast(site, scheme):
    site.page.evaluate("() => { localStorage.clear(); delete document.documentElement.dataset.theme; }")
    site.page.emulate_media(color_scheme=scheme)
    try:
        for path, expected in {
            "": "#runs",
            "run/first": "#check .verdict",
            "run/first/samples": ".vrow .vcell",
            "run/agent/sample?step=3&sample=task-01%2F1&token=32": ".flow .t",
            "run/first/step/1": ".share",
            "run/held/weights": "#first-wrong",
            "compare?run=first&run=second": ".strip",
        }.items():
            assert site.open(path, expected).evaluate(LOW_CONTRAST) == [], path
    finally:
        site.page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("path", ["", "run/first", "run/first/samples", "run/first/sample?step=1&sample=g0%2F1"])
def test_a_narrow_window_scrolls_in_one_direction(site, path):
    site.page.set_viewport_size({"width": 400, "height": 800})
    try:
        page = site.open(path, "#runs, #check, .vrow, .flow .t")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
        assert page.evaluate("() => document.querySelector('main').scrollWidth") <= 400
    finally:
        site.page.set_viewport_size({"width": 1300, "height": 850})


@pytest.mark.parametrize("view", ["doctor", "ranks", "timeline"])
def test_on_a_phone_the_open_tab_the_verdicts_and_the_keys_are_seen(browser, server, view):
    phone = Site(browser, server)
    phone.page.set_viewport_size({"width": 390, "height": 844})

    def is_seen(selector):
        box = phone.page.locator(selector).first.bounding_box()
        return box["x"] > -1 and box["x"] + box["width"] < 391  # places are rounded

    phone.open(f"run/first/{view}", f"#tabs .on:text-is('{view.title()}')")
    until(lambda: is_seen("#tabs .on"), "the open tab is seen")
    page = phone.open("", "#runs a.name")
    assert is_seen("#runs th:text-is('check')")
    page.keyboard.press("?")
    page.wait_for_selector("dialog#help")
    assert (
        page.evaluate("(() => { const d = document.getElementById('help'); return d.scrollWidth - d.clientWidth })()")
        <= 0
    )
    page.close()
