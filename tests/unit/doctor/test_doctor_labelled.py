"""Labelled real logs: the root cause first, unknown left open, and never a wrong name when the cause's line is gone."""

from pathlib import Path

import pytest
import yaml

from rldbg.doctor import Library, SearchIndex, diagnose
from rldbg.doctor.entries import Role

LOGS = Path(__file__).parents[4] / "shared" / "knowledge" / "logs"
LABELS = sorted(LOGS.glob("*.yaml")) if LOGS.is_dir() else []
pytestmark = pytest.mark.skipif(not LABELS, reason="the labelled logs are not here")


@pytest.fixture(scope="module")
def index():
    return SearchIndex(Library.load())


def read(label):
    return yaml.safe_load(label.read_text()), label.with_suffix(".log")


@pytest.mark.parametrize("label", LABELS, ids=lambda path: path.stem)
def test_the_root_cause_comes_first_and_unknown_stays_open(label, index):
    expected, log = read(label)
    found = diagnose([log], index=index)
    ids = [cause.id for cause in found.root_causes]
    if "unknown" in expected["expected_root_cause"]:
        assert (found.verdict, ids) == ("unknown", [])
        assert found.next
    else:
        assert found.verdict == "found"
        assert ids[0] in expected["expected_root_cause"]
        assert found.root_causes[0].evidence[0].line > 0
    assert set(expected.get("expected_symptoms") or ()) <= {cause.id for cause in found.fallout}
    assert not set(expected.get("decoys") or ()) & set(ids)


@pytest.mark.parametrize("label", LABELS, ids=lambda path: path.stem)
def test_without_the_line_of_its_root_no_log_gets_a_wrong_name(label, index, tmp_path):
    expected, log = read(label)
    allowed = {*expected["expected_root_cause"], *(expected.get("expected_symptoms") or ())}
    lines = log.read_text(errors="replace").split("\n")
    for _ in range(6):
        rest = tmp_path / "rest.log"
        rest.write_text("\n".join(lines))
        found = diagnose([rest], index=index)
        if not found.root_causes:
            break
        first = found.root_causes[0]
        assert first.id in allowed
        assert first.id in expected["expected_root_cause"] or index.library[first.id].role is Role.EITHER
        gone = {quote.line for quote in first.evidence}
        lines = [line for number, line in enumerate(lines, 1) if number not in gone]
    assert not found.root_causes
