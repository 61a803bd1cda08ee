"""A crash in native code is told by what its stack says that the process was doing."""

import pytest

LIB = "/v/lib/python3.11/site-packages"
MODULE = f'  File "{LIB}/torch/nn/modules/module.py", line 1562 in _call_impl'


def faulthandler(signal, *frames, prefix="(Critic pid=9) "):
    rows = [f"Fatal Python error: {signal}", "", "Current thread 0x00007f (most recent call first):", *frames]
    return "".join(f"{prefix}{row}\n" for row in rows)


def frame(file, function, line=40):
    return f'  File "{LIB}/{file}", line {line} in {function}'


GEMM = faulthandler(
    "Floating point exception",
    frame("torch/nn/functional.py", "linear"),
    frame("torch/nn/modules/linear.py", "forward"),
    MODULE,
    frame("transformers/models/m/modeling_m.py", "forward"),
)


def test_an_arithmetic_trap_in_a_matrix_product_is_about_the_library_of_it(verdict):
    found = verdict(GEMM)
    cause = found.root_causes[0]
    assert (cause.id, cause.confidence) == ("native-crash-at-work", "medium")
    assert "matrix product (likely cuBLAS)" in cause.title
    assert "linear (nn/functional.py:40)" in cause.detail
    assert "nothing about the dtypes" in cause.detail
    assert "nvidia-cublas" in cause.fix[0]


@pytest.mark.parametrize(
    "text", ["Floating point exception (core dumped)\n", "Fatal Python error: Floating point exception\n"]
)
def test_the_name_of_a_signal_resembles_no_cause(verdict, text):
    found = verdict(text)
    assert found.verdict == "unknown"
    assert not any("dtype" in step or "weight of integers" in step for step in found.next)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (
            [frame("torch/serialization.py", "write_record"), frame("torch/serialization.py", "_save")],
            "wrote a checkpoint",
        ),
        ([frame("safetensors/torch.py", "load_file")], "read weights"),
        ([frame("triton/backends/nvidia/compiler.py", "make_llir")], "compiled a kernel"),
        ([frame("vllm/distributed/device_communicators/pynccl.py", "all_reduce")], "in a collective (NCCL)"),
        ([frame("torch/nn/modules/conv.py", "_conv_forward"), MODULE], "in a convolution (cuDNN)"),
        ([frame("flash_attn/flash_attn_interface.py", "_flash_attn_forward")], "in an attention kernel"),
        ([frame("PIL/ImageFile.py", "load"), frame("torch/utils/data/_utils/fetch.py", "fetch")], "loaded data"),
        ([frame("deepspeed/ops/adam/cpu_adam.py", "step")], "in a step of the optimizer"),
    ],
)
def test_the_innermost_frames_tell_the_activity(verdict, frames, words):
    found = verdict(faulthandler("Segmentation fault", *frames))
    assert words in found.root_causes[0].title
    assert found.root_causes[0].confidence != "high"


def test_native_stacks_tell_it_too(verdict):
    rows = (
        "!!!!!!! Segfault encountered !!!!!!!",
        '  File "./signal/../sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c", line 0, in 0x00007fed7cfcb51f',
        '  File "<unknown>", line 0, in caffe2::serialize::PyTorchStreamReader::getRecord(std::string const&)',
    )
    assert "read weights" in verdict("\n".join(rows) + "\n").root_causes[0].title


def test_only_the_thread_that_crashed_counts(verdict):
    other = ["Thread 0x00007e (most recent call first):", frame("torch/nn/functional.py", "linear"), ""]
    rows = ["Fatal Python error: Segmentation fault", "", *other, "Current thread 0x00007f (most recent call first):"]
    rows.append('  File "/w/own.py", line 3 in main')
    assert verdict("\n".join(rows) + "\n").verdict == "unknown"


@pytest.mark.parametrize(
    "text",
    [
        faulthandler(
            "Segmentation fault", frame("torch/cuda/__init__.py", "synchronize"), frame("x/linear.py", "forward")
        ),
        faulthandler("Aborted", frame("torch/nn/functional.py", "linear")),
        faulthandler(
            "Segmentation fault", frame("torch/nn/functional.py", "linear"), frame("a/b.py", "_exit_function")
        ),
    ],
)
def test_stacks_that_do_not_tell_leave_it_open(verdict, text):
    assert verdict(text).verdict == "unknown"


def test_what_explains_a_crash_comes_first(verdict):
    asleep = (
        'INFO: 10.0.0.1:1 - "POST /sleep HTTP/1.1" 200 OK\n'
        'INFO: 10.0.0.1:1 - "POST /update_weights_from_tensor HTTP/1.1" 200 OK\n'
    )
    crash = faulthandler("Segmentation fault", frame("torch/nn/functional.py", "linear"), prefix="")
    assert verdict(asleep + crash).root_causes[0].id == "engine-used-while-asleep"


def test_a_crash_that_training_outlived_is_none(verdict):
    steps = "".join(f"(Trainer pid=3) step {n} loss 0.3\n" for n in range(1, 9))
    assert verdict(GEMM + steps).verdict == "healthy"
