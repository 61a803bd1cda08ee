"""A compiler that crashed or was killed while it built a kernel, and other commands whose exit code is a signal."""

import pytest

BUILD = (
    "Traceback (most recent call last):\n"
    '  File "/v/lib/python3.12/site-packages/torch/utils/cpp_extension.py", line 2506, in _run_ninja_build\n'
    "    subprocess.run(\n"
    "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status {status}.\n"
    "[2/7] {command} -gencode=arch=compute_100a,code=sm_100a -c /root/.cache/quilt/fold_kernel_7/fold.cu -o fold.o\n"
    "FAILED: [code={status}] fold.o\n"
)
NVCC = "/usr/local/cuda-12.9/bin/nvcc"


def test_a_compiler_that_crashes_is_named_with_its_release_and_the_kernel(verdict):
    found = verdict(BUILD.format(status=139, command=NVCC))
    cause = found.root_causes[0]
    assert (cause.id, cause.confidence) == ("compiler-crashed", "high")
    assert "nvcc of CUDA 12.9 (/usr/local/cuda-12.9/bin/nvcc) ended by signal 11 (SIGSEGV)" in cause.detail
    assert "fold_kernel_7/fold.cu for sm_100a" in cause.detail
    assert "Compile with another release than nvcc of CUDA 12.9" in cause.fix[0]
    assert cause.fix[1].endswith("rm -rf /root/.cache/quilt/fold_kernel_7")


def test_a_compiler_that_is_killed_had_no_memory(verdict):
    cause = verdict(BUILD.format(status=137, command=NVCC)).root_causes[0]
    assert "most likely for lack of memory" in cause.title
    assert "SIGKILL" in cause.detail
    assert "MAX_JOBS" in cause.fix[0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nvcc error   : 'ptxas' died due to signal 11 (Invalid memory reference)", "ptxas ended by signal 11"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "cc1plus ended by signal 9"),
    ],
)
def test_tools_of_a_compiler_are_named(verdict, line, words):
    found = verdict(f"building the seam extension\n{line}\n")
    assert found.root_causes[0].id == "compiler-crashed"
    assert words in found.root_causes[0].detail


@pytest.mark.parametrize("status", [1, 2, 130, 143, 255])
def test_errors_in_the_code_and_interruptions_are_no_crash_of_the_compiler(verdict, status):
    found = verdict(BUILD.format(status=status, command=NVCC))
    assert all(cause.id != "compiler-crashed" for cause in found.root_causes)


def test_the_signal_in_the_exit_code_of_any_command_is_told(verdict):
    found = verdict(
        "Traceback (most recent call last):\n"
        '  File "/w/prepare.py", line 3, in <module>\n'
        "    subprocess.run(['quilt', 'pack'], check=True)\n"
        "subprocess.CalledProcessError: Command '['quilt', 'pack']' returned non-zero exit status 135.\n"
    )
    assert any("signal 7 (SIGBUS)" in step for step in found.next)
