"""The words of every known failure, in lines that do not say that it happened: none of them becomes a cause."""

import pytest

from rldbg.doctor import diagnose
from rldbg.doctor.knowledge.patterns import SignaturePattern
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.verdict.bystanders import FROM_OUTSIDE

END = """Traceback (most recent call last):
  File "/home/u/train.py", line 30, in <module>
    main()
  File "/home/u/quilts.py", line 7, in quilt
    raise PatchworkError("seam 3 was sewn twice")
quilts.PatchworkError: seam 3 was sewn twice
"""
PLANTS = {
    "a warning": "WARNING 11-15 10:00:02 [worker.py:77] {line}",
    "a warning of Python's logging": "2026-11-15 10:00:02,123 - root - WARNING - {line}",
    "a warning behind a prefix of Ray": "(WorkerDict pid=33) WARNING:root:{line}",
    "a warning with a field for its level": 'time="2026-11-15T10:00:02" level=warning msg={line}',
    "an information": "[2026-11-15 10:00:02,123][trainer][INFO] - done: {line}",
    "a setting": "Config(note={line!r}, lr=0.1)",
    "a setting in a mapping": "           'note': {line!r},",
    "a prompt": "(TaskRunner pid=3) [prompt] What does {line} mean?",
    "a response": "(TaskRunner pid=3) [response] Hm\n(TaskRunner pid=3) says {line}\n(TaskRunner pid=3) [score] 0.5",
    "a text with the marks of a chat": "<|im_start|>user {line}",
}


@pytest.fixture(scope="module")
def lines(index):
    """One line of each wording; not of those whose programs report them as a warning or with a setting's name."""
    patterns = {id(p): p for found in index.patterns for p in found if isinstance(p, SignaturePattern)}
    told = [p for p in patterns.values() if not (p.in_warnings or p.in_information or p.in_settings)]
    first = [p.signature.examples[0].strip().split("\n")[0] for p in told]
    return [line for line in first if '"' not in line or "'" not in line]


@pytest.mark.parametrize("plant", PLANTS)
def test_words_of_failures_that_did_not_happen_are_no_cause(plant, lines, index, tmp_path):
    assert len(lines) > 450
    log = tmp_path / "planted.log"
    planted = "\n".join(PLANTS[plant].format(line=line) for line in lines)
    log.write_text(f"loading\n{planted}\nINFO 11-15 10:00:09 [engine.py:12] idle\n")
    found = diagnose([log], index=index)
    assert (found.verdict, [cause.id for cause in found.root_causes]) == ("healthy", [])
    log.write_text(f"loading\n{planted}\nINFO 11-15 10:00:09 [engine.py:12] idle\n{END}")
    found = diagnose([log], index=index)
    assert (found.verdict, found.root_causes) == ("unknown", ())
    assert found.first_error.kind == "quilts.PatchworkError"


def test_a_failure_that_the_program_went_on_after_is_a_candidate_only(index, lines, tmp_path):
    """Whatever is printed well before the exception that ended the program, unless it strikes from outside."""
    log = tmp_path / "planted.log"
    outside = {entry.id for entry in index.library.entries.values() if entry.category in FROM_OUTSIDE}
    told = [line for line in lines if not (clean(line).speaker.known or outside.intersection(index.known(line)))]
    assert len(told) > 350
    for at in range(0, len(told), 20):
        log.write_text("loading\n" + "\n".join(told[at : at + 20]) + "\nbatch ready" * 20 + "\n" + END)
        assert [cause.id for cause in diagnose([log], index=index).root_causes] == []


def test_a_bystander_is_named_as_a_candidate_with_its_place(index, tmp_path):
    log = tmp_path / "planted.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n" + "batch\n" * 20 + END)
    found = diagnose([log], index=index)
    assert found.first_error.kind == "quilts.PatchworkError"
    assert any("(torch-cuda-oom); " in step and "planted.log:1" in step for step in found.next)
