"""Every view of `rldbg ui` over what other frameworks wrote: it is drawn, or it says what is missing."""

import pytest
from ui_site import CHROMIUM, Site, opened_browser, served

from third_party import material, needs

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
FIXTURES = material("fixtures")
VIEWS = ("metrics", "mismatch", "weights", "template", "ranks", "timeline", "memory", "doctor")
DRAWN = "main h1, main h2, main .card, main .empty"


@needs(FIXTURES)
def test_every_view_of_other_frameworks_recordings():
    names = ("verl/exp_proj", "trl/completions", "nexrl/self_hosted_pt", "slime")
    with served(*(FIXTURES / name for name in names)) as url, opened_browser() as browser:
        site = Site(browser, url)
        failures = []
        site.page.on("pageerror", lambda error: failures.append(str(error)))
        site.page.wait_for_selector(f"#runs a.name >> nth={len(names) - 1}")
        for run in site.page.locator("#runs a.name").all_inner_texts():
            for view in VIEWS:
                page = site.open(f"run/{run}/{view}", DRAWN)
                page.wait_for_function("document.querySelector('main').innerText.trim().length > 20")
                shown = page.inner_text("main")
                assert "[object" not in shown and "undefined" not in shown and "Traceback" not in shown, (
                    run,
                    view,
                    shown,
                )
                wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert wide <= 0, (run, view)
        assert (failures, site.elsewhere) == ([], [])
