"""How often the doctor is right on what is no entry's example, and that it is never wrong there."""

from pathlib import Path

import pytest
import yaml

from rldbg.doctor import diagnose

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
CASES = yaml.load((Path(__file__).parent / "unseen.yaml").read_text(encoding="utf-8"), LOADER)


@pytest.fixture(scope="module")
def examples(library):
    return {
        example.strip()
        for entry in library.entries.values()
        for signature in entry.signatures
        for example in signature.examples
    }


def test_what_is_no_example_is_named_right_or_left_open(index, examples, tmp_path):
    wrong = {}
    for case in CASES:
        assert not examples.intersection(line.strip() for line in case["log"].split("\n")), case["name"]
        (tmp_path / "unseen.log").write_text(case["log"])
        found = diagnose([tmp_path / "unseen.log"], index=index)
        answer = found.root_causes[0].id if found.root_causes else found.verdict
        if answer not in case["answer"]:
            wrong[case["name"]] = answer
    assert not wrong
    assert len(CASES) >= 100
