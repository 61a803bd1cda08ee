"""A log that ends while a program tries again, in lines that say what they cannot reach."""

import pytest

REDIS = (
    "[2026-04-02 08:00:0{n},001 E 71 71] (gcs_server) redis_context.cc:9: Failed to connect to Redis due to: "
    "RedisError: Could not establish connection to Redis {at} (context.err = 1).. Will retry in 100ms.\n"
)
FAILED = "2026-04-02 08:00:09,084 CRITICAL node.py:10 -- Failed to start GCS. Last 3 lines of error files:\n"


def test_redis_that_ray_was_told_to_use_is_named_with_its_address(verdict):
    lines = "".join(REDIS.format(n=n, at="10.3.0.9:7001") for n in range(3))
    found = verdict(f"Local node IP: 10.3.0.4\n{FAILED}{lines}")
    assert [cause.id for cause in found.root_causes] == ["ray-redis-unreachable"]
    assert "10.3.0.9:7001" in found.headline
    assert "RAY_REDIS_ADDRESS" in found.root_causes[0].cause + "".join(found.root_causes[0].fix)


def test_redis_that_comes_up_later_is_no_failure(verdict):
    later = "[2026-04-02 08:00:12,001 I 71 71] (gcs_server) gcs_server.cc:9: GCS server started\n"
    steps = "".join(f"step:{n} - actor/pg_loss:0.1 - perf/mfu:0.3\n" for n in range(1, 6))
    found = verdict(REDIS.format(n=1, at="10.3.0.9:7001") * 2 + later + steps)
    assert (found.verdict, found.root_causes) == ("healthy", ())


@pytest.mark.parametrize(
    "line",
    [
        "ERROR frob_client.py:7 Could not reach seamd at 10.3.0.9:7001: no route to host; retrying in 2s",
        "ERROR frob_client.py:7 Failed to open the seam: wrong token. Will retry in 2s",
    ],
)
def test_a_line_that_says_why_is_not_said_to_be_silent(verdict, line):
    found = verdict("INFO start\n" + f"{line}\n" * 4)
    assert found.verdict == ("found" if "10.3.0.9:7001" in line else "unknown")
    assert "does not say why" not in found.headline
    assert "frob_client.py" in found.headline


def test_a_critical_line_above_is_told(verdict):
    line = "ERROR frob_client.py:7 Failed to open the seam. Will retry in 2s\n"
    found = verdict("2026-04-02 08:00:09,084 CRITICAL frob.py:10 -- The quilter could not start\n" + line * 4)
    assert "The quilter could not start" in found.headline + "\n".join(found.next)


STUCK = (
    "(EngineCore_DP0 pid=7) INFO 10-22 09:3{n}:49 [seam.py:466] No seam block found in 60 seconds. This happens when "
    "some processes are busy.\n"
)


@pytest.mark.parametrize(
    "end",
    [
        "".join(STUCK.format(n=n) for n in range(3)),
        "(my_task pid=7) Waiting for debugger to attach (see https://docs.ray.io)...\n",
    ],
)
def test_a_log_that_ends_while_nothing_comes_is_not_healthy(end, verdict):
    found = verdict(f"INFO start\nINFO loading\n{end}")
    assert found.verdict == "unknown"
    assert found.headline.startswith("the log ends while the program is still trying: ")


@pytest.mark.parametrize(
    "end",
    [
        STUCK.format(n=1),
        STUCK.format(n=1) + STUCK.format(n=2) + "INFO 10-22 09:39:49 [core.py:7] ready\n",
        STUCK.format(n=1) + "step:4 - loss:0.2\n" + STUCK.format(n=2),
        "INFO 10:00:00 trainer still running after 600 s\nINFO 10:10:00 trainer still running after 1200 s\n",
        "INFO 10:00:01 no requests in 60 seconds\nINFO 10:01:01 no requests in 60 seconds\n",
        "Waiting for debugger to attach\nDebugger attached\nstep:3 - loss:0.2\nstep:4 - loss:0.2\n",
    ],
)
def test_what_comes_at_last_or_is_not_needed_is_no_failure(end, verdict):
    steps = "".join(f"step:{n} - loss:0.2\n" for n in range(1, 3))
    assert verdict(f"INFO start\n{steps}{end}").verdict == "healthy"
