"""What a program outlived is no failure; what ended it is one, whatever its script says afterwards."""

import pytest

from rldbg.doctor import diagnose

CAUGHT = """Traceback (most recent call last):
  File "/w/agent/tools.py", line 88, in call_tool
    answer = session.post(url, json=body, timeout=10)
  File "/opt/venv/lib/python3.11/site-packages/requests/adapters.py", line 700, in send
    raise ConnectionError(e, request=request)
requests.exceptions.ConnectionError: HTTPConnectionPool(host='10.1.2.3', port=8080): [Errno 111] Connection refused
"""
UNCAUGHT = CAUGHT.replace("in call_tool", "in <module>")
SIGNAL = """Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/api.py", line 79, in _handler
    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
torch.distributed.elastic.multiprocessing.api.SignalException: Process 99 got signal: 15
"""
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB.\n"
WATCHDOG = (
    "[rank1]:[E1115 10:00:09.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=26, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600007 ms.\n"
)
ENGINE = """(EngineCore_DP0 pid=99) ERROR 11-15 10:00:00 [core.py:700] EngineCore encountered a fatal error.
(EngineCore_DP0 pid=99) Traceback (most recent call last):
(EngineCore_DP0 pid=99)   File "/opt/vllm/v1/engine/core.py", line 690, in run_engine_core
(EngineCore_DP0 pid=99)     engine_core.run_busy_loop()
(EngineCore_DP0 pid=99) SystemExit
"""
THREAD = """Exception in thread Thread-4 (_monitor):
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
    self.run()
EOFError
"""


@pytest.fixture
def verdict(tmp_path, index):
    def run(text, **options):
        (tmp_path / "x.log").write_text(text)
        return diagnose([tmp_path / "x.log"], index=index, **options)

    return run


def steps(first, last, shape="step {} loss 0.4 reward 0.1\n"):
    return "".join(shape.format(number) for number in range(first, last + 1))


COUNTERS = (
    "step {} loss 0.4\n",
    "==== Step {}/50 ====\n",
    "[2026-11-15 10:00:00] iteration       {}/     100 | lm loss: 1.2E+00 |\n",
    '{{"level":"info","msg":"train","iter":{},"loss":0.3}}\n',
    "update={} | R=0.3 | KL=0.01\n",
    "Epoch {}/9: train_loss=0.3\n",
    "{{'loss': 0.1, 'grad_norm': 0.3, 'epoch': 0.1{}}}\n",
    "  3%|█   | {}/20 [00:03<01:00,  3.1s/it]\n",
    "[{}/30] rollout reward=0.3\n",
    "GRPO:  3%|█   | {}/20 [00:03<01:00,  3.1s/it, loss=0.4]\n",
)


@pytest.mark.parametrize("shape", COUNTERS)
def test_an_exception_after_which_training_counts_on_was_outlived(verdict, shape):
    assert verdict(steps(1, 4, shape) + CAUGHT + steps(5, 7, shape)).verdict == "healthy"
    assert verdict(steps(1, 4, shape) + OOM + steps(5, 7, shape)).verdict == "healthy"
    assert verdict(steps(1, 4, shape) + OOM).verdict == "found"
    assert verdict(steps(1, 4, shape) + OOM + steps(4, 4, shape)).verdict == "found"


def test_settings_before_the_first_step_hide_no_steps(verdict):
    settings = "save_steps: 500\nmax_steps: 1000\n"
    assert verdict(settings + OOM + "trying 32\n" + steps(1, 4)).verdict == "healthy"
    assert verdict(settings + OOM + "eval_steps: 1\nlogging_steps: 2\nwarmup_steps: 3\n").verdict == "found"


@pytest.mark.parametrize("title", ["Loading checkpoint shards", "Processed prompts", "Map (num_proc=8)"])
def test_bars_of_loaders_are_no_training(verdict, title):
    bars = steps(1, 6, title + ":  3%|█   | {}/20 [00:03<01:00,  3.1s/it]\n")
    assert verdict("step 1\n" + OOM + bars).verdict == "found"


def test_a_caught_exception_that_comes_again_is_outlived_by_one_step_each(verdict):
    again = "".join(CAUGHT + f"trying again\nstep {number} loss 0.3\n" for number in range(4, 8))
    assert verdict(steps(1, 3) + again).verdict == "healthy"
    assert verdict(steps(1, 3) + again + UNCAUGHT).verdict == "found"


def test_one_step_after_what_nothing_caught_is_late_output(verdict):
    assert verdict(steps(1, 3) + CAUGHT + steps(4, 4)).verdict == "healthy"
    assert verdict(steps(1, 3) + UNCAUGHT + steps(4, 4)).verdict == "found"


DONE = (
    "Training completed in 3h12m",
    "training loop finished after 6 steps; reward 0.4",
    "All epochs finished.",
    "Finished training.",
    "run finished: 8 updates",
    "2026-11-15 10:00:00 INFO Job 'raysubmit_abc' succeeded",
    '{"level":"info","msg":"run complete","status":"ok"}',
    "Final metrics: reward 0.91, kl 0.02",
    "(TaskRunner pid=152) Final validation metrics: {'val/acc': 0.7}",
    "Saved model to /out/final",
    "Max number of steps has been reached\nSaving checkpoint for step 6...",
    "Episode [1/1]: 100%|██████████| 6/6 [12:10<00:00, 181.1s/it]",
)


@pytest.mark.parametrize("done", DONE)
def test_what_came_before_training_was_done_was_outlived(verdict, done):
    assert verdict(f"loading\n{CAUGHT}one prompt less\n{done}\n").verdict == "healthy"
    assert verdict(f"loading\n{OOM}batch size 16\n{done}\n").verdict == "healthy"


@pytest.mark.parametrize("done", DONE)
@pytest.mark.parametrize(
    "after", [SIGNAL, WATCHDOG, ENGINE, THREAD, 'error: there is no resource type "rayclusters"\n']
)
def test_what_comes_after_training_was_done_is_no_failure(verdict, done, after):
    assert verdict(steps(1, 6) + f"{done}\n{after}").verdict == "healthy"
    assert verdict(steps(1, 6) + after).verdict != "healthy"


@pytest.mark.parametrize("done", DONE)
def test_an_exception_that_nothing_caught_is_a_failure_also_after_training(verdict, done):
    assert verdict(steps(1, 6) + f"{done}\n{UNCAUGHT}").verdict == "found"


def test_a_full_bar_that_is_not_of_a_training_is_no_end(verdict):
    bar = "Update weights: 100%|██████████| 10/10 [00:03<00:00,  3.01it/s]\n"
    assert verdict(steps(1, 6) + bar + CAUGHT).verdict == "found"
    assert verdict(steps(1, 6) + bar.replace("Update weights: ", "") + CAUGHT).verdict == "healthy"


def test_what_comes_after_training_was_done_counts_where_the_program_did_not_end_well(verdict):
    found = verdict(steps(1, 6) + "Training completed\n" + OOM + "loading\n" * 20 + UNCAUGHT)
    assert {"torch-cuda-oom"} <= {cause.id for cause in (*found.root_causes, *found.notes, *found.fallout)}
    assert found.verdict == "found"


@pytest.mark.parametrize(
    "ended", [UNCAUGHT, "Segmentation fault (core dumped)\n", "run.sh: line 9:  4711 Killed          python train.py\n"]
)
def test_scripts_say_that_training_is_done_whatever_became_of_it(verdict, ended):
    assert verdict(steps(1, 6) + ended + "Training finished.\nexit code: 0\n").verdict != "healthy"


@pytest.mark.parametrize(
    "line",
    [
        "Training is not finished",
        "Job 12 finished with errors",
        "training step 5 done",
        "training data done",
        "run setup done",
        "Job 12 completed with exit code 3",
        "the episode's final reward is 0",
    ],
)
def test_what_only_resembles_the_end_of_training_is_none(verdict, line):
    assert verdict(f"loading\n{OOM}{line}\n").verdict == "found"


def test_the_exit_code_0_that_a_log_states_outweighs_what_was_caught(verdict):
    assert verdict(f"loading\n{CAUGHT}report written\n[launcher] child exited with code 0\n").verdict == "healthy"
    crash = "Segmentation fault (core dumped)\n"
    assert verdict(f"loading\nworker 1 exited with code 0\n{OOM}{crash}").verdict != "healthy"
    assert verdict(f"loading\n{OOM}worker 1 exited with code 0\n{crash}").verdict != "healthy"


def test_the_code_of_a_model_that_a_program_runs_is_not_the_program(verdict):
    trace = 'output: Traceback (most recent call last):\n  File "{}", line 1, in <module>\n    import pandas\n'
    error = "ModuleNotFoundError: No module named 'pandas'\n"
    for place in ("/sandbox/a.py", "<string>", "/tmp/tmpx1y2z3.py"):
        assert verdict(steps(1, 3) + trace.format(place) + error + "reward 0.0\n" + steps(4, 4)).verdict == "healthy"
        assert verdict("loading\n" + trace.format(place) + error).verdict == "found"
    assert verdict(steps(1, 3) + trace.format("/w/train.py") + error + steps(4, 4)).verdict == "found"


@pytest.mark.parametrize(
    "work", ["Running the last evaluation", "Starting the second phase", "Merging adapters into /out"]
)
def test_work_that_begins_after_training_can_fail(verdict, work):
    for done in ("Training completed\n", "Training completed. "):
        assert verdict(steps(1, 6) + f"{done}{work}\n" + OOM).verdict == "found"
        assert verdict(steps(1, 6) + f"{done}{work}\nFinal metrics: 0.4\n" + WATCHDOG).verdict == "healthy"
    assert verdict(steps(1, 6) + "Training completed\nRunning shutdown hooks\n" + WATCHDOG).verdict == "healthy"


@pytest.mark.parametrize(
    "then",
    ["Falling back to plain attention.", "[tools] retrying in 2 s", "skipping sample 12", "reconnected after 3 s"],
)
def test_a_failure_that_the_program_says_it_deals_with_is_no_end(verdict, then):
    for error in (CAUGHT, OOM):
        assert verdict(f"loading\n{error}{then}\nserving at port 8000\n").verdict == "healthy"
        assert verdict(f"loading\n{error}{then}\n").verdict == "found", "nothing shows that it went on"
    assert verdict(f"loading\n{UNCAUGHT}{then}\nserving at port 8000\n").verdict == "found"


@pytest.mark.parametrize(
    "tail",
    [" -- falling back to plain attention", "; ignored", ", skipping it", ". Using sdpa instead", " - was ignored"],
)
def test_a_line_that_says_how_it_is_dealt_with_is_no_failure(verdict, tail):
    line = "ImportError: cannot import name 'varlen_func' from 'flash_attn'"
    assert verdict(f"loading\n{line}{tail}\nserving\n").verdict == "healthy"
    assert verdict(f"loading\n{line}\nserving\n").verdict == "found"


def test_an_exception_that_was_caught_and_outlived_each_time_may_also_come_last(verdict):
    rejected = """20261115-10:00:10.000 Executor ERROR: Trajectory rejected: Traceback (most recent call last):
  File "/w/flow.py", line 80, in run_episode
    raise asyncio.TimeoutError()
TimeoutError
"""
    each = [f"20261115-10:0{number}:00.000 Trainer INFO: Step {number}/187 done.\n{rejected}" for number in range(1, 6)]
    found = verdict("".join(each))
    assert (found.verdict, found.earlier_runs) == ("healthy", 0)
    assert verdict("".join(each) + UNCAUGHT).verdict == "found"
    assert verdict(each[0]).verdict == "unknown"


def test_the_last_of_all_steps_with_its_results_is_the_end_of_training(verdict):
    last = "{'loss': '0.1', 'global_step/max_steps': '100/100', 'remaining_time': '0s'}\n"
    assert verdict(steps(1, 6) + last + "free(): invalid pointer\n").verdict == "healthy"
    assert verdict(steps(1, 6) + last.replace("100/", "99/") + "free(): invalid pointer\n").verdict == "unknown"
    assert verdict(steps(1, 6) + "==== Step 7/7 ====\n" + WATCHDOG).verdict == "unknown", "it has begun, no more"


def test_prompts_and_completions_on_one_line_are_text_of_a_model(verdict):
    shown = "Prompt: Why RuntimeError: CUDA error: device-side assert triggered?\n"
    shown += "Completion: Segmentation fault (core dumped)\n"
    assert verdict(f"loading\n{shown}Reward: 0.5\n").verdict == "healthy"


def test_the_headline_of_a_healthy_log_tells_what_was_outlived_and_not_what_is_warned_of(verdict):
    warned = "WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt\n"
    assert verdict(warned + steps(1, 6)).headline == "no failure found"
    assert "PyTorch ran out of GPU memory" in verdict(warned + OOM + steps(1, 6)).headline


def test_failures_in_tests_that_pass_are_made_on_purpose(verdict):
    log = f"collected 2 items\n-- live log call --\nERROR    a.py:9 {OOM}PASSED [ 50%]\n{CAUGHT}PASSED [100%]\n"
    assert verdict(log + "====== 1 passed, 1 xfailed, 1 warning in 41.21s ======\n").verdict == "healthy"
    assert verdict(log + "====== 1 failed, 1 passed in 41.21s ======\n").verdict != "healthy"


def test_a_wait_that_is_only_told_is_not_the_cause_beside_an_error(verdict):
    wait = "INFO 06-07 18:13:55 [ray_utils.py:464] Waiting for creating a placement group of specs for 10 seconds.\n"
    found = verdict(wait + "INFO 06-07 18:14:20 [worker.py:9] init_device\n" + OOM)
    assert [cause.id for cause in found.root_causes] == ["torch-cuda-oom"]
    assert [cause.id for cause in verdict(wait).root_causes] == ["ray-placement-pending"]


def test_what_another_process_says_is_no_circumstance(verdict):
    asleep = "(Engine pid=90) INFO 09-06 03:20:13 [worker.py:142] Sleep mode freed 51.10 GiB memory.\n"
    illegal = "({} pid={}) torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    assert [cause.id for cause in verdict(asleep + illegal.format("Engine", 90)).root_causes] == [
        "vllm-sleep-while-running"
    ]
    assert [cause.id for cause in verdict(asleep + illegal.format("Policy", 7)).root_causes] == [
        "illegal-memory-access"
    ]


def test_versions_of_weights_that_differ_are_no_refusal_of_weights(verdict):
    trace = 'Traceback (most recent call last):\n  File "/w/actor.py", line 602, in update_weights\n    raise\n'
    found = verdict(trace + "RuntimeError: Weight version mismatch! Engine: 7, updater: 8\n")
    assert "weights-refused" not in [cause.id for cause in found.root_causes]


SERVING = """2026-10-01 10:00:01,000 INFO scorer - scored 32 items in 0.8 s
2026-10-01 10:00:02,000 INFO scorer - scored 32 items in 0.7 s
"""


def test_a_process_that_does_again_what_it_did_before_an_exception_caught_it(verdict):
    error = "2026-10-01 10:00:03,000 ERROR scorer - request failed\n" + CAUGHT
    again = SERVING.replace(":00:0", ":01:0")
    assert verdict(SERVING + error + again).verdict == "healthy"
    assert verdict(SERVING + error).verdict != "healthy"
    assert verdict(SERVING + error + again + UNCAUGHT).verdict != "healthy"
    assert verdict(SERVING + UNCAUGHT + again).verdict != "healthy"
    assert verdict(SERVING + error + again + "srun: error: n1: task 0: Exited with exit code 1\n").verdict != "healthy"


def test_code_of_a_model_that_fails_is_outlived_by_any_line_that_is_no_end(verdict):
    code = 'Traceback (most recent call last):\n  File "/tmp/tmpab/main.py", line 3, in <module>\nMemoryError\n'
    assert verdict("tool python:\n" + code + "| task | metric | 0.7 |\n").verdict == "healthy"
    assert verdict(code).verdict != "healthy"
    assert verdict(code + "srun: error: n1: task 0: Exited with exit code 1\n").verdict != "healthy"


def test_what_tests_print_before_those_that_failed_are_told_was_caught_by_them(verdict):
    report = "=================================== FAILURES ===================================\n"
    failed = report + "E       assert [-1, 1] == [0, 1]\n========================= 1 failed, 11 passed in 3.21s ====\n"
    found = verdict("ERROR    trainer:trainer.py:80 " + OOM + failed)
    assert (found.verdict, found.root_causes) == ("unknown", ())


def test_exit_code_0_after_the_last_of_all_steps_outweighs_how_the_rest_was_ended(verdict):
    headers = steps(1, 6, "===== Step {}/6 =====\n")
    ended = "slurmstepd: error: *** STEP 991.2 ON n1 CANCELLED AT 2026-05-05T12:00:10 ***\n"
    zero = "Command finished with exit code 0. Shutting down\n"
    assert verdict(headers + ended + zero).verdict == "healthy"
    assert verdict(headers + ended).verdict != "healthy"
    assert verdict(headers + UNCAUGHT + zero).verdict != "healthy"
    assert verdict(steps(1, 4, "===== Step {}/6 =====\n") + ended + zero).verdict != "healthy"


def test_a_traceback_in_one_line_behind_other_words_is_the_output_of_a_program(verdict):
    inner = 'Traceback (most recent call last):\\n  File "/tmp/main.py", line 2, in <module>\\nOSError: no such thing'
    tool = f"(Agent pid=73) [sandbox] exit=1 stdout='' stderr='{inner}'\n"
    assert verdict(tool + "(Agent pid=74) turn 2\n").verdict == "healthy"
    assert verdict(f"(Agent pid=73) <tool_response>\\n{inner}\\n</tool_response>\n" + "turn 2\n").verdict == "healthy"
    assert verdict(f"RuntimeError: worker 3 failed: '{inner}'\n" + "closing\n").verdict != "healthy"
    assert verdict(f"2026-05-01 10:00:00 ERROR worker failed: '{inner}'\n" + "closing\n").verdict != "healthy"
    assert verdict(tool).verdict != "healthy"


def test_the_last_of_all_steps_that_is_done_is_the_end_of_training(verdict):
    each = "(AReaL) 20260202-12:04:18.142 Trainer INFO: Epoch 1/1 Step {}/4 Train step {}/4 done.\n"
    killed = "[2026-02-02 12:31:02] Received sigquit from a child process. It usually means the child failed.\n"
    done = "".join(each.format(number, number) for number in range(1, 5))
    assert verdict(done + killed).verdict == "healthy"
    assert verdict(done[: len(done) * 3 // 4] + killed).verdict != "healthy"


def test_rows_of_a_table_of_samples_are_text_of_a_model(verdict):
    row = (
        "│ │ fix my job  │ You see torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB  │    0.00 │ │\n"
    )
    assert (
        verdict("step 1 loss 0.3\n" + row + "│ │             │ MemoryError: no memory   │         │ │\n").verdict
        == "healthy"
    )


def test_the_function_and_line_in_which_a_message_was_written_are_no_counter(verdict):
    told = "2026-07-08 10:02:11.001 | WARNING  | skyrl_gym.envs.sql:step:{} - no such table, answered to the model\n"
    assert verdict(steps(1, 4) + OOM + told.format(77) + told.format(79)).verdict == "found"


DIED = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"


@pytest.mark.parametrize(
    ("passed", "total"),
    [
        ("PASS scenario {}\n", "All 3 scenarios passed\n"),
        ("[ OK ] recovery.case_{}\n", "3/3 cases passed\n"),
        ("ok {} - a fault\n", "3 passed, 0 failed\n"),
        ("\N{CHECK MARK} fault {}\n", "All 3 passed\n"),
        ("\N{WHITE HEAVY CHECK MARK} fault {}\n", "All 3 passed\n"),
        ("recovers from fault {} ... ok\n", "ALL TESTS PASSED\n"),
    ],
)
@pytest.mark.parametrize("fault", [DIED, OOM, UNCAUGHT], ids=["died", "memory", "uncaught"])
def test_what_passed_tests_make_fail_is_no_failure(verdict, passed, total, fault):
    each = "".join(f"[inject] fault {n}\n{fault}{passed.format(n)}" for n in (1, 2, 3))
    assert verdict(each + total).verdict == "healthy"
    # BUT what comes after the sum is one, and so is a test that is missing in it
    assert verdict(each + total + fault).verdict != "healthy"
    assert verdict(each + fault).verdict != "healthy"
    assert verdict(each + "2 of 3 passed\n").verdict != "healthy"


@pytest.mark.parametrize(
    "tries",
    [
        "Trying batch size: {}\n",
        "Batch size failed, trying batch size {}\n",
        "INFO tuner: reducing micro batch size to {}\n",
    ],
)
def test_sizes_that_are_tried_until_one_fits_are_no_failure(verdict, tries):
    oom = CAUGHT.splitlines()[0] + '\n  File "/w/finder.py", line 3, in attempt\n    go()\n' + OOM
    log = "loading the data\n" + "".join(tries.format(size) + oom for size in (64, 32)) + tries.format(16)
    assert verdict(log + "wrote the size to sizes.json\n").verdict == "healthy"
    assert verdict(log + oom.replace("in attempt", "in <module>")).root_causes[0].id == "torch-cuda-oom"


def test_a_command_that_an_agents_tool_does_not_find_ends_nothing(verdict):
    turns = [f"[turn {n}] tool call: run_shell {n}\n" for n in (1, 2)]
    missing = "bash: line 1: rg: command not found\n"
    assert verdict(turns[0] + missing + turns[1] + "README.md\n").verdict == "healthy"
    assert verdict(turns[0] + turns[1] + missing).verdict == "unknown"


@pytest.mark.parametrize("line", ["step {} | loss: nan | lr: 1e-05\n", "{{'loss': nan, 'epoch': {}.0}}\n"])
def test_a_loss_that_is_no_number_is_told_though_steps_are_counted_on(verdict, line):
    found = verdict("step 1 | loss: 2.5 | lr: 1e-05\n" + "".join(line.format(number) for number in range(2, 30)))
    assert "NaN" in found.headline
    assert "NaN" not in verdict("".join(f"step {n} | loss: 2.5 | eval_loss: nan\n" for n in range(1, 9))).headline
