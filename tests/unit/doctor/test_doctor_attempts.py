"""Several runs in one log: the last one decides, and the report says what became of the others."""

import pytest

TRACE = """Traceback (most recent call last):
  File "/w/train.py", line 3, in <module>
    main()
{}
"""
OOM = TRACE.format("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79 GiB in total.")
PORT = TRACE.format(
    "torch.distributed.DistNetworkError: port: 29500, name: EADDRINUSE, message: address already in use"
)
STEPS = "".join(f"step {number} loss 0.4\n" for number in range(1, 6))
DONE = "Training completed\n"


def ids(found):
    return [cause.id for cause in found.root_causes]


def opening(hour):
    return f"2026-11-15 {hour}:00:00 INFO world_size=8\n2026-11-15 {hour}:00:09 INFO loaded /ckpt/step_{hour}\n"


HEADERS = {
    "the first lines": opening,
    "a banner": lambda hour: f"==== job 1182{hour} on gpu-a[01-02] Mon Feb {hour} 20:00:01 UTC 2026 ====\n",
    "a numbered attempt": lambda hour: f"--- attempt {hour - 9}/3 ---\n",
    "a command": lambda hour: f"+ python train.py --seed {hour}\n",
    "the number of a job": lambda hour: f"SLURM_JOB_ID={hour}\n",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_the_last_run_of_a_log_decides(verdict, header):
    well = verdict(header(10) + PORT + header(11) + STEPS + DONE)
    assert (well.verdict, well.earlier_runs) == ("healthy", 1)
    assert "last of 2 runs" in well.headline
    assert any("port-in-use" in line for finding in well.findings for line in finding.evidence)
    begun = verdict(header(10) + PORT + header(11) + "loading\n")
    assert begun.verdict == "healthy"
    failed = verdict(header(10) + STEPS + DONE + header(11) + STEPS + OOM)
    assert ids(failed) == ["torch-cuda-oom"]
    other = verdict(header(10) + PORT + header(11) + STEPS + OOM)
    assert ids(other) == ["torch-cuda-oom"]
    killed = verdict(header(10) + PORT + header(11) + STEPS + "Killed\n")
    assert killed.verdict == "unknown"


def test_restarts_with_the_same_failure_are_that_failure(verdict):
    header = HEADERS["a numbered attempt"]
    found = verdict("".join(header(hour) + STEPS + OOM for hour in (10, 11, 12)))
    assert (ids(found), found.earlier_runs) == (["torch-cuda-oom"], 2)
    assert found.root_causes[0].confidence == "high"


@pytest.mark.parametrize(
    "line", ["[supervisor] restarting (1/3)", "x.py:900] Restarting worker group", "Relaunching job"]
)
def test_a_supervisor_that_starts_the_program_again_begins_a_run(verdict, line):
    assert ids(verdict(f"loading\n{OOM}{line}\nloading\n{PORT}")) == ["port-in-use"]


@pytest.mark.parametrize(
    "line",
    ["[router] restarting server (1/3)", "client: attempt 2/5", "Starting engine 1", "retry 2/3", "run 3 queued"],
)
def test_parts_of_a_program_that_start_again_are_no_runs(verdict, line):
    found = verdict(f"Starting engine 0\nrun 1 queued\n{OOM}{line}\nloading\n{PORT}")
    assert found.earlier_runs == 0
    assert "torch-cuda-oom" in ids(found)


def test_what_every_process_prints_first_begins_no_run(verdict):
    first = "/x/lib/foo.py:3: UserWarning: the frob is old\n  warnings.warn(\n"
    assert ids(verdict(first * 3 + OOM + first + "loading\n")) == ["torch-cuda-oom"]


def test_logs_of_ranks_that_were_joined_are_one_run(verdict):
    wait = "ERROR [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, "
    wait += "Timeout(ms)=600000) ran for 600007 ms.\n"
    first = "2026-11-15 10:00:00 INFO init\n2026-11-15 10:00:01 INFO loaded\n"
    others = first + "2026-11-15 10:20:00 " + wait
    assert ids(verdict(first + "2026-11-15 10:05:00 " + OOM.split("\n")[3] + "\n" + others * 2)) == ["torch-cuda-oom"]


def test_stages_of_a_script_are_one_run(verdict):
    full = TRACE.format("OSError: [Errno 28] No space left on device: '/data/x.parquet'")
    missing = TRACE.format("FileNotFoundError: [Errno 2] No such file or directory: '/data/x.parquet'")
    assert ids(verdict(f"+ python prepare.py\n{full}+ python train.py\n{missing}"))[0] == "disk-full"


def test_what_is_raised_while_cleaning_up_is_not_where_the_failure_begins(verdict):
    late = """ERROR: Error cleaning up worker actor/0: 'frob'
Traceback (most recent call last):
  File "/w/scheduler/local.py", line 976, in _cleanup_workers
    self.end(worker)
KeyError: 'frob'
"""
    odd = TRACE.format("quilts.PatchworkError: seam 3 was sewn twice")
    assert verdict(odd.replace("<module>", "sew") + late).first_error.kind == "quilts.PatchworkError"
    assert verdict(late + odd).first_error.kind == "KeyError", "nothing had failed before it"
    found = verdict("TimeoutError: server launch failed\n" + late)
    assert found.first_error is None and [cause.id for cause in found.fallout]


def test_a_bus_error_points_to_shared_memory(verdict):
    table = "Root Cause (first observed failure):\n[0]:\n  exitcode  : -7 (pid: 77)\n"
    found = verdict(table + "  traceback : Signal 7 (SIGBUS) received by PID 77\n")
    assert ids(found) == ["bus-error-of-a-rank"]
    assert any("shm" in step for step in found.root_causes[0].fix)


def test_a_loop_whose_rounds_fail_is_one_run(verdict):
    refused = "openai.RateLimitError: Error code: 429 - Rate limit reached\n"
    loop = "".join(f"round {number}: 64 answers judged\n{refused}" for number in range(1, 6))
    assert verdict(loop).earlier_runs == 0
    assert verdict(loop + "round 6: 64 answers judged\nround 7: 64 answers judged\n").verdict == "healthy"


def test_a_counter_that_stands_lower_after_the_end_of_a_program_begins_a_run(verdict):
    full = TRACE.format("OSError: [Errno 28] No space left on device: '/ckpt/step_4/model.safetensors'")
    again = "".join(f"step {number} loss 0.4\n" for number in range(3, 5))
    found = verdict(STEPS + OOM + "resuming\n" + again + full)
    assert (ids(found), found.earlier_runs) == (["ckpt-write-failed"], 1)
    same = verdict(STEPS + TRACE.format("FrobError: no frob") + again + TRACE.format("FrobError: no frob"))
    assert same.first_error.headline == "FrobError: no frob"
    assert verdict(STEPS + OOM + "step 5 loss 0.4\n").earlier_runs == 0


def refused(program, reason):
    return f"usage: {program} [-h] [--seed SEED]\n       {program} [--lr LR]\n{program}: error: {reason}\n"


UNKNOWN = "unrecognized arguments: --sead 3"
NO_VALUE = "argument --lr: expected one argument"
STOPPED = TRACE.format("KeyboardInterrupt")
NOT_CODE = '  File "train.py", line 9\n    x = = 3\n        ^\nSyntaxError: invalid syntax\n'


@pytest.mark.parametrize(
    ("log", "cause", "earlier"),
    [
        (OOM + refused("train.py", NO_VALUE), "config-value-invalid", 1),
        (STOPPED + refused("train.py", UNKNOWN) + refused("eval.py", NO_VALUE), "config-value-invalid", 2),
        (refused("train.py", UNKNOWN) + refused("train.py", NO_VALUE), "config-value-invalid", 1),
        (refused("train.py", f"{UNKNOWN} --local-rank=1") * 2, "config-unknown-key", 0),
        (refused("train.py", UNKNOWN) + OOM + refused("train.py", UNKNOWN), "config-unknown-key", 1),
        (OOM + refused("evaluate.py", NO_VALUE), "torch-cuda-oom", 0),
        (OOM + NOT_CODE, "file-cannot-be-parsed", 1),
        (OOM + NOT_CODE * 3, "file-cannot-be-parsed", 1),
        (OOM + TRACE.format(NOT_CODE.rstrip()).replace("train.py", "eval.py"), "torch-cuda-oom", 0),
    ],
    ids=[
        "one that had run",
        "another one",
        "for another reason",
        "two ranks",
        "one that had run in between",
        "the next stage of a script",
        "its code",
        "its code in three ranks",
        "the code of what another one imports",
    ],
)
def test_a_program_that_is_refused_before_it_does_anything_begins_a_run(verdict, log, cause, earlier):
    found = verdict(f"loading\n{log}")
    assert (ids(found)[0], found.earlier_runs) == (cause, earlier)


def test_what_two_ranks_write_at_once_is_read_as_one(verdict):
    mixed = '  File "train.py", line 9\n' * 2 + "        x = = 3\nx = = 3\n^\n    ^\n"
    mixed += "SyntaxErrorSyntaxError: : invalid syntaxinvalid syntax\n"
    found = verdict(OOM + mixed)
    assert (ids(found), found.earlier_runs) == (["file-cannot-be-parsed"], 1)
    twice = TRACE.format("quilts.PatchworkErrorquilts.PatchworkError: : seam 3 was sewn twiceseam 3 was sewn twice")
    assert verdict(twice).first_error.headline == "quilts.PatchworkError: seam 3 was sewn twice"


LAUNCHER = """Traceback (most recent call last):
  File "/v/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
  exitcode  : 1 (pid: 884)
"""


@pytest.mark.parametrize(
    "steps",
    ["step {} loss 0.4\n", " {0}%|#  | {0}/60 [23:07<5:43:53, 146.34s/it]\n", "{{'loss': 0.4, 'epoch': 0.{}}}\n"],
)
@pytest.mark.parametrize("first", [10, 14, 19, 20])
def test_a_launcher_that_was_started_again_goes_on_from_a_checkpoint(verdict, steps, first):
    before = "".join(steps.format(number) for number in range(11, 20))
    after = "".join(steps.format(number) for number in range(first, 40))
    found = verdict(before + OOM + LAUNCHER + "loading the model\n" + after)
    assert (found.verdict, bool(found.earlier_runs)) == ("healthy", True)
    failed = verdict(before + LAUNCHER + "loading the model\n" + after + OOM + LAUNCHER)
    assert ids(failed) == ["torch-cuda-oom"]


def test_processes_of_one_program_that_begin_alike_are_one_run(verdict):
    def rank(pid, gpu, *more):
        lines = ("NCCL INFO enqueue.cc:71 -> 3", "NCCL INFO group.cc:88 -> 3", *more)
        return "".join(f"n7:{pid}:{pid} [{gpu}] {line}\n" for line in lines)

    gpus = verdict(rank(810, 6) + "seam: failed, see above\n" + rank(806, 2))
    assert (gpus.verdict, gpus.earlier_runs) == ("unknown", 0)

    def worker(pid, second):
        begun = f"(Frob pid={pid}) 2026-11-15 10:00:{second} INFO wibble is up\n"
        return begun + f"(Frob pid={pid}) 2026-11-15 10:00:{second} INFO seam is open\n"

    at_once = verdict(worker(71, "05") + OOM + worker(72, "05"))
    assert (ids(at_once), at_once.earlier_runs) == (["torch-cuda-oom"], 0)
    mixed = verdict(worker(71, "05") + OOM + worker(72, "25") + "(Frob pid=71) seam\n")
    assert (ids(mixed), mixed.earlier_runs) == (["torch-cuda-oom"], 0)
    later = verdict(worker(71, "05") + OOM + worker(72, "55") + STEPS + DONE)
    assert (later.verdict, later.earlier_runs) == ("healthy", 1)


def test_the_tracebacks_of_a_process_and_of_its_launcher_are_one_run(verdict):
    launcher = TRACE.replace("/w/train.py", "/w/launch.py").format(
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1."
    )
    found = verdict(PORT + launcher)
    assert (ids(found), found.earlier_runs) == (["port-in-use"], 0)
