"""What a log itself says is told: who owns a missing symbol, NCCL's own words, the one line of an exception."""

import pytest

BINARY = "ImportError: /v/lib/python3.11/site-packages/seam/_C.abi3.so: undefined symbol: "


@pytest.mark.parametrize(
    ("symbol", "answer", "title"),
    [
        ("cuSeamCtxCreate_v2", "cuda-driver-too-old", "GPU driver"),
        ("cuTensorSeamEncode", "cuda-driver-too-old", "GPU driver"),
        ("ncclSeamWindow", "compiled-extension-abi-mismatch", "NCCL"),
        ("cudaSeamAlloc", "compiled-extension-abi-mismatch", "CUDA libraries"),
        ("__nvJitLinkSeam_12_9", "compiled-extension-abi-mismatch", "CUDA libraries"),
        ("cublasSeamGemm", "compiled-extension-abi-mismatch", "CUDA libraries"),
        ("_PySeam_Lookup", "compiled-extension-abi-mismatch", "another Python"),
        ("_ZN3c104seam9SetWibbleEab", "compiled-extension-abi-mismatch", "another torch"),
        ("_ZNK2at10TensorBase4seamEv", "compiled-extension-abi-mismatch", "another torch"),
        ("_ZN5torch3jit4seamEv", "compiled-extension-abi-mismatch", "another torch"),
        ("seam_open_table", "compiled-extension-abi-mismatch", "no loaded library has"),
    ],
)
def test_who_owns_a_missing_symbol_decides(verdict, symbol, answer, title):
    cause = verdict(f"{BINARY}{symbol}\n").root_causes[0]
    assert (cause.id, title in cause.title) == (answer, True)


@pytest.mark.parametrize(
    ("operator", "answer"),
    [
        ("c10d.reduce_scatter_.default", "dtensor-in-plain-collective"),
        ("aten.addmm.default", "dtensor-mixed-with-tensor"),
    ],
)
def test_a_collective_that_is_given_a_sharded_tensor_mixes_nothing(verdict, operator, answer):
    found = verdict(f"AssertionError: found no DeviceMesh from dtensor args for {operator}!\n")
    assert [cause.id for cause in found.root_causes] == [answer]


def test_a_package_without_a_location_need_not_be_hidden(verdict):
    cause = verdict("ImportError: cannot import name 'wibble' from 'seam' (unknown location)\n").root_causes[0]
    assert cause.id == "package-without-file"
    assert "several distributions share" in cause.cause


def test_an_exception_on_a_line_of_a_logger_is_told_beside_a_dead_engine(verdict):
    log = """(FrobWorker pid=31) ERROR 10-02 07:11:05 wibble_worker.py:90] KeyError: 'seam.7.mortar_scale'
ERROR 10-02 07:11:06 wibble_worker.py:41] Worker FrobWorker pid 31 died, exit code: -15
Process SpawnProcess-2:
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/process.py", line 314, in _bootstrap
    self.run()
  File "/w/vllm/engine/frob.py", line 76, in __init__
    self.engine = Engine(*args)
"""
    found = verdict(log)
    assert found.first_error is not None
    assert (found.first_error.headline, found.first_error.frames) == ("KeyError: 'seam.7.mortar_scale'", ())
    assert "seam.7.mortar_scale" in found.headline


def test_an_exception_whose_head_is_cut_is_not_the_program_of_a_model(verdict):
    log = """    exec(code, scope)
  File "<string>", line 3, in <module>
ValueError: the frob has no seam
Traceback (most recent call last):
  File "/w/train.py", line 1, in
"""
    assert "the frob has no seam" in verdict(log).headline


NCCL_REPORTS = "n1:52:60 [0] NCCL INFO init.cc:864 -> 2\nn1:52:60 [0] NCCL INFO group.cc:69 -> 2 [Async thread]\n"


@pytest.mark.parametrize(
    "log",
    [
        f"n1:53:61 [1] a.h:3 NCCL WARN wibble\nn1:52:60 [0] b.h:27 NCCL WARN No seam in /sys/frob\n{NCCL_REPORTS}",
        "(E pid=7) ncclInternalError: Internal check failed.\n(E pid=7) Last error:\n(E pid=7) No seam in /sys/frob\n",
        "(E pid=7) ncclSystemError: A call failed. Last error: No seam in /sys/frob\n",
    ],
)
def test_nobody_is_asked_for_words_of_nccl_that_are_in_the_log(verdict, log):
    found = verdict(log)
    assert found.verdict == "unknown"
    assert "No seam in /sys/frob" in found.headline
    assert any("No seam in /sys/frob" in step for step in found.next)
    assert not any("NCCL_DEBUG" in step for step in found.next)


def test_where_nccl_says_nothing_it_is_asked(verdict):
    assert any("NCCL_DEBUG" in step for step in verdict(NCCL_REPORTS).next)
