"""Runs that were appended to one log: a process takes the place of the one that opened it, or its program is started
again after a silence."""

import pytest

FULL = "ValueError: Free memory on device (3.1/15.9 GiB) on startup is less than desired GPU memory utilization (0.9)"
WARNED = "/x/lib/frob.py:3: FutureWarning: the frob is old\n  import frob\n"


def server(pid, *lines):
    opening = f"(Front pid={pid}) INFO 11-15 10:{pid}:00 [serve.py:9] frob server version 0.1\n"
    return WARNED + opening + WARNED + "".join(f"({line}\n" for line in lines)


def served(pid):
    return [f'Front pid={pid}) INFO:     127.0.0.1:5000 - "POST /v1/completions HTTP/1.1" 200 OK'] * 3


def ended(pid):
    return [f"Core pid={pid}0) ERROR 11-15 10:{pid}:09 [core.py:7] {FULL}"]


def ids(found):
    return [cause.id for cause in found.root_causes]


def test_a_server_that_was_started_again_is_judged_by_its_last_process(verdict):
    well = verdict(server(10, *ended(10)) + server(20, *served(20)))
    assert (well.verdict, well.earlier_runs) == ("healthy", 1)
    assert any("vllm-free-memory" in line for finding in well.findings for line in finding.evidence)
    failed = verdict(server(10, *served(10), *ended(10)) + server(20, *ended(20)))
    assert (ids(failed), failed.earlier_runs) == (["vllm-free-memory-below-utilization"], 1)


def test_servers_that_run_side_by_side_are_one_run(verdict):
    beside = verdict(server(10, *ended(10)) + server(20, *served(20), "Front pid=10) INFO waiting for the core"))
    assert (ids(beside), beside.earlier_runs) == (["vllm-free-memory-below-utilization"], 0)
    many = verdict(server(10) + server(20) + server(30, *ended(30)) + server(40, *served(40)))
    assert (ids(many), many.earlier_runs) == (["vllm-free-memory-below-utilization"], 0)


def test_an_actor_that_is_started_again_beside_others_begins_no_run(verdict):
    driver = "(Driver pid=5) INFO waiting for the core\n"
    found = verdict(server(10, *ended(10)) + driver + server(20, *served(20)) + driver)
    assert (ids(found), found.earlier_runs) == (["vllm-free-memory-below-utilization"], 0)


GATED = "ERROR - Failed to load the weights: You are trying to access a gated repo.\nMake sure to have access to it.\n"


def at(clock, text):
    return f"2026-11-15 {clock} - {text}"


def begun(clock):
    return at(f"{clock}:00", "INFO - the tool begins\n")


def test_a_program_that_was_started_again_after_a_silence_is_judged_by_its_last_run(verdict):
    failed = begun("10:00") + at("10:00:01", "INFO - model\n") + at("10:00:02", GATED)
    idle = begun("10:10") + at("10:10:01", "INFO - data\n")
    well = begun("10:20") + at("10:20:01", "INFO - model\n") + at("10:50:01", "INFO - saved\n")
    found = verdict(failed + idle + well)
    assert (found.verdict, found.earlier_runs) == ("healthy", 1)
    assert any("hf-access-denied" in line for finding in found.findings for line in finding.evidence)
    assert ids(verdict(idle + well + failed.replace("10:0", "12:0"))) == ["hf-access-denied"]


def test_what_fails_after_a_silence_may_be_of_a_process_that_waited_for_the_one_that_failed(verdict):
    failed = begun("10:00") + at("10:00:01", GATED)
    waited = begun("10:01") + at("10:31:00", "ERROR - torch.distributed.DistStoreError: Timed out after 1801 seconds\n")
    assert ids(verdict(failed + waited))[:1] == ["hf-access-denied"]


@pytest.mark.parametrize("next_one", ["10:00:02", "10:00:03"], ids=["at once", "after less time than it had run"])
def test_processes_that_begin_one_after_another_are_one_run(verdict, next_one):
    first = begun("10:00") + at("10:00:01", "INFO - model\n") + at("10:00:02", GATED)
    other = at(next_one, "INFO - the tool begins\n") + at("10:00:09", "INFO - data\n")
    found = verdict(first + other)
    assert (ids(found), found.earlier_runs) == (["hf-access-denied"], 0)


def test_a_line_that_is_said_from_time_to_time_begins_no_run(verdict):
    failed = begun("10:00") + at("10:00:01", "INFO - model\n") + begun("10:01") + at("10:01:01", GATED)
    for alive in (begun("10:02"), begun("10:02") + begun("10:03") + begun("10:04")):
        found = verdict(failed + alive)
        assert (ids(found), found.earlier_runs) == (["hf-access-denied"], 0)


def test_a_line_that_is_said_twice_in_a_row_begins_no_run(verdict):
    failed = begun("10:00") + at("10:00:01", "INFO - model\n") + at("10:00:30", GATED)
    alive = at("10:00:50", "INFO - the tool begins\n") + at("10:00:51", "INFO - the tool begins\n")
    found = verdict(failed + alive + at("10:00:52", "INFO - data\n"))
    assert (ids(found), found.earlier_runs) == (["hf-access-denied"], 0)
