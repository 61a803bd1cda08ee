"""Many processes, one story: order, cascades, context, survival, long logs, and when to say unknown."""

import random
from zlib import crc32

import pytest

from rldbg.doctor import diagnose

from .logs import healthy_lines


@pytest.fixture
def verdict(tmp_path, index):
    """Diagnoses texts, each one a log of its own."""

    def run(*texts, **options):
        folder = tmp_path / f"case{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for number, text in enumerate(texts):
            (folder / f"log{number}.txt").write_text(text if isinstance(text, str) else "\n".join(text))
        return diagnose([folder], index=index, **options)

    return run


def ids(found):
    return [cause.id for cause in found.root_causes]


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB."
WATCHDOG = (
    "[rank{rank}]:[E1115 {time}.000000000 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=26, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600007 ms."
)
DIED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."


def test_fallout_is_folded_under_its_cause_across_files(verdict):
    found = verdict(
        [WATCHDOG.format(rank=rank, time="10:20:00") for rank in range(3)],
        ["2026-11-15 10:09:58,000 ERROR " + OOM],
        [DIED],
    )
    assert ids(found) == ["torch-cuda-oom"]
    assert [cause.id for cause in found.fallout] == ["nccl-watchdog-timeout", "ray-actor-died"]
    assert found.root_causes[0].evidence[0].file.endswith("log1.txt")


def test_a_head_that_is_too_slow_is_not_one_on_the_wrong_network(verdict):
    slow = "node.py:438 -- Failed to get node info b'RPC error: Deadline Exceeded'"
    timeout = "Exception: The current node timed out during startup."
    assert ids(verdict([slow, timeout])) == []
    assert ids(verdict(["Local node IP: 172.17.0.3", slow, timeout])) == ["ray-raylet-wrong-nic"]


def test_a_cause_that_came_after_the_trouble_is_not_its_cause(verdict):
    found = verdict(
        ["[2026-11-15 10:00:00,000 E 1 1] " + WATCHDOG.format(rank=0, time="10:00:00")],
        ["2026-11-15 11:30:00,000 ERROR Message: port: 6379, name: EADDRINUSE, message: address already in use"],
    )
    assert ids(found) == ["port-in-use"]
    assert "nccl-watchdog-timeout" in [cause.id for cause in found.fallout]


def test_stamps_without_a_year_are_of_the_year_that_the_logs_state(verdict):
    """glog writes none: taken from the file's date, the cause would come years after its fallout."""
    found = verdict(
        [
            "2024-07-10 15:24:06,387 INFO worker.py:1771 -- Started a local Ray instance.",
            "E0710 15:24:06.605366961 2474524 thd.cc:157]    pthread_create failed: Resource temporarily unavailable",
            "[2024-07-10 15:24:06,819 E 24 24] core_worker.cc:251: Failed to register worker 01ff to Raylet. IOError",
        ]
    )
    assert ids(found) == ["os-thread-limit"]
    apart = verdict(["[2024-07-10 15:24:08,000 E 1 1] " + DIED], ["E0710 15:24:06.600000000 7 thd.cc:157] " + OOM])
    assert (ids(apart), [cause.id for cause in apart.fallout]) == (["torch-cuda-oom"], ["ray-actor-died"])


def test_a_year_that_no_log_states_is_not_shown(verdict):
    wait = "[E1115 10:20:00.100000000 ProcessGroupNCCL.cpp:1] [Rank 0] Watchdog caught collective operation timeout: "
    work = "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600000 milliseconds before timing out."
    steps = " ".join(verdict([wait + work]).next)
    assert " 11-15 10:10:00" in steps
    assert "-11-15" not in steps
    assert "2024-11-15 10:10:00" in " ".join(verdict(["2024-11-15 10:00:00,000 INFO on", wait + work]).next)


def test_only_symptoms_means_unknown_with_places_to_look(verdict):
    found = verdict([WATCHDOG.format(rank=3, time="10:20:00"), DIED])
    assert found.verdict == "unknown"
    assert ids(found) == []
    assert any("11-15 10:10:00" in step for step in found.next), found.next


def test_the_rank_that_fell_silent_is_named(verdict):
    talk = [f"2026-11-15 10:{minute:02d}:00,000 INFO working" for minute in range(20)]
    found = verdict(
        [*talk, WATCHDOG.format(rank=0, time="10:20:00")],
        talk[:11],
        [*talk, WATCHDOG.format(rank=2, time="10:20:00")],
    )
    assert any("log1.txt" in step and "10:10:00" in step for step in found.next), found.next


def test_an_unknown_exception_is_shown_with_its_traceback_and_not_renamed(verdict):
    found = verdict(
        [
            "(WorkerDict pid=11, ip=10.0.0.3) Traceback (most recent call last):",
            '(WorkerDict pid=11, ip=10.0.0.3)   File "/app/mixture.py", line 12, in weigh',
            "(WorkerDict pid=12, ip=10.0.0.4) INFO still here",
            "(WorkerDict pid=11, ip=10.0.0.3)     return table[answer]",
            "(WorkerDict pid=11, ip=10.0.0.3) KeyError: 'forty-two'",
            DIED,
        ]
    )
    assert found.verdict == "unknown"
    assert found.first_error.headline == "KeyError: 'forty-two'"
    assert found.first_error.frames == ("/app/mixture.py:12 in weigh",)
    assert found.first_error.place.speaker.pid == "11"


def test_an_exception_of_the_reward_function_is_named_by_where_it_was_raised(verdict):
    found = verdict(
        [
            "(WorkerDict pid=11) Traceback (most recent call last):",
            '(WorkerDict pid=11)   File "/app/train.py", line 80, in fit',
            '(WorkerDict pid=11)   File "/app/my_reward.py", line 12, in score',
            "(WorkerDict pid=11) KeyError: 'forty-two'",
            DIED,
        ]
    )
    assert [cause.id for cause in found.root_causes] == ["reward-function-failed"]
    assert found.root_causes[0].confidence == "medium"
    assert "KeyError: 'forty-two'" in found.root_causes[0].evidence[0].text


def test_what_may_be_either_is_fallout_of_an_earlier_unknown_exception(verdict):
    traceback = [
        "Traceback (most recent call last):",
        '  File "/app/env.py", line 3, in step',
        "ZeroDivisionError: division",
    ]
    illegal = ["RuntimeError: CUDA error: an illegal memory access was encountered"]
    assert ids(verdict(illegal)) == ["illegal-memory-access"]
    assert verdict(["... lines ..."] * 30 + illegal).root_causes[0].confidence == "medium"
    found = verdict([*traceback, *["filler"] * 30, *illegal])
    assert found.verdict == "unknown"
    assert found.first_error.kind == "ZeroDivisionError"


def test_advice_is_not_evidence(verdict):
    found = verdict(
        [
            DIED,
            "Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, "
            "(2) ray stop --force was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another error.",
            "If you see `CUDA out of memory. Tried to allocate` please lower the batch size.",
            "This may be caused by: Address already in use",
        ]
    )
    assert found.verdict == "unknown"
    assert ids(found) == []


def test_source_code_in_a_traceback_is_not_evidence(verdict):
    found = verdict(
        [
            "Traceback (most recent call last):",
            '  File "/app/a.py", line 3, in run',
            '    raise RuntimeError("CUDA out of memory. Tried to allocate " + size)',
            "ValueError: bad size",
        ]
    )
    assert ids(found) == []
    assert found.first_error.headline == "ValueError: bad size"


def test_the_name_of_a_test_is_not_evidence(verdict):
    found = verdict(
        [
            "t/test_a.py::test_c[transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'] PASSED [ 9%]",
            "0.02s call     tests/unit/test_a.py::test_words[RuntimeError: No CUDA GPUs are available]",
            "[gw1] [ 12%] PASSED tests/unit/test_a.py::test_words[ValueError: anything]",
            "============ 178 passed, 21 deselected in 36.75s ============",
        ]
    )
    assert (found.verdict, found.fallout) == ("healthy", ())


def test_what_training_survived_is_not_the_cause(verdict):
    before = [f"(TaskRunner pid=1) step:{step} - actor/loss:0.1" for step in range(1, 6)]
    after = [f"(TaskRunner pid=1) step:{step} - actor/loss:0.1" for step in range(6, 30)]
    assert verdict([*before, OOM, *after]).verdict == "healthy"
    found = verdict(
        [*before, OOM, *after, "ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda", DIED]
    )
    assert ids(found) == ["compiled-extension-abi-mismatch"]
    assert [note.id for note in found.notes] == ["torch-cuda-oom"]


@pytest.mark.parametrize(
    "aside",
    [
        "run.sh: line 3: nvidia-smi: command not found",
        "PermissionError: [Errno 13] Permission denied: '/root/.cache/x'",
        "Installed CUDA version 12.2 does not match the version torch was compiled with 12.1 but since the APIs are "
        "compatible, accepting this combination",
    ],
)
def test_what_may_be_harmless_gives_way_to_a_cause(verdict, aside):
    assert ids(verdict([aside, "loading", OOM, DIED])) == ["torch-cuda-oom"]


def test_what_came_before_the_first_step_was_survived_too(verdict):
    taken = "OSError: [Errno 98] Address already in use"
    steps = [f"step:{step} - loss:0.1" for step in range(1, 5)]
    settings = ["save_steps: 500", "logging_steps: 10", "max_steps: 1000"]
    assert ids(verdict([taken, *steps, OOM])) == ["torch-cuda-oom"]
    assert ids(verdict([taken, *settings])) == ["port-in-use"]


@pytest.mark.parametrize(
    ("lines", "headline"),
    [
        (["Exception: the bare one"], "Exception: the bare one"),
        (["some.package.OddlyNamedError: why"], "some.package.OddlyNamedError: why"),
        (["RuntimeError: ", "   on the next line"], "RuntimeError: on the next line"),
        (
            ["Traceback (most recent call last):", '  File "a.py", line 3, in f', "    g()", "lib.errors.NoSuffix: x"],
            "lib.errors.NoSuffix: x",
        ),
    ],
)
def test_an_exception_without_an_entry_is_shown_however_it_is_named(verdict, lines, headline):
    found = verdict(["step:1", *lines])
    assert (found.verdict, found.first_error.headline) == ("unknown", headline)


@pytest.mark.parametrize(
    ("line", "context", "expected"),
    [
        ("transport/nvls.cc:254 NCCL WARN Cuda failure 1 'invalid argument'", "", ["nccl-nvls-invalid-argument"]),
        (
            "NCCL WARN Cuda failure 'invalid argument'",
            "worker.recv_tensor(src) P2P transfer",
            ["nccl-invalid-arg-stale-ray"],
        ),
        (
            "NCCL WARN Cuda failure 'invalid argument'",
            "engine.update_weights_from_tensor()",
            ["nccl-invalid-arg-placement"],
        ),
        ("NCCL WARN Cuda failure 'invalid argument'", "", []),
        (
            "misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'",
            "misc/shmutils.cc:114 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Nz (size 9637888)",
            ["nccl-shm-too-small"],
        ),
    ],
)
def test_invalid_argument_is_told_apart_by_its_context(verdict, line, context, expected):
    found = verdict([context, line])
    assert ids(found) == expected
    assert found.verdict == ("found" if expected else "unknown")


def test_a_checkpoint_is_blamed_only_when_the_waiting_began_with_it(verdict):
    wait = WATCHDOG.format(rank=1, time="10:30:00")
    assert ids(verdict(["2026-11-15 10:19:40,000 INFO Saving latest checkpoint model", wait])) == [
        "nccl-slow-checkpoint"
    ]
    assert ids(verdict(["2026-11-15 08:00:00,000 INFO Saving latest checkpoint model", wait])) == []


def test_memory_is_called_fragmented_only_when_the_numbers_say_so(verdict):
    line = (
        "CUDA out of memory. Tried to allocate {} GiB. 60 GiB is in use, and {} is reserved by PyTorch but unallocated."
    )
    assert ids(verdict([line.format(1, "12.1 GiB")])) == ["cuda-fragmentation"]
    assert ids(verdict([line.format(8, "700 MiB")])) == ["torch-cuda-oom"]
    free = (
        "CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has 79 GiB of which {} is free, "
        "and 9 GiB is reserved by PyTorch but unallocated."
    )
    assert ids(verdict([free.format("1 GiB")])) == ["cuda-fragmentation"]
    assert ids(verdict([free.format("60 GiB")])) == ["torch-cuda-oom"]


def noisy_logs(tmp_path, index, seed, count):
    rng = random.Random(seed)
    lines = healthy_lines(count, seed=seed)
    lines += ["(WorkerDict pid=4003, ip=10.0.0.3) [2026-11-15 10:59:00,000 E 1 1] " + OOM]
    lines += [line for line in healthy_lines(400, seed=seed + 9) if "step:" not in line and "Progress" not in line]
    lines += [WATCHDOG.format(rank=rank, time="11:10:00") for rank in range(64)] + [DIED] * 20
    files = [[] for _ in range(8)]
    for line in lines:
        files[rng.randrange(8) if rng.random() < 0.01 else crc32(line[:30].encode()) % 8].append(line)
    rng.shuffle(files)
    for number, content in enumerate(files):
        raw = "\n".join(content).encode()
        if number == 2:
            raw = raw[: len(raw) - 7]
        if number == 3:
            raw += bytes(rng.randrange(256) for _ in range(5000))
        (tmp_path / f"worker{number}.log").write_bytes(raw)
    return ids(diagnose([tmp_path], index=index))


def test_a_long_noisy_log_keeps_its_verdict(tmp_path, index):
    assert noisy_logs(tmp_path, index, 0, 5_000) == ["torch-cuda-oom"]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_very_long_noisy_logs_keep_their_verdict(tmp_path, index, seed):
    assert noisy_logs(tmp_path, index, seed, 100_000) == ["torch-cuda-oom"]


@pytest.mark.soak
def test_a_gigabyte_of_healthy_logs_gives_no_finding(tmp_path, index):
    log = tmp_path / "run.log"
    with log.open("w") as stream:
        for seed in range(100):
            text = "\n".join(healthy_lines(20_000, seed=seed)) + "\n"
            for _ in range(6):
                stream.write(text)
    assert log.stat().st_size > 10**9
    found = diagnose([log], index=index)
    assert (found.verdict, ids(found), found.fallout, found.notes) == ("healthy", [], (), ())


def test_healthy_logs_give_no_finding(tmp_path, index):
    (tmp_path / "run.log").write_text("\n".join(healthy_lines(4_000, seed=5)))
    found = diagnose([tmp_path], index=index)
    assert (found.verdict, ids(found), found.fallout, found.notes) == ("healthy", [], (), ())


def test_the_exception_under_a_header_of_a_symptom_is_named(verdict):
    found = verdict(
        "[2026-11-15 10:00:10 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/opt/sglang/srt/managers/scheduler.py", line 2700, in run_scheduler_process\n'
        "    scheduler.event_loop_overlap()\n"
        '  File "/opt/sglang/srt/managers/schedule_batch.py", line 12, in prepare\n'
        "    x = table[key]\n"
        "KeyError: 'foo_bar'\n"
    )
    assert [(cause.id, cause.confidence) for cause in found.root_causes] == [("engine-unhandled-case", "low")]
    assert found.first_error is not None and found.next, "whose code it is does not say why"
    assert found.first_error.headline == "KeyError: 'foo_bar'"


@pytest.mark.parametrize(
    "line",
    [
        "[W1115 10:00:00 socket.cpp:464] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
        "(raylet) WARNING: The object store is using /tmp instead of /dev/shm because /dev/shm has only 6710 bytes.",
        "UserWarning: flex_attention called without torch.compile() - this will use an unfused implementation",
        "W1115 10:00:05 158 torch/_dynamo/convert_frame.py:1551] [2/8] torch._dynamo hit config.recompile_limit (8)",
        "16:42:23 WARNING Inference server was not reached after 50 seconds (Error: All connection attempts failed)",
        "[Gloo] Rank 1 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1",
        "[W1115 10:00:00 socket.cpp:697] [c10d] The client socket has failed to connect to [localhost]:29500 "
        "(errno: 99 - Cannot assign requested address).",
    ],
)
def test_warnings_of_a_run_that_goes_on_are_no_failure(verdict, line):
    steps = [f"step:{number} - actor/loss:0.{9 - number}" for number in (1, 2, 3)]
    assert verdict([line, *steps]).verdict == "healthy"


def test_what_stands_under_nccl_s_last_error_is_the_cause(verdict):
    found = verdict(
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: /torch/csrc/distributed/c10d/NCCLUtils.cpp:77, "
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n"
        "[rank0]: ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "[rank0]: Last error:\n"
        "[rank0]: Cuda failure 2 'out of memory'\n"
    )
    assert ids(found) == ["nccl-out-of-memory"]


@pytest.mark.parametrize(
    ("exit_code", "expected"), [(None, "healthy"), (0, "healthy"), (130, "healthy"), (3, "unknown")]
)
def test_a_command_that_failed_without_a_word_is_not_healthy(verdict, exit_code, expected):
    found = verdict("epoch 1\ndone\n", exit_code=exit_code)
    assert found.verdict == expected
    assert [step for step in found.next if "exit code 3" in step] == list(found.next)


@pytest.mark.parametrize(
    ("exit_code", "name", "look"), [(137, "SIGKILL", "oom"), (143, "SIGTERM", "sacct"), (-11, "SIGSEGV", "core")]
)
def test_a_command_that_a_signal_ended_is_told_who_may_have_sent_it(verdict, exit_code, name, look):
    told = [step for step in verdict("epoch 1\n", exit_code=exit_code).next if name in step]
    assert len(told) == 1 and look in told[0]


def test_an_open_cause_has_candidates_with_what_would_confirm_them(verdict, library):
    found = verdict(["(Runner pid=3) generate_sequences of step 7", WATCHDOG.format(rank=0, time="10:20:00")])
    candidates = [step for step in found.next if step.startswith("possible cause: ")]
    assert found.verdict == "unknown" and candidates
    known = library["nccl-watchdog-timeout"].downstream_of
    assert all(any(f"({name}); " in step for name in known) and "confirm" in step for step in candidates)
    usual = [step for step in verdict([DIED]).next if step.startswith("possible cause: ")]
    suspects = [name for name in library["ray-actor-died"].suspects if not library[name].traces]
    for name, step in zip(suspects, usual, strict=True):  # anything can cause it
        assert f"({name}); " in step


def test_a_duration_that_is_no_timeout_gives_no_time(verdict):
    engine = "RuntimeError: Engine core initialization failed. See root cause above. "
    found = verdict(
        [f"2026-11-15 10:10:00,000 ERROR {engine}It ran for 300000 milliseconds, healthy within 60 seconds"]
    )
    assert found.verdict == "unknown"
    assert not any("10:05:00" in step or "10:09:00" in step for step in found.next)


XID = "NVRM: Xid (PCI:0000:3b:00): {number}, pid=4242, name=python, Ch 00000008"


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [((79, 45), ["gpu-xid"]), ((94, 45, 45), ["gpu-xid"]), ((31, 45), ["illegal-memory-access"]), ((45,), [])],
)
def test_xid_45_is_read_by_the_xid_before_it(verdict, numbers, expected):
    found = verdict([XID.format(number=number) for number in numbers], exit_code=1)
    assert ids(found) == expected
    if expected:
        assert f": {numbers[0]}," in found.root_causes[0].evidence[0].text


@pytest.mark.parametrize("number", [43, 45])
def test_xid_43_or_45_alone_is_a_failure_whose_cause_is_open(verdict, number):
    found = verdict([XID.format(number=number)])
    assert found.verdict == "unknown"
    assert any("dmesg" in step for step in found.next)
    assert any(step.startswith("possible cause: ") for step in found.next)


def test_the_output_of_two_processes_that_crash_at_once_is_no_health(verdict):
    garbled = 'Traceback (most recent call last):\n    x = f["a"],    x = f["a"],\n\nKeyErrorKeyError: : \'a\'\n'
    found = verdict("loading\n" + garbled)
    assert found.verdict == "unknown"
    assert found.first_error.headline == "KeyError: 'a'"


def test_an_unknown_exception_has_the_known_causes_that_it_resembles(verdict):
    found = verdict("RuntimeError: attention heads (28) leave a remainder over tensor parallel size 8\n")
    assert found.verdict == "unknown" and found.first_error is not None
    assert any(step.startswith("possible cause: ") and "(tp-not-divisible); " in step for step in found.next)
    silent = verdict("ZeroDivisionError: division by zero\n").next
    assert not any(step.startswith("possible cause") for step in silent), "nothing known resembles it"


def test_a_symptom_alone_is_told_in_the_headline(verdict):
    found = verdict("TimeoutError: server launch failed\n")
    assert found.headline.endswith("only: An inference server does not answer")


def test_a_line_that_does_not_count_hides_no_exception_that_has_it_in_its_traceback(verdict):
    found = verdict(
        [
            "Saving checkpoint at step 10",
            "[rank0]: Traceback (most recent call last):",
            '[rank0]:   File "/home/u/loop.py", line 9, in main',
            "[rank0]:     engine.save_checkpoint(folder)",
            '[rank0]:   File "/x/site-packages/shardlib/engine.py", line 3505, in save_checkpoint',
            "[rank0]:     first = groups[0]",
            "[rank0]: IndexError: list index out of range",
        ]
    )
    assert found.verdict == "found"
    assert ids(found) == ["checkpoint-operation-failed"]


def test_an_unknown_exception_is_read_for_whose_code_failed_and_what_to_try(verdict):
    found = verdict(
        [
            "Traceback (most recent call last):",
            '  File "/home/u/train.py", line 12, in main',
            "    mixer.blend(batch)",
            '  File "/x/site-packages/odd_mixer/core.py", line 77, in blend',
            "    return table[name]",
            "KeyError: 'left_hand'",
        ]
    )
    assert found.verdict == "unknown"
    steps = "\n".join(found.next)
    assert "raised by odd_mixer at /x/site-packages/odd_mixer/core.py:77 in blend" in steps
    assert "your code called it at /home/u/train.py:12 in main" in steps
    assert "print the keys that are there" in steps
    assert "search the issues of odd_mixer for: \"KeyError 'left_hand'\"" in steps


def test_an_exception_without_its_traceback_says_where_that_may_be(verdict):
    found = verdict("FrobError: the frob of 12 does not fit\n")
    assert found.verdict == "unknown"
    assert any("its traceback is not in these logs" in step for step in found.next)
    assert any(
        'search the issues of the program that raised it for: "FrobError the frob' in step for step in found.next
    )


def test_attempts_that_were_all_in_vain_are_a_failure(verdict):
    found = verdict("(RolloutManager pid=9) http.py:186 - Max retries (60) reached, failing...\n")
    assert found.verdict == "unknown"
    assert [cause.id for cause in found.fallout] == ["requests-given-up"]
    assert any("server's own log" in step for step in found.next)


def test_what_ray_warns_of_as_a_possibility_is_no_failure(verdict):
    found = verdict(
        "[2026-11-17 14:18:28,521 W 26793 26793] actor_manager.cc:110: Failed to look up actor with name 'policy/0'. "
        "This could because 1. You are trying to look up a named actor you didn't create. 2. The named actor died.\n"
    )
    assert found.verdict == "healthy"


def test_what_is_raised_as_an_object_is_removed_is_no_failure(verdict):
    found = verdict(
        [
            "{'train_runtime': 101.2, 'train_loss': 0.002, 'epoch': 1.0}",
            "Exception ignored in: <function Tracker.__del__ at 0x7f2b>",
            "Traceback (most recent call last):",
            '  File "/usr/lib/python3.12/multiprocessing/resource_tracker.py", line 86, in _stop',
            "ChildProcessError: [Errno 10] No child processes",
        ]
    )
    assert found.verdict == "healthy"


def test_a_family_about_settings_needs_a_message_that_names_one(verdict):
    found = verdict(
        [
            "Traceback (most recent call last):",
            '  File "/x/vllm/engine/arg_utils.py", line 12, in create_engine_config',
            "    self.check()",
            '  File "/x/vllm/config/other.py", line 9, in check',
            "    raise NotImplementedError",
            "NotImplementedError",
        ]
    )
    assert "engine-setting-invalid" not in ids(found)


def test_a_log_that_ends_with_an_error_is_not_healthy(verdict):
    errors = [
        "E0417 19:46:42.567027   481 far_client.cpp:192] the segment was not mounted",
        "2026-11-15 10:00:00,123 ERROR far.py:7 -- the segment was not mounted",
    ]
    for line in errors:
        found = verdict(["all is well", line])
        assert found.verdict == "unknown"
        assert found.first_error is not None
        assert "not mounted" in found.first_error.message
        assert verdict([line, "step 1", "step 2", "step 3", "step 4"]).verdict == "healthy"
        assert verdict([line, "Max number of steps has been reached, stopping training early"]).verdict == "healthy"


STORE_GONE = (
    "[rank3]:[W1023 09:29:42.993 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=70, addr=[10.0.0.4]:49752, "
    "remote=[10.0.0.3]:29500): Connection reset by peer\n"
    "Exception raised from recvBytes at /pytorch/torch/csrc/distributed/c10d/Utils.hpp:675 (most recent call first):\n"
    "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f8ef0 in /usr/lib/libc10.so)\n"
)
STEPS = "step:41 - actor/loss:0.012\nstep:42 - actor/loss:0.011\n"


def test_a_log_that_ends_with_a_lost_store_is_healthy_only_when_all_steps_are_done(verdict):
    assert verdict(STEPS + STORE_GONE).verdict == "unknown"
    assert "rank 0" in verdict(STEPS + STORE_GONE).next[0]
    assert verdict(STEPS + STORE_GONE + "step:43 - a\nstep:44 - a\n").verdict == "healthy"
    assert verdict([STEPS + "{'train_runtime': 7.1}\n", STEPS + STORE_GONE]).verdict == "healthy"


OWN_PLACE = "/opt/conda/envs/verl/lib/python3.10/site-packages"
UNREADABLE = (
    "2025-08-01 03:51:14,796 ERROR serialization.py:533 -- Failed to unpickle serialized exception\n"
    "Traceback (most recent call last):\n"
    f'  File "{OWN_PLACE}/ray/exceptions.py", line 50, in from_ray_exception\n'
    "    return pickle.loads(ray_exception.serialized_exception)\n"
    "TypeError: QuotaStatusError.__init__() missing 2 required keyword-only arguments: 'response' and 'body'\n\n"
    "The above exception was the direct cause of the following exception:\n\n"
    "Traceback (most recent call last):\n"
    f'  File "{OWN_PLACE}/ray/exceptions.py", line 53, in from_ray_exception\n'
    "    raise RuntimeError(msg) from e\n"
)


def test_an_exception_raised_while_a_known_one_was_handled_is_not_a_second_failure(verdict):
    found = verdict(UNREADABLE)
    assert (found.verdict, found.first_error) == ("unknown", None)
    assert [each.id for each in found.fallout] == ["ray-exception-unreadable"]


def test_an_environment_called_like_a_framework_is_not_its_code(verdict):
    trace = f'Traceback (most recent call last):\n  File "{OWN_PLACE}/other/thing.py", line 5, in do\n    do()\n'
    assert not verdict(trace + "KeyError: 7\n").root_causes
    inside = trace.replace("other/thing", "verl/thing")
    assert verdict(inside + "KeyError: 7\n").root_causes[0].id == "key-not-there"


@pytest.mark.parametrize(
    ("code", "headline"),
    [
        ("assert blocks_left > 0", "AssertionError: assert blocks_left > 0"),
        ('raise WeirdError("no blocks are left")', "WeirdError: no blocks are left"),
        ("raise value", "traceback without its last line"),
    ],
)
def test_a_traceback_that_was_cut_says_what_its_last_code_says(verdict, code, headline):
    trace = f'Traceback (most recent call last):\n  File "/w/mine/pool.py", line 5, in take\n    {code}\n    ^^^^^\n'
    found = verdict(trace)
    assert found.first_error.headline == headline
    cut = any("the log ends before the exception's own line" in step for step in found.next)
    assert cut == headline.startswith("traceback") and not any("issues of" in step for step in found.next if cut)


def test_a_ray_driver_that_finds_an_old_address_is_told_so(verdict):
    frames = '  File "python/ray/includes/global_state_accessor.pxi", line 279, in ray._raylet.GlobalStateAccessor.x\n'
    error = "RuntimeError: b'RPC Error message: Deadline Exceeded; RPC Error details: '\n"
    (found,) = verdict(f"Traceback (most recent call last):\n{frames}{error}").root_causes
    assert found.id == "ray-gcs-unreachable" and "No Ray head answers" in found.title


@pytest.mark.parametrize(
    "line", ["launcher: error: nothing to start", "fatal: no such place", "*** MPI_ERRORS_ARE_FATAL (processes abort)"]
)
def test_a_log_that_ends_with_an_error_of_a_program_is_not_healthy(verdict, line):
    assert verdict(f"starting\n{line}\n").verdict == "unknown"
    assert verdict(f"{line}\n" + "going on\n" * 5).verdict == "healthy"


def test_an_exception_before_a_possible_consequence_is_the_beginning_also_without_frames(verdict):
    later = "torch._dynamo.exc.InternalTorchDynamoError: RuntimeError: it broke\n"
    found = verdict("ValueError: the colour is wrong\n" + "closing a file\n" * 12 + later)
    assert verdict(later).root_causes and not found.root_causes
    assert found.first_error.headline == "ValueError: the colour is wrong"


def test_a_native_crash_is_said_with_its_place_and_without_engines_that_the_log_never_names(verdict):
    crash = "*** SIGSEGV received at time=1741149596 on cpu 63 ***\n"
    place = "PC: @     0x7f60b5a3c7be  (unknown)  ray::gcs::Accessor::Add()\n"
    found = verdict(crash + place)
    assert "crashed in ray::gcs::Accessor::Add" in found.next[0]
    assert not any("(vllm-" in step for step in found.next)
    assert "that the native stack names first" in verdict(crash).next[0]


HANDLED = """Traceback (most recent call last):
  File "/x/site-packages/trl/extras.py", line 4, in try_fast_path
    return engine.warm_up()
AttributeError: 'FrobEngine' object has no attribute 'warm_up'
going on without the fast path
"""
UNCAUGHT = """Traceback (most recent call last):
  File "/w/mine/train.py", line 80, in <module>
    main()
  File "/w/mine/mixer.py", line 12, in blend
    return table[name]
WeirdError: the colour is wrong
"""


def test_what_was_caught_is_no_verdict_when_the_program_died_later_of_something_else(verdict):
    assert ids(verdict(HANDLED)) == ["interface-mismatch"]
    found = verdict(HANDLED + UNCAUGHT)
    assert ids(found) == []
    assert found.first_error.headline == "WeirdError: the colour is wrong"


ODD_TYPE = """Traceback (most recent call last):
  File "/w/mine/sandbox.py", line 5, in {function}
    return 1 + answer
TypeError: unsupported operand type(s) for +: 'int' and 'dict'
"""


def test_the_kind_of_an_exception_is_a_verdict_only_for_what_ended_the_run(verdict):
    assert ids(verdict(ODD_TYPE.format(function="run"))) == ["value-of-another-type"]
    assert ids(verdict(ODD_TYPE.format(function="run") + "step:1 - loss:0.1\nstep:7 - loss:0.1\n")) == []
    assert ids(verdict(ODD_TYPE.format(function="_shutdown_workers"))) == []
    assert ids(verdict(ODD_TYPE.format(function="run") + UNCAUGHT)) == []


def test_a_kind_that_would_only_repeat_the_exception_is_a_verdict_in_a_frameworks_code_only(verdict):
    trace = 'Traceback (most recent call last):\n  File "/w/{place}.py", line 5, in take\n    do()\n{error}\n'
    error = "AttributeError: 'NoneType' object has no attribute 'shape'"
    own = verdict(trace.format(place="mine/pool", error=error))
    assert own.verdict == "unknown" and any("the one that is None is made" in step for step in own.next)
    theirs = verdict(trace.format(place="slime/pool", error=error))
    assert [(cause.id, cause.confidence) for cause in theirs.root_causes] == [("value-is-none", "low")]
    assert theirs.first_error is not None and theirs.first_error.headline == error


def test_the_place_nearest_to_where_it_was_raised_names_the_family(verdict):
    frames = '  File "/x/checkpoint.py", line 8, in load_checkpoint\n    load()\n'
    inner = '  File "/x/megatron_bridge/model_bridge.py", line 9, in convert\n    go()\n'
    head, error = "Traceback (most recent call last):\n", "AttributeError: 'NoneType' object has no attribute 'rule'\n"
    assert ids(verdict(head + frames + inner + error)) == ["weights-conversion-failed"]
    assert ids(verdict(head + inner + frames + error)) == ["checkpoint-operation-failed"]


def test_a_refused_order_of_steps_is_not_called_a_refusal_of_weights(verdict):
    trace = 'Traceback (most recent call last):\n  File "/x/worker.py", line 5, in update_weights\n    raise\n'
    assert ids(verdict(trace + "RuntimeError: begin must be called before update_weights\n")) == ["steps-out-of-order"]
    assert ids(verdict(trace + "KeyError: 'layers.3.mlp.w13_weight'\n")) == ["weights-refused"]
    assert ids(verdict(trace + "RuntimeError: the engine has other work to do\n")) == ["weight-sync-failed"]


def test_gradient_checkpointing_and_the_engine_of_weights_are_no_checkpoints_on_disk(verdict):
    trace = 'Traceback (most recent call last):\n  File "{}", line 5, in {}\n    raise\nIndexError: no frob at 7\n'
    assert ids(verdict(trace.format("/w/verl/utils/checkpoint_manager.py", "save"))) == ["checkpoint-operation-failed"]
    for file in ("torch/utils/checkpoint.py", "deepspeed/runtime/activation_checkpointing/checkpointing.py"):
        assert "checkpoint-operation-failed" not in ids(verdict(trace.format(f"/v/site-packages/{file}", "run")))
    assert ids(verdict(trace.format("/w/verl/checkpoint_engine/base.py", "send"))) == ["weight-sync-failed"]


def test_what_the_logs_warn_of_is_a_candidate_when_the_cause_is_open(verdict):
    full = "/tmp/ray/session_2026-01-01_00-00-00_0_1 is over 95% full, available space: 2 GB; capacity: 70 GB."
    assert verdict(full + "\n").verdict == "healthy"
    crashed = verdict(full + "\n/lib/libstdc++.so.6(+0xb1) [0x7f] __cxxabiv1::__terminate()\n")
    assert crashed.verdict == "unknown"
    assert any("ray-disk-nearly-full" in step and "warns of it" in step for step in crashed.next)


def test_late_output_of_workers_after_the_end_of_the_program_is_no_going_on(verdict):
    ended = ["Error executing job with overrides: ['a=1']", OOM, "step 1", "step 2", "step 3", "step 4"]
    assert ids(verdict(ended)) == ["torch-cuda-oom"]
    assert verdict(ended[1:]).verdict == "healthy"


def test_the_month_of_may_is_no_supposition(verdict):
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1201, name=python, GPU has fallen off the bus."
    assert ids(verdict(["[Mon May  5 10:00:00 2026] " + xid])) == ["gpu-xid"]
    assert ids(verdict(["This may be caused by " + xid])) == []


def test_the_line_under_an_exception_without_a_message_is_not_its_message(verdict):
    trace = ["Traceback (most recent call last):", '  File "/w/t.py", line 3, in <module>', "    fit()"]
    assert verdict([*trace, "FrobError", "step 1 reward 0.2"]).first_error.headline == "FrobError"
    assert verdict([*trace, "FrobError:", "no frob fits"]).first_error.headline == "FrobError: no frob fits"


def test_what_is_raised_as_an_object_is_removed_counts_for_no_entry(verdict):
    removed = [
        "Exception ignored in: <function Context.__del__ at 0x7>",
        "Traceback (most recent call last):",
        '  File "/v/robosuite/egl.py", line 16, in __del__',
        "    self.free()",
        "AttributeError: 'NoneType' object has no attribute 'eglQueryString'",
    ]
    assert verdict(["step 1", *removed]).notes == ()
    assert ids(verdict(removed[1:])) == ["egl-no-display"]


def test_the_report_of_a_crash_is_not_where_a_failure_begins(verdict):
    crash = "terminate called after throwing an instance of 'c10::DistBackendError'"
    watchdogs = [WATCHDOG.format(rank=rank, time="10:20:00") for rank in (0, 2, 5)]
    found = verdict([*watchdogs, crash])
    assert found.first_error is None
    assert any("ranks 0, 2, 5 waited in ALLREDUCE number 26" in step for step in found.next), found.next
    assert verdict([crash]).first_error is not None


def test_an_attribute_that_a_package_alone_lacks_is_no_question_of_releases(verdict):
    found = verdict(
        [
            "Traceback (most recent call last):",
            '  File "/v/lib/python3.12/site-packages/frob/base.py", line 139, in get_logprobs',
            "    with self.use_reference():",
            '  File "/v/lib/python3.12/site-packages/frob/worker.py", line 546, in use_reference',
            "    self.reference.items()",
            "AttributeError: 'PolicyWorker' object has no attribute 'reference'",
        ]
    )
    assert "did not run with these settings" in found.root_causes[0].detail


def test_the_symptom_that_brings_about_the_others_is_told(verdict):
    found = verdict(
        ["ERROR EngineCore encountered a fatal error.", "RuntimeError: CUDA error: device-side assert triggered"]
    )
    assert [cause.id for cause in found.fallout] == ["device-side-assert", "vllm-engine-dead"]


def test_code_whose_file_is_only_called_like_checkpoints_loads_and_saves_none(verdict):
    trace = (
        'Traceback (most recent call last):\n  File "/w/eval_checkpoint.py", line 5, in {}\n    x()\nIndexError: no 7\n'
    )
    assert "checkpoint-operation-failed" not in ids(verdict(trace.format("evaluate")))
    assert ids(verdict(trace.format("load_model"))) == ["checkpoint-operation-failed"]


KILLED = [
    "[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer",
    "E1118 03:01:00.330000 28401 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) "
    "local_rank: 1 (pid: 28524) of binary: /usr/bin/python",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
]


def test_a_killed_rank_is_told_before_the_connections_that_it_closed(verdict):
    found = verdict(KILLED)
    assert found.verdict == "unknown" and found.fallout[0].id == "process-killed"
    assert "only: Local rank 1 (process 28524) was killed from outside (signal 9)" in found.headline
    # AND nothing is suspected of a program that the log never names
    assert not any("ray-" in step for step in found.next)
    assert any("ray-" in step for step in verdict(KILLED, DIED).next)


def trace(*frames, raised):
    """A traceback with frames written `file function`, the innermost last."""
    called = ('  File "{}", line 9, in {}\n    go()\n'.format(*frame.split()) for frame in frames)
    return "Traceback (most recent call last):\n" + "".join(called) + f"{raised}\n"


@pytest.mark.parametrize(
    ("frames", "raised", "name"),
    [
        (
            ["/p/vllm/layers/quantization/int6.py create_weights", "/p/vllm/model_executor/utils.py set_attributes"],
            "AssertionError: Attribute is there already: loader",
            "engine-setting-invalid",
        ),
        (["/p/frob/server.py handle_request"], "KeyError: 'session'", "config-refused"),
        (["/p/frob/batch.py __post_init__"], "AssertionError: 3 rows and 4 masks", "config-refused"),
        (
            ["<frozen importlib._bootstrap> _call_with_frames_removed", "/w/settings_of_mine.py <module>"],
            "KeyError: 'MY_VARIABLE'",
            "package-version-unfit",
        ),
    ],
)
def test_a_phase_or_the_name_of_a_function_proves_no_family(verdict, frames, raised, name):
    found = verdict("WorkerProc failed to start.\n" + trace(*frames, raised=raised))
    assert name not in ids(found)
    assert found.first_error.headline == raised and raised in found.headline


def test_where_an_exception_passed_through_is_a_candidate(verdict):
    frames = ["/p/models/frob.py load_weights", *(f"/p/lib{n}/inner.py go_{n}" for n in range(4))]
    found = verdict(trace(*frames, raised="KeyError: 'blk.3'"))
    assert ids(found) == []
    candidate = next(step for step in found.next if step.startswith("possible cause"))
    assert "(weights-refused)" in candidate


def test_no_candidate_is_of_a_framework_that_the_log_never_names(verdict):
    found = verdict(trace("/p/inner.py go", raised="RuntimeError: The existing size of the tensor is odd"))
    assert not any("nemo-rl" in step for step in found.next)


LIBRARIES = "/v/lib/python3.12/site-packages/"


@pytest.mark.parametrize(
    ("frames", "package"),
    [
        (["/w/main.py main", f"{LIBRARIES}frob_rl/data.py read", f"{LIBRARIES}numpy/core.py mean"], "frob_rl"),
        (["/work/sglang/srt/model.py forward", f"{LIBRARIES}torch/nn/functional.py embedding"], "sglang"),
        (["/w/main.py main", f"{LIBRARIES}numpy/core.py mean"], "numpy"),
    ],
)
def test_the_issues_to_search_are_of_the_package_that_decided(verdict, frames, package):
    found = verdict(trace(*frames, raised="frob.FrobError: odd"))
    assert any(step.startswith(f"search the issues of {package} for") for step in found.next)


def test_what_a_handle_lacks_is_of_who_made_it(verdict):
    frames = ["/w/train.py main", f"{LIBRARIES}slime/utils.py connect", f"{LIBRARIES}ray/actor.py __getattr__"]
    found = verdict(trace(*frames, raised="AttributeError: 'ActorHandle' object has no attribute 'init_group'"))
    said = found.root_causes[0].detail if found.root_causes else " ".join(found.next)
    assert "slime made and calls both" in said and "pip show" not in said


def test_of_two_chained_exceptions_the_one_with_the_operation_tells_the_story(verdict):
    inner = trace(f"{LIBRARIES}httpcore/http11.py receive", raised="httpcore.ReadTimeout")
    outer = trace(
        "/w/loop.py main", "/w/weights.py swap", f"{LIBRARIES}httpx/client.py send", raised="httpx.ReadTimeout"
    )
    chain = "\nThe above exception was the direct cause of the following exception:\n\n"
    found = verdict(f"ERROR the task died\n{inner}{chain}{outer}")
    assert found.first_error.kind == "httpx.ReadTimeout"
    assert any("/w/weights.py" in step for step in found.next)


def test_code_of_ranks_that_write_at_once_is_no_message(verdict):
    raises = 'raise RuntimeError(f"Missing key in checkpoint state_dict: {fqn}.")'
    frame = '  File "/p/torch/distributed/checkpoint/default_planner.py", line 481, in create_plan'
    rows = [f"[rank{rank}]: {text}" for text in ("Traceback (most recent call last):", frame) for rank in (0, 1, 2)]
    rows += [f"[rank{rank}]:     {raises}" for rank in (2, 0, 1)]
    rows += [f"[rank{rank}]: RuntimeError: Missing key in checkpoint state_dict: optimizer.step." for rank in (0, 1, 2)]
    found = verdict(rows)
    assert "optimizer.step" in found.headline and "{fqn}" not in str(found.to_dict())


def test_a_limited_rate_of_the_hub_is_no_missing_network(verdict):
    said = "429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/a/b"
    cause = verdict(f"huggingface_hub.errors.HfHubHTTPError: {said}").root_causes[0]
    assert "limits the rate" in cause.title and any("HF_TOKEN" in step for step in cause.fix)


def test_a_recomputation_that_differs_has_one_name(verdict):
    said = "Recomputed values for the following tensors have different metadata than during the forward pass."
    found = verdict(f"torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: {said}")
    assert ids(found) == ["recomputation-differs"]
    assert found.root_causes[0].confidence == "high"


@pytest.mark.parametrize(
    ("asker", "cause"),
    [("/x/site-packages/quilts/patch.py", "module-shadowed"), ("<stdin>", "interface-mismatch")],
)
def test_a_package_without_a_version_is_hidden_only_where_a_package_asks_for_it(verdict, asker, cause):
    asked = "AttributeError: module 'frob' has no attribute '__version__'"
    log = f'Traceback (most recent call last):\n  File "{asker}", line 3, in <module>\n{asked}\n'
    assert [each.id for each in verdict(log).root_causes] == [cause]
