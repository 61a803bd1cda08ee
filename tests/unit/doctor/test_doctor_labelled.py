"""Labelled real logs: the root cause first, unknown left open, and never a wrong name when the cause's line is gone."""

import pytest
import yaml

from rldbg.doctor import diagnose
from third_party import material, needs

LOGS = material("knowledge/logs")
LABELS = sorted(LOGS.glob("*.yaml"))
pytestmark = needs(LOGS)


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
def test_without_the_lines_of_its_root_a_log_gets_its_next_true_cause_or_none(label, index, tmp_path):
    expected, log = read(label)
    lines = log.read_text(errors="replace").split("\n")
    rest = tmp_path / "rest.log"
    for _ in range(6):
        rest.write_text("\n".join(lines))
        found = diagnose([rest], index=index)
        if not found.root_causes:
            break
        first = found.root_causes[0]
        assert first.id in expected["expected_root_cause"]
        gone = {quote.line for quote in first.evidence}
        lines = [line for number, line in enumerate(lines, 1) if number not in gone]
    assert not found.root_causes
    # Of one log so many lines are gone by then that nothing is left in it but a table.
    assert found.verdict == "unknown" or label.stem.startswith("10_")


@pytest.mark.parametrize("label", LABELS, ids=lambda path: path.stem)
def test_no_single_line_of_a_log_makes_it_a_wrong_name(label, index, tmp_path):
    """Whichever line is lost, what is named is the labelled cause or nothing."""
    expected, log = read(label)
    lines = log.read_text(errors="replace").split("\n")
    told = [n for n, line in enumerate(lines) if line.strip()]
    for number in told[:: max(1, len(told) // 5)]:
        (tmp_path / "rest.log").write_text("\n".join(lines[:number] + lines[number + 1 :]))
        found = diagnose([tmp_path / "rest.log"], index=index)
        assert {cause.id for cause in found.root_causes[:1]} <= set(expected["expected_root_cause"]), number
