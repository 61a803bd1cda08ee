"""What ended the program of a run is its failure; what others raised before, and it went on after, is told below."""

import json

import pytest

from rldbg.doctor import diagnose

OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1 GiB is free."


@pytest.fixture
def run(tmp_path, index):
    """The diagnosis of a run whose processes left these crash files."""

    def diagnosed(*crashes, log=""):
        (tmp_path / "run.json").write_text(json.dumps({"exit_code": 1, "ended_at": 9.0, "hosts": []}))
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "output.log").write_text(log)
        (tmp_path / "crashes").mkdir()
        for number, record in enumerate(crashes):
            # The names are in another order than the events: no rule may need them.
            (tmp_path / "crashes" / f"{9 - number}-{record['who']['role']}.json").write_text(json.dumps(record))
        return diagnose([tmp_path], index=index)

    return diagnosed


def crash(kind, message, *, at, pid, where="process", role="main", parents=(1,), facts=None, function="step", more=()):
    who = {
        "role": role,
        "rank": None,
        "host": "h",
        "pid": pid,
        "ancestors": list(parents),
        "kind": "process",
        "ray": {},
    }
    frames = [{"file": f"/w/{role}.py", "line": 7, "function": function}]
    if where == "process":
        frames.append({"file": f"/w/{role}.py", "line": 90, "function": "<module>"})
    chain = [(kind, message, "raised"), *more]
    return {
        "who": who | (facts or {}),
        "time": 1_700_000_000.0 + at,
        "thread": "MainThread",
        "where": where,
        "step": None,
        "exceptions": [
            {"type": k, "module": "builtins", "message": m, "relation": relation, "frames": frames}
            for k, m, relation in chain
        ],
    }


def child(message="bad answer of sample 7", kind="ValueError", at=0.0, pid=12):
    return crash(kind, message, at=at, pid=pid, where="child", role="grader", parents=(10, 1))


def actor(kind, message, at, pid):
    facts = {"kind": "actor", "ray": {"class": "Rollout"}, "host": f"node-{pid}"}
    return crash(kind, message, at=at, pid=pid, where="task", role="rollout", parents=(3, 1), facts=facts)


def driver(kind, message, at, more=()):
    facts = {"kind": "driver", "ray": {"cluster": "h:1"}}
    return crash(kind, message, at=at, pid=10, role="driver", facts=facts, more=more)


def passed_on(words):
    return f'\x1b[36mray::Rollout.step()\x1b[39m (pid=13, ip=1.2.3.4)\n  File "/w/r.py", line 7, in step\n{words}'


LOG = """\
Process ForkProcess-1:
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/process.py", line 314, in _bootstrap
    self.run()
  File "/w/grader.py", line 7, in step
    raise ValueError('bad answer of sample 7')
ValueError: bad answer of sample 7
Traceback (most recent call last):
  File "/w/main.py", line 90, in <module>
    step()
  File "/w/main.py", line 7, in step
    raise RuntimeError('fatal loss is nan')
RuntimeError: fatal loss is nan
"""


def test_an_exception_of_a_child_that_its_parent_went_on_after_is_not_where_the_failure_begins(run):
    found = run(child(), crash("RuntimeError", "fatal loss is nan", at=2.5, pid=10), log=LOG)

    told = found.first_error or found.root_causes[0]
    assert "fatal loss is nan" in found.headline + str(told) and "bad answer" not in found.headline
    (earlier,) = [finding for finding in found.findings if finding.id == "raised-earlier"]
    assert "ValueError: bad answer of sample 7" in earlier.evidence[0] and "grader pid 12" in earlier.evidence[0]


@pytest.mark.parametrize("words", ["RuntimeError: fatal", "ValueError: this reward is wrong"])
def test_what_a_driver_had_handled_is_not_the_cause_of_what_another_actor_ended_it_with(run, words):
    kind, _, message = words.partition(": ")
    found = run(
        driver(f"RayTaskError({kind})", passed_on(words), at=20.1),
        actor("KeyError", "'async'", at=0.0, pid=12),
        actor(kind, message, at=20.0, pid=13),
    )

    assert message in found.headline and "async" not in found.headline
    assert [finding.id for finding in found.findings] == ["raised-earlier"]


def test_a_known_failure_that_was_handled_is_not_the_cause_either(run):
    found = run(child(OOM, "OutOfMemoryError"), crash("ValueError", "the reward of step 3 is wrong", at=5.0, pid=10))

    assert not found.root_causes or found.root_causes[0].id != "torch-cuda-oom"
    assert "the reward of step 3" in found.headline
    assert any("CUDA out of memory" in line for finding in found.findings for line in finding.evidence)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(crash("RuntimeError", "grader exited with code 1", at=9.0, pid=10), id="speaks of its end"),
        pytest.param(crash("Empty", "", at=60.0, pid=10), id="waited in vain for its answer"),
        pytest.param(crash("AssertionError", "", at=9.0, pid=10), id="says nothing"),
        pytest.param(crash("ConnectionResetError", "[Errno 104]", at=9.0, pid=10), id="is gone"),
        pytest.param(crash("RuntimeError", "NCCL communicator was aborted", at=9.0, pid=10), id="a collective with it"),
        pytest.param(crash("LookupError", "no score for this one", at=0.2, pid=10), id="right after it"),
        pytest.param(crash("LookupError", "no score for this one", at=9.0, pid=11), id="of another program"),
        pytest.param(crash("LookupError", "no such log file", at=9.0, pid=10, function="shutdown"), id="while closing"),
        pytest.param(
            crash(
                "SystemError", "it is over", at=9.0, pid=10, more=[("ValueError", "bad answer of sample 7", "cause")]
            ),
            id="chained",
        ),
    ],
)
def test_an_end_that_can_follow_from_what_another_process_raised_leaves_that_the_cause(run, end):
    found = run(child(), end)

    assert "bad answer of sample 7" in found.headline
    assert not any(finding.id == "raised-earlier" for finding in found.findings)


@pytest.mark.parametrize(
    "end",
    [
        driver("RayTaskError(KeyError)", passed_on("KeyError: 'async'"), at=20.0),
        driver("ActorDiedError", "The actor died unexpectedly before finishing this task.", at=20.0),
        driver("RayTaskError(RuntimeError)", passed_on("RuntimeError: Connection closed by peer"), at=20.0),
    ],
)
def test_what_a_driver_ended_by_stays_the_cause(run, end):
    found = run(end, actor("KeyError", "'async'", at=0.0, pid=12))

    assert "async" in found.headline
    assert not any(finding.id == "raised-earlier" for finding in found.findings)


def launcher(at):
    """What torchrun raises once a rank has failed."""
    return crash("ChildFailedError", "\n=====\nseam.py FAILED\n", at=at, pid=10, role="launcher")


def test_a_launchers_report_of_a_crash_is_no_failure_beside_it(run):
    found = run(child(), launcher(at=0.4))
    assert "bad answer of sample 7" in found.root_causes[0].words
    assert (len(found.root_causes), found.fallout, found.read_files) == (1, (), 2)


def test_a_launchers_report_of_a_rank_without_a_crash_file_is_read(run):
    found = run(launcher(at=0.4))
    assert (found.verdict, found.read_files) == ("unknown", 2)
