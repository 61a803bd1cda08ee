"""A server that was asked to end did not fail; one that ended by itself did, though it closes in the same words."""

import pytest

ASKED = "(EngineCore pid=71) INFO 11-15 10:00:00 [core.py:99] [shutdown] EngineCore: trigger received signal=SIGTERM\n"
INTERRUPTED = """Traceback (most recent call last):
  File "/opt/vllm/engine/multiprocessing/engine.py", line 300, in signal_handler
    raise KeyboardInterrupt("MQLLMEngine terminated")
KeyboardInterrupt: MQLLMEngine terminated
"""
DEAD = """(APIServer pid=70) ERROR 11-15 10:00:01 [async_llm.py:70] AsyncLLM output_handler failed.
(APIServer pid=70) ERROR 11-15 10:00:01 [async_llm.py:70] Traceback (most recent call last):
(APIServer pid=70) ERROR 11-15 10:00:01 [async_llm.py:70]   File "/opt/vllm/v1/engine/async_llm.py", line 6, in handler
(APIServer pid=70) ERROR 11-15 10:00:01 [async_llm.py:70]     outputs = await engine_core.get_output_async()
(APIServer pid=70) ERROR 11-15 10:00:01 [async_llm.py:70] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue. See stack trace (above) for the root cause.
"""
WORKER = "ERROR 11-15 10:00:01 multiproc_worker_utils.py:99] Worker VllmWorkerProcess pid 72 died, exit code: -15\n"
CLOSED = "INFO:     Shutting down\nINFO:     Application shutdown complete.\n"
SERVED = '(APIServer pid=70) INFO:     127.0.0.1:5000 - "POST /v1/completions HTTP/1.1" 200 OK\n' * 3


def test_what_a_server_reports_between_a_signal_and_its_orderly_end_is_no_failure(verdict):
    assert verdict(SERVED + ASKED + DEAD + CLOSED).verdict == "healthy"


def test_workers_that_die_of_the_signal_that_ended_their_engine_are_no_crash(verdict):
    stopped = verdict(SERVED + INTERRUPTED + WORKER + CLOSED)
    assert stopped.headline.startswith("the program was interrupted (KeyboardInterrupt")


@pytest.mark.parametrize(
    "log",
    [
        SERVED + DEAD + CLOSED,
        SERVED + DEAD + ASKED + CLOSED,
        SERVED + ASKED + DEAD,
        SERVED + ASKED + CLOSED + SERVED + DEAD + CLOSED,
    ],
    ids=["not asked", "asked afterwards", "never closed", "the server that was started next"],
)
def test_an_engine_that_died_by_itself_is_a_failure(verdict, log):
    assert verdict(log).verdict != "healthy"


LEFT = """(EngineCore_DP0 pid=55) Process EngineCore_DP0:
(EngineCore_DP0 pid=55) Traceback (most recent call last):
(EngineCore_DP0 pid=55)   File "/opt/vllm/v1/engine/core.py", line 955, in signal_handler
(EngineCore_DP0 pid=55)     raise SystemExit({code})
(EngineCore_DP0 pid=55) SystemExit{said}
"""


@pytest.mark.parametrize(
    ("code", "said", "answer"), [("", "", "healthy"), ("0", ": 0", "healthy"), ("3", ": 3", "unknown")]
)
def test_a_process_that_leaves_without_an_error_code_has_not_failed(verdict, code, said, answer):
    served = SERVED + "+ kill %1\n" + LEFT.format(code=code, said=said)
    assert verdict(served + CLOSED + "[1]+  Terminated              vllm serve frob\n").verdict == answer


RECORD = "(main_task pid=9) ERROR:2026-03-02 11:56:34,332:seam error: Cmd('sew') failed due to: exit code(128)\n"


@pytest.mark.parametrize(
    ("below", "answer"),
    [
        (
            "(main_task pid=9)   cmdline: sew --top\n(main_task pid=9) frob: Tracking seam 7\n(w pid=3) ready\n",
            "healthy",
        ),
        ("(main_task pid=9)   cmdline: sew --top\n(w pid=3) ready\n", "unknown"),
        ("(main_task pid=9) shutting down\n", "unknown"),
        ("", "unknown"),
    ],
    ids=["goes on", "only its own lines and others'", "closes", "ends"],
)
def test_an_error_after_which_its_process_goes_on_is_not_the_end_of_a_log(verdict, below, answer):
    assert verdict("(main_task pid=9) reading seams\n" + RECORD + below).verdict == answer


def test_a_refused_command_line_after_a_training_that_is_done_is_the_failure(verdict):
    done = "{'loss': 0.4, 'epoch': 2.9}\n{'train_runtime': 441.6, 'train_loss': 0.7}\n***** eval metrics *****\n"
    usage = "usage: trainer [-h] [--stage STAGE]\n               [--out OUT]\n"
    refused = verdict(done + usage + "trainer: error: the following arguments are required: --out\n")
    assert refused.root_causes[0].id == "config-value-missing"


def test_extra_keys_of_rotary_positions_are_a_warning_of_a_server_that_runs(verdict):
    extra = "(APIServer pid=70) [transformers] Unrecognized keys in `rope_parameters` for 'rope_type'='x': {'frob'}\n"
    assert verdict(extra + SERVED).verdict == "healthy"
    assert verdict(extra + ASKED).verdict == "healthy"
