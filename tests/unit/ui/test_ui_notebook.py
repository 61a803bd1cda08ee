"""Results and views in notebooks."""

import re

import rldbg
from rldbg.core.http import http_request
from ui_recordings import HOSTILE_GROUP, hostile, two_turns


def test_results_show_themselves_escaped(tmp_path):
    first, second = two_turns(tmp_path / "a<b>", steps=2), two_turns(tmp_path / "b", steps=2, shift=0.5)
    recording, other = rldbg.open(first), rldbg.open(second)
    assert "trajectory" in recording._repr_html_() and "a<b>" not in recording._repr_html_()
    assert "checks hold" in rldbg.check(recording)._repr_html_()
    shown = rldbg.compare(recording, other)._repr_html_()
    assert "different, first at stage" in shown and "<script" not in shown and "a<b>" not in shown


def test_a_view_is_a_frame_whose_page_answers(tmp_path):
    view = rldbg.view(rldbg.open(hostile(tmp_path / "hostile")))
    try:
        address = re.search(r'src="([^"]+)"', view._repr_html_()).group(1)
        base = address.partition("?")[0]
        page = http_request("GET", base, timeout_s=60)
        assert page.status_code == 200 and "http://localhost:*" in page.headers["content-security-policy"]
        rows = http_request("GET", f"{base}api/runs/hostile/samples", timeout_s=60).json()["rows"]
        assert rows[0][1] == HOSTILE_GROUP
    finally:
        view.close()
