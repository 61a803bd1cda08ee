"""An exception that only carries another one: what the inner one says is told, and where it was raised."""

import pytest

TRACE = 'Traceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n    seam()\n'
OF_TORCH = '  File "/v/lib/python3.11/site-packages/torch/_dynamo/output_graph.py", line 9, in _call\n    raise E(\n'


def test_what_a_compiler_raised_is_told(verdict):
    words = "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nRuntimeError: the seam has no frob\n"
    found = verdict(f"{TRACE}{OF_TORCH}{words}\nSet TORCH_LOGS='+dynamo' for more information\n")
    assert [cause.id for cause in found.root_causes] == ["torch-compile-failed"]
    assert found.headline.endswith("RuntimeError: the seam has no frob")


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("RuntimeError: Found Wibble P7 which is too old to be supported by the triton GPU compiler", "Wibble P7"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/w/torchinductor_me/ab/c.so'", "cache"),
    ],
)
def test_a_known_exception_under_a_compilers_words_is_the_cause(verdict, said, answer):
    carrier = "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:"
    found = verdict(f"{TRACE}{OF_TORCH}{carrier}\n{said}\n")
    assert answer in found.root_causes[0].title
    assert [each.id for each in found.fallout] == ["torch-compile-failed"]


@pytest.mark.parametrize(
    "words",
    [
        "seam.LaunchError: the launcher gave up. Original exception was:\nValueError: 7 wibbles do not fit\n",
        "seam.LaunchError: the launcher gave up, caused by\nValueError: 7 wibbles do not fit\n",
        "hydra.errors.InstantiationException: Error in call to target 'seam.Frob':\n"
        "ValueError('7 wibbles do not fit')\nfull_key: frob\n",
        "seam.BuildError: Error in call to target 'seam.Frob': ValueError('7 wibbles do not fit')\n",
    ],
)
def test_the_exception_in_the_message_of_another_one_is_told(verdict, words):
    found = verdict(f"{TRACE}{words}")
    assert found.root_causes == ()
    assert found.first_error is not None
    assert found.first_error.headline == "ValueError: 7 wibbles do not fit"


def test_what_an_object_of_the_configuration_raised_is_told_without_a_traceback(verdict):
    log = """Error executing job with overrides: ['a=1']
Error in call to target 'seam.Frob':
ValueError('7 wibbles do not fit')
full_key: frob

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
"""
    error = verdict(log).first_error
    assert error is not None
    assert error.headline == "ValueError: 7 wibbles do not fit"


@pytest.mark.parametrize(
    "words",
    [
        "KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n",
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 1 terminated with the following error:\n"
        "Traceback (most recent call last):\n",
    ],
)
def test_the_traceback_in_a_message_says_where_it_was_raised(verdict, words):
    inner = '  File "/w/seam.py", line 8, in __getitem__\n    return row["wibble"]\nKeyError: \'wibble\'\n'
    error = verdict(f"{TRACE}{words}{inner}").first_error
    assert error is not None
    assert (error.headline, error.frames) == ("KeyError: 'wibble'", ("/w/seam.py:8 in __getitem__",))


def test_an_assertion_without_words_carries_nothing(verdict):
    found = verdict(f"{TRACE}AssertionError: \nray.exceptions.WorkerCrashedError: The worker died unexpectedly\n")
    assert found.first_error is not None
    assert found.first_error.kind == "AssertionError"


def test_the_output_of_a_child_that_ended_says_why(verdict):
    words = "seam.WorkerFailedError: Worker 'frob/0' failed with exit code 1\nStderr output:\nFrob INFO: ready\n"
    inner = '  File "/w/seam.py", line 8, in frob\n    start()\nLookupError: 7 wibbles do not fit\n'
    error = verdict(f"{TRACE}{words}Traceback (most recent call last):\n{inner}").first_error
    assert error is not None
    assert error.headline == "LookupError: 7 wibbles do not fit"


def test_a_log_that_ends_with_an_exception_of_any_name_is_not_healthy(verdict):
    said = "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly\n"
    assert verdict(f"step 1 loss 2.0\n{said}").verdict == "unknown"
    assert verdict("step 1 loss 2.0\nseam.exceptions.FrobWarning: a wibble is old\n").verdict == "healthy"
