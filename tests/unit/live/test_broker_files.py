"""What a broker keeps in the run folder is no log: `rldbg doctor` does not look for failures in it."""

import json

import pytest

from rldbg.doctor import diagnose


@pytest.mark.parametrize("name", ["breakpoints.json", "exception_holds.json"])
def test_no_failure_is_found_in_what_the_broker_keeps(tmp_path, name):
    (tmp_path / "output.log").write_text("step 1\nstep 2\n")
    before = diagnose([tmp_path]).to_dict()
    (tmp_path / name).write_text(json.dumps({"kinds": ["CUDA out of memory. Tried to allocate 2.00 GiB"]}))
    assert diagnose([tmp_path]).to_dict() == before
