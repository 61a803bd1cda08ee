"""What exceptions say about a run, as a sentence."""

from dataclasses import replace

import pytest

from rldbg.doctor import diagnose
from rldbg.doctor.answer.specifics import specifics
from rldbg.doctor.logs.cleaning import Speaker
from rldbg.doctor.logs.evidence import Failure, LogPlace

PLACE = LogPlace("x.log", 1, 0, Speaker(), None)
BELOW = "/v/lib/python3.11/site-packages/frob/core.py:7 in make"
ABOVE = "/v/lib/python3.11/site-packages/quilt/sew.py:3 in sew"
OWN = "/home/u/train.py:9 in main"


@pytest.mark.parametrize(
    ("headline", "frames", "words"),
    [
        (
            "TypeError: make() got an unexpected keyword argument 'seam'",
            (OWN, ABOVE, BELOW),
            ("does not take the argument seam", "frob at frob/core.py:7", "called by quilt", "pip show quilt frob"),
        ),
        (
            "TypeError: make() missing 1 required positional argument: 'size'",
            (OWN,),
            ("make() needs 'size'", "your code at /home/u/train.py:9"),
        ),
        (
            "ImportError: cannot import name 'Seam' from 'frob.core' (/v/frob/core.py)",
            (OWN, ABOVE),
            ("frob.core has no Seam", "quilt asks for it", "pip show frob quilt"),
        ),
        (
            "AttributeError: module 'frob' has no attribute 'bfloat4'",
            (OWN,),
            ("frob has no bfloat4", "your code asks for it"),
        ),
        (
            "ModuleNotFoundError: No module named 'frob.old.pool'",
            (BELOW, ABOVE),
            ("frob has no module old.pool", "quilt asks for it"),
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
            "79.11 GiB of which 1.02 GiB is free. Process 11 has 40.00 GiB memory in use. Of the allocated memory "
            "30.22 GiB is allocated by PyTorch, and 3.31 GiB is reserved by PyTorch but unallocated.",
            (),
            (
                "2.00 GiB were asked for on GPU 1, 1.02 GiB of its 79.11 GiB",
                "process 11 holds 40.00 GiB",
                "30.22 GiB in",
            ),
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacity of "
            "39.49 GiB of which 119.38 MiB is free. Including non-PyTorch memory, this process has 8.38 GiB memory in "
            "use.",
            (),
            ("other processes, which the message does not name, hold about 31.0 GiB",),
        ),
        (
            "ConnectionRefusedError: [Errno 111] Connect call failed ('127.0.0.1', 8000)",
            (),
            ("port 8000 of this node itself",),
        ),
        (
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x896 and 1024x8)",
            (),
            ("896 columns", "1024 rows"),
        ),
    ],
)
def test_the_sentence_says_whose_call_how_much_and_where(headline, frames, words):
    kind, _, message = headline.partition(": ")
    said = specifics(Failure(kind, message, PLACE, frames))
    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize(
    "headline",
    ["ValueError: bad seam", "AttributeError: 'NoneType' object has no attribute 'shape'", "KeyError: 'seam'"],
)
def test_what_says_no_more_than_its_words_has_no_sentence(headline):
    kind, _, message = headline.partition(": ")
    assert specifics(Failure(kind, message, PLACE, (OWN,))) == ""


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_what_nccl_says_is_shown_although_no_entry_knows_it(prefix, tmp_path, index):
    lines = (
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, invalid argument, NCCL version 2.14.3",
        "ncclInvalidArgument: Invalid value for an argument.",
        "Last error:",
        "Invalid config seam attribute value -7",
    )
    log = tmp_path / "train.log"
    log.write_text("".join(f"{prefix}{line}\n" for line in lines))
    found = diagnose([log], index=index)
    assert found.verdict == "unknown"
    assert found.headline.endswith(
        "NCCL reports an error: NCCL's last error is: Invalid config seam attribute value -7"
    )
    assert not any("/dev/shm" in step for step in found.next)


def test_a_cause_of_low_confidence_is_called_likely(tmp_path, index):
    log = tmp_path / "train.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    found = diagnose([log], index=index)
    assert found.headline.startswith("root cause: PyTorch ran out of GPU memory")
    unsure = replace(found, root_causes=(replace(found.root_causes[0], confidence="low"),))
    assert unsure.headline.startswith("likely cause: PyTorch ran out of GPU memory")


SHUTS_DOWN = "CRITICAL 04-08 04:00:01 [core_client.py:361] Got fatal signal from worker processes, shutting down.\n"
MISSING = """Traceback (most recent call last):
  File "/v/lib/python3.11/site-packages/vllm/v1/engine/core.py", line 9, in run
    import seam
ModuleNotFoundError: No module named 'seam'
"""
SERVED = 'INFO:     10.0.0.2:33952 - "POST /v1/completions HTTP/1.1" 200 OK\n'


@pytest.mark.parametrize(("between", "verdict"), [("", "healthy"), (SHUTS_DOWN, "found")])
def test_a_server_whose_engine_has_ended_has_not_gone_on(between, verdict, tmp_path, index):
    log = tmp_path / "server.log"
    log.write_text(MISSING + between + SERVED * 3)
    assert diagnose([log], index=index).verdict == verdict


def test_what_the_program_goes_on_without_is_no_cause(tmp_path, index):
    line = "[2026-06-09 03:34:35] Failed to load: /m does not appear to have a file named generation_config.json."
    log = tmp_path / "server.log"
    log.write_text(f"{line}\n")
    alone = diagnose([log], index=index)
    log.write_text(f"{line} Proceeding without generation config.\n")
    assert alone.verdict == "found" and diagnose([log], index=index).verdict == "healthy"


def test_an_interrupted_program_has_not_failed(tmp_path, index):
    log = tmp_path / "train.log"
    log.write_text(MISSING.replace("ModuleNotFoundError: No module named 'seam'", "KeyboardInterrupt"))
    assert diagnose([log], index=index).headline.startswith("the program was interrupted (KeyboardInterrupt")


def test_the_signal_behind_an_exit_code_is_named(tmp_path, index):
    log = tmp_path / "train.log"
    log.write_text(
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -7) local_rank: 0 (pid: 5406) of "
        "binary: /usr/bin/python3\n"
    )
    assert "exit code -7 is signal 7 (SIGBUS)" in diagnose([log], index=index).headline
