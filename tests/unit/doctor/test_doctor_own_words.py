"""Known failures in the words of another program, in a log that is cut, or with lines of others around them."""

import pytest

INSTALLED = "/v/lib/python3.11/site-packages"


def ids(found):
    return [cause.id for cause in found.root_causes]


def traceback(exception, *frames):
    lines = "".join(f'  File "{file}", line 7, in {function}\n    seam(frob)\n' for file, function in frames)
    head = 'Traceback (most recent call last):\n  File "/w/run.py", line 3, in <module>\n    main()\n'
    return f"{head}{lines}{exception}\n"


@pytest.mark.parametrize(
    ("exception", "answer", "title"),
    [
        (
            "RuntimeError: CUDA out of memory occurred when warming up drafter with 48 dummy requests. Try less.",
            "torch-cuda-oom",
            "warmed up the drafter with 48 requests",
        ),
        ("RuntimeError: GPU out of memory while filling the seam", "torch-cuda-oom", "out of GPU memory"),
        (
            "KeyError: \"decoder.seam.lora_a.weight from model not in state dict: ['decoder.seam.weight']\"",
            "state-dict-keys-differ",
            "has adapters (LoRA)",
        ),
        (
            "KeyError: \"decoder.seam.gate.weight from model not in state dict: ['decoder.seam.weight']\"",
            "state-dict-keys-differ",
            "Names in the checkpoint",
        ),
        (
            "ValueError: Shape mismatch for megatron param decoder.layers.3.seam.weight:",
            "weights-do-not-fit",
            "different shapes",
        ),
    ],
)
def test_other_words_for_a_known_failure_are_known(verdict, exception, answer, title):
    found = verdict(traceback(exception))
    assert (ids(found), title in found.root_causes[0].title) == ([answer], True)


def test_an_nccl_library_that_the_job_names_and_the_loader_refuses_is_told(verdict):
    fails = "(VllmWorker rank=1 pid=9) ERROR 08-02 09:00:31 [pynccl_wrapper.py:229] Failed to load NCCL library from "
    fails += "/opt/seam/libnccl.so.2. It is expected if you are not running on NVIDIA/AMD GPUs.\n"
    named = "(VllmWorker rank=1 pid=9) INFO 08-02 09:00:31 [utils.py:1] Found nccl from environment variable "
    named += "VLLM_NCCL_SO_PATH=/opt/seam/libnccl.so.2\n"
    assert ids(verdict(named + fails)) == ["vllm-nccl-library-not-loaded"]
    assert "vllm-nccl-library-not-loaded" not in ids(verdict(fails + "serving\n"))


@pytest.mark.parametrize("file", ["seam/frob/VERSION", "seam/configs/base.yaml"])
def test_a_file_that_an_installed_package_lacks_is_an_incomplete_installation(verdict, file):
    missing = f"FileNotFoundError: [Errno 2] No such file or directory: '{INSTALLED}/{file}'"
    cause = verdict(traceback(missing, (f"{INSTALLED}/seam/__init__.py", "<module>"))).root_causes[0]
    assert cause.id == "package-file-missing"
    assert "package seam is missing" in cause.title
    other = verdict(traceback("FileNotFoundError: [Errno 2] No such file or directory: '/data/seam/VERSION'"))
    assert ids(other) == ["path-missing"]


def test_batch_sizes_that_deepspeed_refuses_are_known_by_where_it_does(verdict):
    check = (f"{INSTALLED}/deepspeed/runtime/config.py", "_batch_assertion")
    assert ids(verdict(traceback("AssertionError: Check ba", check))) == ["verl-batch-not-divisible"]


def test_that_a_child_ended_has_no_candidates_but_a_place_to_look(verdict):
    found = verdict(traceback("RuntimeError: Stage 2 of the seam exited with non-zero status 3"))
    assert not any(step.startswith("possible cause") for step in found.next)
    assert any("own output says why" in step for step in found.next)


def test_where_the_linker_ran_a_compiler_is_there(verdict):
    ran = "collect2: error: ld returned 1 exit status\nninja: build stopped: subcommand failed.\n"
    failed = traceback("subprocess.CalledProcessError: Command '['ninja']' returned non-zero exit status 1.")
    linked = verdict(ran + failed).root_causes[0]
    assert (linked.id, linked.title) == ("triton-compile-failed", "A kernel was compiled and cannot be linked")
    library = verdict("/usr/bin/ld: cannot find -lseam: No such file or directory\n" + ran + failed).root_causes[0]
    assert "the library seam is not found" in library.title


def test_lines_of_others_are_no_part_of_a_message(verdict):
    other = "(seam_worker/3 pid=88) 20260404-10:47:52.251 worker ERROR: Worker met a wibble\n"
    found = verdict(traceback("RuntimeError: the frob was not stopped, limit=30.") + other)
    assert found.first_error is not None
    assert found.first_error.more == ()
    loading = "Loading from seam/frob ╸━━━━━━━━━━   2% 0:02:29 (10/426) Frob\n"
    below = "[rank0]:   Wanted: 3\n" + loading
    found = verdict("ValueError: The seam has these wibbles:\n" + below)
    assert found.first_error is not None
    assert found.first_error.message == "The seam has these wibbles: Wanted: 3"
    found = verdict("ValueError: The seam has these wibbles:\n" + "  Wanted: 3\n" + loading)
    assert found.first_error is not None
    assert "Loading" not in found.first_error.message


def test_the_frame_of_a_decorator_is_not_the_caller(verdict):
    frames = [
        (f"{INSTALLED}/wibble_hub/_deprecation.py", "inner_f"),
        (f"{INSTALLED}/seam/trainer.py", "__init__"),
    ]
    found = verdict(traceback("TypeError: Base.__init__() got an unexpected keyword argument 'frob'", *frames))
    assert "wibble_hub" not in found.root_causes[0].detail
    assert "pip show seam" in found.root_causes[0].detail
