import io
import json

from rich.console import Console

from rldbg.core import Finding, Severity, by_severity, worst
from rldbg.reports.findings import to_terminal

BAD = Finding(
    "truncated-file", Severity.ERROR, "loss/x.pt", ("size <b>", "[red]not markup[/red]"), "killed", ("rerun",)
)
ODD = Finding("odd", Severity.INFO, "here")


def test_json_round_trip_keeps_the_documented_keys():
    data = json.loads(json.dumps(BAD.to_dict()))
    assert list(data) == ["id", "severity", "where", "evidence", "cause", "fix"]
    assert Finding.from_dict(data) == BAD


def test_worst_comes_first_and_none_means_healthy():
    assert by_severity([ODD, BAD]) == [BAD, ODD]
    assert worst([ODD, BAD]) is Severity.ERROR
    assert worst([]) is None


def test_html_escapes_what_files_say():
    page = BAD._repr_html_()
    assert "size &lt;b&gt;" in page and "<b>" not in page and "[red]not markup[/red]" in page


def test_terminal_shows_text_from_files_as_text():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(to_terminal([ODD, BAD]))
    text = console.export_text()
    assert text.index("truncated-file") < text.index("odd")
    assert "[red]not markup[/red]" in text and "→ rerun" in text
