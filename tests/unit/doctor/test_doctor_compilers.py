"""A compiler that runs and is too old is not a compiler that is missing."""

import pytest

HEAD = """(EngineCore_2 pid=77)   File "/v/lib/python3.11/site-packages/flashinfer/jit/frob.py", line 68, in build
(EngineCore_2 pid=77) RuntimeError: Ninja build failed. Ninja output:
(EngineCore_2 pid=77) FAILED: wibble.cuda.o
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nvcc fatal   : Unknown option '-split-seams=0'", "-split-seams"),
        ("nvcc fatal   : Unknown option 'diag-frob'", "diag-frob"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_131f'", "compute_131f"),
        ("nvcc fatal   : Value 'sm_131' is not defined for option 'gpu-architecture'", "sm_131"),
        ("nvcc fatal   : Value 'c++23' is not defined for option 'std'", "c++23"),
        ("ptxas fatal   : Value 'sm_131a' is not defined for option 'gpu-name'", "sm_131a"),
    ],
)
def test_what_nvcc_does_not_know_is_the_cause_and_not_the_build(verdict, line, said):
    found = verdict(
        f"{HEAD}(EngineCore_2 pid=77) {line}\n(EngineCore_2 pid=77) ninja: build stopped: subcommand failed.\n"
    )
    cause = found.root_causes[0]
    assert [cause.id for cause in found.root_causes] == ["cuda-compiler-too-old"]
    assert said in cause.words + cause.title
    assert "no C compiler" not in cause.cause


def test_a_build_that_does_not_say_why_is_not_for_want_of_a_compiler(verdict):
    found = verdict(f"{HEAD}(EngineCore_2 pid=77) ninja: build stopped: subcommand failed.\n")
    cause = found.root_causes[0]
    assert (cause.id, cause.confidence == "high") == ("triton-compile-failed", False)
    assert "no C compiler" not in cause.cause


def test_an_error_in_the_source_is_not_for_want_of_a_compiler(verdict):
    error = '/x/seam.cuh(7): error: identifier "frob_t" is undefined\n1 error detected in the compilation.\n'
    cause = verdict(f"{HEAD}{error}ninja: build stopped: subcommand failed.\n").root_causes[0]
    assert "no C compiler" not in cause.cause
