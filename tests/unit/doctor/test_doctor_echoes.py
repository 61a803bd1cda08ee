"""The same exception told several times: the process that raised it decides, by its traceback and by its order."""

WORKER = "(Trainer pid=71, ip=10.0.0.4) "
DRIVER = """Traceback (most recent call last):
  File "/w/train.py", line 12, in <module>
    main()
  File "/usr/lib/python3.12/site-packages/ray/_private/worker.py", line 2981, in get
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError({kind}): ray::Trainer.{method}() (pid=71, ip=10.0.0.4, actor_id=0bb1)
  File "{file}", line 584, in {function}
{said}
"""
SHAPES = "The size of tensor a (96) must match the size of tensor b (24) at non-singleton dimension 1"
LOADING = f"""Traceback (most recent call last):
  File "/usr/lib/python3.12/site-packages/vllm/v1/executor/multiproc_executor.py", line 870, in worker_busy_loop
    output = func(*args, **kwargs)
  File "/usr/lib/python3.12/site-packages/vllm/model_executor/models/olmo_moe.py", line 291, in load_weights
    weight_loader(param, weight, name, shard_id)
  File "/usr/lib/python3.12/site-packages/vllm/model_executor/layers/fused_moe/layer.py", line 1022, in _load_w13
    expert_data.copy_(loaded_weight)
RuntimeError: {SHAPES}
"""
DISPATCH = """Traceback (most recent call last):
  File "/w/trainer/worker.py", line 1044, in get_logprobs
    outputs = self.model(**batch)
  File "/usr/lib/python3.12/site-packages/deep_ep/buffer.py", line 584, in internode_dispatch
    self.runtime.internode_dispatch(
RuntimeError: DeepEP error: timeout (dispatch CPU)
"""
ILLEGAL = (
    "[rank3]:[E906 03:22:31.551102231 ProcessGroupNCCL.cpp:2176] [PG ID 0 Rank 3] Process group watchdog thread "
    "terminated with exception: CUDA error: an illegal memory access was encountered\n"
)


def behind(prefix, text):
    return "".join(prefix + line + "\n" for line in text.splitlines())


def ids(found):
    return [cause.id for cause in found.root_causes]


def test_where_it_was_raised_decides_and_not_the_caller_that_repeats_it(verdict):
    echo = DRIVER.format(
        kind="RuntimeError",
        method="collective_rpc",
        file="/w/verl/trainer/ppo/ray_trainer.py",
        function="fit",
        said=f"RuntimeError: Worker failed with error '{SHAPES}', please check the stack trace above",
    )
    found = verdict(behind("(Engine pid=24) (Worker_TP0 pid=25) ERROR 04-29 12:41:03 [multi.py:875] ", LOADING) + echo)
    assert ids(found) == ["vllm-expert-weights-refused"]


def test_what_a_process_says_after_the_exception_that_ended_its_task_is_not_its_cause(verdict):
    echo = DRIVER.format(
        kind="RuntimeError",
        method="get_logprobs",
        file="/usr/lib/python3.12/site-packages/deep_ep/buffer.py",
        function="internode_dispatch",
        said="RuntimeError: DeepEP error: timeout (dispatch CPU)",
    )
    found = verdict(behind(WORKER, DISPATCH + ILLEGAL) + echo)
    assert ids(found) == ["deepep-timeout"]
    assert any("illegal-memory-access" in step for step in (*found.next, *(note.id for note in found.notes)))
    assert ids(verdict(behind(WORKER, ILLEGAL + DISPATCH) + echo)) == ["illegal-memory-access"]
    other = behind("(Trainer pid=72, ip=10.0.0.4) ", ILLEGAL)
    assert ids(verdict(behind(WORKER, DISPATCH) + other + echo)) == ["illegal-memory-access"]


def test_an_exception_that_stands_above_its_own_traceback_has_that_traceback(verdict):
    stamp = "ERROR 2026-06-15T14:10:59.3921{:02d}590Z "
    lines = [
        "FrobError: the frob of 12 does not fit 13",
        "[2026-06-15 14:10:59 TP3] Scheduler hit an exception: Traceback (most recent call last):",
        'File "/w/frob/scheduler.py", line 2704, in run_scheduler',
        "scheduler.event_loop()",
        'File "/w/frob/batch.py", line 702, in pop_cache',
        "raise FrobError('the frob does not fit')",
        "^^^^^^^^^^^^^^^^^",
        "FrobError: the frob of 12 does not fit 13",
    ]
    found = verdict("".join(stamp.format(number) + line + "\n" for number, line in enumerate(lines)))
    assert found.first_error.headline == "FrobError: the frob of 12 does not fit 13"
    assert found.first_error.frames == (
        "/w/frob/scheduler.py:2704 in run_scheduler",
        "/w/frob/batch.py:702 in pop_cache",
    )


def test_code_of_a_traceback_that_lost_its_indentation_is_no_evidence(verdict):
    stamp = "2026-06-15T14:10:59.3921{:02d}590Z stderr "
    lines = [
        "Traceback (most recent call last):",
        'File "/w/frob/pool.py", line 27, in run_pool',
        "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate nothing') if full else FrobError(text)",
        "FrobError: the frob of 12 does not fit 13",
    ]
    found = verdict("".join(stamp.format(number) + line + "\n" for number, line in enumerate(lines)))
    assert ids(found) == []
    assert found.first_error.headline == "FrobError: the frob of 12 does not fit 13"


def test_a_line_of_another_process_does_not_explain_what_a_task_says_itself(verdict):
    lost = (
        "(W pid=31) n3:31:77 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.3<55640> with status=12 opcode=0\n"
    )
    check = """Traceback (most recent call last):
  File "/w/loop.py", line 300, in run
    trainer.fit()
  File "/w/data.py", line 19, in split
    raise ValueError(f"the list of 30 samples is not divisible by 8")
ValueError: the list of 30 samples is not divisible by 8
"""
    echo = DRIVER.format(
        kind="ValueError", method="run", file="/w/data.py", function="split", said=check.splitlines()[-1]
    )
    found = verdict(lost + behind(WORKER, check) + echo)
    assert "nccl-ib-completion-error" not in ids(found)
    assert any("nccl-ib-completion-error" in step for step in (*found.next, *(note.id for note in found.notes)))
    timeout = check.replace("the list of 30 samples is not divisible by 8", "no answer of rank 3 in time, timed out")
    told = DRIVER.format(
        kind="ValueError", method="run", file="/w/data.py", function="split", said=timeout.splitlines()[-1]
    )
    assert ids(verdict(lost + behind(WORKER, timeout) + told)) == ["nccl-ib-completion-error"]


def test_a_warning_does_not_explain_an_exception_that_says_itself_what_was_wrong(verdict):
    full = "(raylet) /tmp/ray/session_1 is over 95% full, available space: 1 GB; capacity: 300 GB.\n"
    engine = "(Engine pid=9) ERROR 05-05 10:00:00 [core.py:1079] "
    failed = """EngineCore failed to start.
Traceback (most recent call last):
  File "/v/frob/core.py", line 1050, in run_engine_core
    engine_core = EngineCoreProc(*args, **kwargs)
ValueError: Frobnicator kernels need block size 64, got 48
"""
    ended = (
        "(Api pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    )
    found = verdict(full + behind(engine, failed) + ended)
    assert "ray-disk-nearly-full" not in ids(found)
    lost = (
        "(W pid=31) n3:31:77 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.3<55640> with status=12 opcode=0\n"
    )
    found = verdict(lost + behind(engine, failed) + ended)
    assert "nccl-ib-completion-error" not in ids(found)


def test_what_processes_raise_when_a_peer_is_gone_is_not_the_first_exception(verdict):
    shape = """Traceback (most recent call last):
  File "/w/train.py", line 10, in <module>
    main()
  File "/w/{file}.py", line 8, in {function}
    run()
{said}
"""
    gone = shape.format(
        file="train", function="main", said="torch.distributed.DistBackendError: NCCL communicator was aborted"
    )
    own = shape.format(file="frob", function="fit", said="FrobError: the frob of 12 does not fit 13")
    found = verdict(behind("[rank0]: ", gone) + behind("[rank3]: ", own))
    assert found.first_error.headline == "FrobError: the frob of 12 does not fit 13"


def test_what_was_outlived_by_steps_does_not_announce_the_exception_below_it(verdict):
    end = """Traceback (most recent call last):
  File "/w/train.py", line 44, in <module>
    lr = base ** warmup
TypeError: unsupported operand type(s) for ** or pow(): 'float' and 'str'
"""
    found = verdict("[sandbox 2] MemoryError\nstep 1 reward 0.2\nstep 2 reward 0.2\n" + end)
    assert "host-memory-exhausted" not in ids(found)


def test_what_ended_a_thread_comes_before_the_wait_for_it_in_vain(verdict):
    thread = """Exception in thread Thread-4 (_run):
Traceback (most recent call last):
  File "/usr/lib/python3.12/threading.py", line 1075, in _bootstrap_inner
    self.run()
  File "/w/rollout.py", line 611, in _score_group
    rewards = reward_func(**kwargs)
TypeError: reward_func() missing 1 required positional argument: 'environments'
"""
    waited = """Traceback (most recent call last):
  File "/w/train.py", line 88, in <module>
    trainer.train()
  File "/usr/lib/python3.12/queue.py", line 179, in get
    raise Empty
_queue.Empty
"""
    assert ids(verdict(thread + waited)) == ["interface-mismatch"]


def test_of_two_causes_an_exception_without_a_traceback_comes_last(verdict):
    end = """Traceback (most recent call last):
  File "/w/train.py", line 44, in <module>
    save(model)
OSError: [Errno 122] Disk quota exceeded: '/ckpt/step_6/model.safetensors'
"""
    lone = "(Loader pid=7) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    assert ids(verdict(lone + end))[0] == "ckpt-write-failed"
    assert ids(verdict(lone))[0] == "torch-cuda-oom"


def test_a_line_without_a_traceback_is_not_first_beside_what_ended_the_program(verdict):
    said = "FrobError: no frob of 12 fits 13"
    end = f'Traceback (most recent call last):\n  File "/w/t.py", line 4, in <module>\n    x()\n{said}\n'
    assert verdict("(Other pid=9) KeyError: 'psutil'\n" + end).first_error.headline == said
