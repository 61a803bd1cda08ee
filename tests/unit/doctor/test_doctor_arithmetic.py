"""What the numbers of a failure are in the settings that its log shows: said only where they prove it."""

from dataclasses import replace

import pytest

from rldbg.doctor.answer.specifics import specifics
from rldbg.doctor.clues.conditions import condition_of, kind_of_condition
from rldbg.doctor.clues.logged_settings import LoggedSettings
from rldbg.doctor.logs.cleaning import Speaker
from rldbg.doctor.logs.evidence import Failure, LogPlace
from rldbg.doctor.logs.sources import LogSource

PLACE = LogPlace("x.log", 99, 0, Speaker(), None)
TRACE = 'Traceback (most recent call last):\n  File "/w/quilt/sew.py", line 7, in sew\n    {code}\n{said}\n'
VERL = (
    "python3 -m verl.trainer.main_ppo data.train_batch_size={train} actor_rollout_ref.rollout.n=4 "
    "actor_rollout_ref.actor.ppo_mini_batch_size={mini} trainer.n_gpus_per_node=8 trainer.nnodes={nodes}\n"
)


def settings(tmp_path, text):
    log = tmp_path / "x.log"
    log.write_text(text)
    return LoggedSettings.above(replace(PLACE, file=str(log)), [LogSource(log, Speaker())])


def failed(code="check(7)", said="AssertionError", above=""):
    return above + TRACE.format(code=code, said=said)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("python t.py --max-model-len 8192 --tp 2", "max_model_len", 8192),
        ("python t.py --max_model_len=8192", "args.max_model_len", 8192),
        ("run.sh actor.rollout.n=5 critic.n=7", "config.rollout.n", 5),
        ("{'data': {'train_batch_size': 64, 'lr': 1e-6}}", "self.config.data.train_batch_size", 64),
        ("  micro_batch_size ................................ 4", "args.micro_batch_size", 4),
        ("│   ├── vocab_size: 151936", "vocab_size", 151936),
        ("Namespace(use_dynamic_batch_size=False, seed=1)", "args.use_dynamic_batch_size", 0),
        ("data.max_prompt_length=512", "config.prompt_length", 512),
    ],
)
def test_a_setting_is_read_however_it_is_printed(line, name, value, tmp_path):
    found = settings(tmp_path, f"{line}\n").named(name)
    assert found is not None
    assert found.value == value


@pytest.mark.parametrize(
    "text",
    [
        "actor.batch_size=8\ncritic.batch_size=16\n",
        "step:3 - batch_size:8 - loss:0.3\n",
        "batch_size=$((4 * 8))\n",
        "batch_size=8x\n",
        "  0%|  | 3/9 [00:01<00:02] batch_size=8\n",
    ],
)
def test_what_is_measured_or_has_several_values_is_no_setting(text, tmp_path):
    assert settings(tmp_path, text).named("batch_size") is None


@pytest.mark.parametrize(
    ("above", "said", "words"),
    [
        (
            VERL.format(train=60, mini=16, nodes=1),
            "AssertionError: only support equal chunk. Got size of DataProto 60 and chunk 8.",
            ("60 is data.train_batch_size", "8 is trainer.n_gpus_per_node", "56 and 64 are multiples of 8"),
        ),
        (
            VERL.format(train=9, mini=9, nodes=2),
            "AssertionError: only support equal chunk. Got size of DataProto 36 and chunk 16.",
            ("36 is data.train_batch_size 9 x actor_rollout_ref.rollout.n 4", "n_gpus_per_node 8 x trainer.nnodes 2"),
        ),
        (
            VERL.format(train=8, mini=1, nodes=1),
            "AssertionError: ppo_mini_batch_size 0 should be larger than 0 after normalization",
            ("ppo_mini_batch_size 1 x actor_rollout_ref.rollout.n 4 over 8 ranks",),
        ),
        (
            VERL.format(train=8, mini=1, nodes=1).replace("verl.", "") + "--tensor_model_parallel_size 3\n",
            "AssertionError: rollout world_size: 8 is not divisible by infer_tp: 3",
            ("8 is trainer.n_gpus_per_node", "3 is tensor_model_parallel_size"),
        ),
        (
            "",
            "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
            "gradient_acc_step * world_size 256 != 2 * 18 * 7",
            ("2 x 18 x 7 is 252, not 256", "252 or 266"),
        ),
        (
            "",
            "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).",
            ("2, 4, 7 divide 28",),
        ),
        (
            "",
            "ValueError: The global train batch size (3 x 2) must be evenly divisible by the number of generations per "
            "prompt (8).",
            ("6 is less than 8",),
        ),
        (
            "python t.py --batch_size=16\n",
            "ValueError: Free memory on device (30.12/79.15 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 71.24 GiB).",
            ("49.0 GiB of 79.15 GiB are held already", "0.38"),
        ),
    ],
)
def test_the_sources_of_the_numbers_are_named(above, said, words, verdict):
    cause = verdict(failed(said=said, above=above)).root_causes[0]
    assert [word for word in words if word not in cause.detail] == [], cause.detail


@pytest.mark.parametrize(
    ("above", "said", "never"),
    [
        (
            "python t.py --num_epochs 60 --seed 8\n",
            "AssertionError: only support equal chunk. Got size of DataProto 60 and chunk 8.",
            ("num_epochs", "seed"),
        ),
        (
            "actor.batch_size=60 critic.batch_size=30\nrun batch_size=30\n",
            "AssertionError: only support equal chunk. Got size of DataProto 61 and chunk 8.",
            ("is actor", "is critic", "is batch_size"),
        ),
        ("", "ValueError: 64 rows must be divisible by 8 but the loader is closed", ("multiples",)),
    ],
)
def test_a_number_that_only_happens_to_be_the_same_is_not_explained(above, said, never, verdict):
    found = verdict(failed(said=said, above=above))
    told = "\n".join([found.headline, *(cause.detail for cause in found.root_causes), *found.next])
    assert [word for word in never if word in told] == [], told


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size}. GPU 0 has a total capacity of 79.11 GiB of "
    "which 5.02 GiB is free."
)


@pytest.mark.parametrize(
    ("above", "size", "words"),
    [
        (
            "Namespace(micro_batch_size=4, max_seq_len=16384, vocab_size=151936)\n",
            "37.09 GiB",
            "65536 tokens (micro_batch_size 4 x max_seq_len",
        ),
        (
            "main_ppo data.max_prompt_length=1024 data.max_response_length=3072 actor.ppo_micro_batch_size_per_gpu=8 "
            "actor.model.path=Qwen/Qwen2.5-7B-Instruct\n",
            "9.28 GiB",
            "152064 words of the vocabulary of Qwen2.5-7B x 2 bytes",
        ),
    ],
)
def test_the_tensor_that_did_not_fit_is_named_where_its_size_is_a_product_of_settings(above, size, words, verdict):
    cause = verdict(failed(said=OOM.format(size=size), above=above)).root_causes[0]
    assert words in cause.detail
    assert "logits" in cause.detail


@pytest.mark.parametrize("size", ["37.11 GiB", "1.50 GiB", "20.00 MiB"])
def test_another_size_is_no_tensor_of_the_settings(size, verdict):
    above = "Namespace(micro_batch_size=4, max_seq_len=16384, vocab_size=151936)\n"
    assert "vocabulary" not in verdict(failed(said=OOM.format(size=size), above=above)).root_causes[0].detail


@pytest.mark.parametrize(
    ("code", "above"),
    [
        ("assert args.batch_size % len(devices) == 0", "python t.py --batch_size=16\n"),
        ("assert actor_ranks % args.num_engines == 0", ""),
        ("assert prompt_len + answer_len <= max_len", "--prompt_len 4096 --answer_len 8192 --max_len 8192\n"),
    ],
)
def test_an_assertion_on_settings_is_a_rule_that_they_break(code, above, verdict):
    found = verdict(failed(code=code, above=above))
    assert [cause.id for cause in found.root_causes] == ["rule-of-settings-broken"]
    assert code in found.headline
    if above:
        assert "(line 1)" in found.headline


def test_the_sides_of_a_comparison_are_summed(verdict):
    code = 'assert limit >= config.prompt_length + config.response_length, "too long"'
    above = "main_ppo data.max_prompt_length=4096 data.max_response_length=8192\n"
    found = verdict(failed(code=code, said="AssertionError: too long", above=above))
    assert "config.prompt_length + config.response_length is 12288" in "\n".join(
        [found.headline, *(cause.detail for cause in found.root_causes), *found.next]
    )


@pytest.mark.parametrize(
    ("code", "above"),
    [
        ("assert batch_size == 16", "--batch_size 16\n"),  # true with what the log says: that was not it
        ("assert count % 8 == 0", ""),
        ('assert row["answer"] in answers', ""),
        ("assert args.max_len >= tokens.shape[1]", ""),  # a row is too long: that is of the data
        ("assert group % 8 == 0", "--group 12\n"),  # any variable may be called so
    ],
)
def test_an_assertion_on_anything_else_is_no_rule_of_settings(code, above, verdict):
    assert verdict(failed(code=code, above=above)).verdict == "unknown"


def test_an_assertion_that_a_program_went_on_after_is_no_rule_that_ended_it(verdict):
    log = failed(code="assert args.batch_size % 8 == 0", above="step:1 - loss:0.3\n")
    after = "skipped\nstep:2 - loss:0.3\nstep:3 - loss:0.3\nstep:4 - loss:0.3\n"
    assert verdict(log + after).verdict == "healthy"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("assert len(self.train_dataloader) >= 1", "something-is-empty"),
        ("assert len(rows) > 0", "something-is-empty"),
        ("assert self.pad_token_id is not None", "value-is-none"),
        ("assert isinstance(answer, str)", "value-of-another-type"),
        ("assert labels.shape == (rows,)", "tensor-lengths-differ"),
        ("assert len(rewards) == len(prompts)", "tensor-lengths-differ"),
        ("assert os.path.exists(path)", "path-missing"),
        ("assert len(rows) > 5", ""),
        ("assert ready", ""),
        ("assert x is None", ""),
    ],
)
def test_what_an_assertion_asks_for_has_a_kind(code, kind):
    assert kind_of_condition(Failure("AssertionError", code, PLACE)) == kind


def test_a_condition_is_read_and_never_run(tmp_path):
    failure = Failure("AssertionError", "assert __import__('os').system('touch /tmp/seam') and 9 ** 9 ** 9", PLACE)
    assert condition_of(failure, LoggedSettings()) is None
    assert condition_of(Failure("AssertionError", f"assert {'(' * 500}x", PLACE), LoggedSettings()) is None


def test_a_warning_about_numbers_in_a_run_that_goes_on_is_healthy(verdict):
    log = VERL.format(train=60, mini=16, nodes=1)
    log += "WARNING: 60 is not divisible by 8, padding the last batch\n"
    log += "".join(f"step:{step} - actor/loss:0.1\n" for step in range(1, 6)) + "Training finished\n"
    assert verdict(log).verdict == "healthy"


LENGTHS = "python t.py --max_prompt_length 512 --max_response_length 1536 --train_batch_size 64 --num_generations 8\n"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "RuntimeError: The size of tensor a (2048) must match the size of tensor b (1536)",
            ("2048 is max_prompt_length + max_response_length", "1536 is max_response_length"),
        ),
        (
            "RuntimeError: The size of tensor a (512) must match the size of tensor b (64)",
            ("64 is train_batch_size",),
        ),
    ],
)
def test_sizes_that_do_not_match_are_sums_and_products_of_settings(said, words, verdict):
    above = LENGTHS if "2048" in said else LENGTHS.replace("--max_prompt_length 512", "")
    headline = verdict(failed(said=said, above=above)).headline
    assert [word for word in words if word not in headline] == [], headline


def test_one_size_alone_that_is_the_same_as_a_setting_proves_nothing(verdict):
    said = "RuntimeError: The size of tensor a (1536) must match the size of tensor b (1537)"
    log = failed(said=said, above=LENGTHS.replace("max_response_length", "hidden_size"))
    assert "1537 is" not in verdict(log).headline


def test_a_wrong_argument_is_of_the_code_that_writes_it_and_not_of_a_decorator():
    frames = (
        "/home/u/run.py:88 in main",
        "/v/lib/python3.11/site-packages/transformers/utils/deprecation.py:165 in wrapped_func",
    )
    said = "DPOTrainer.__init__() got an unexpected keyword argument 'seam'"
    told = specifics(Failure("TypeError", said, PLACE, frames))
    assert "your code at /home/u/run.py:88" in told
    assert "DPOTrainer is of trl" in told
    assert "deprecation" not in told


def test_the_releases_that_a_log_prints_are_told_beside_what_does_not_fit(verdict):
    log = """frob==1.2.3
quilt             0.9.1+cu124
Traceback (most recent call last):
  File "/v/lib/python3.11/site-packages/quilt/sew.py", line 3, in sew
    frob.make(seam=1)
  File "/v/lib/python3.11/site-packages/frob/core.py", line 7, in make
    core(seam=1)
TypeError: Core.make() got an unexpected keyword argument 'seam'
"""
    assert "frob 1.2.3" in verdict(log).root_causes[0].detail
    assert "quilt 0.9.1" in verdict(log).root_causes[0].detail
    other = log.replace("frob==1.2.3", "frob==1.2.3\nquilt requires frob==2.0.0\n").replace("quilt   ", "quilted ")
    assert "frob 1.2.3" in verdict(other).root_causes[0].detail
    assert "quilt 0" not in verdict(other).root_causes[0].detail
    assert "this log prints frob" not in verdict(log.replace("frob==1.2.3", "frob==1.2.3\nfrob==1.2.4")).headline


def test_a_sample_that_was_not_cut_explains_a_lack_of_memory(verdict):
    log = (
        "+ python3 train.py --rollout-max-context-len 4096 --max-tokens-per-gpu 6144\n"
        "perf 7: {'rollout/response_len/mean': 803.4, 'rollout/response_len/max': 3900, 'rollout/x': 1}\n"
        "perf 8: {'rollout/response_len/mean': 2806.2, 'rollout/response_len/max': 50321, 'rollout/x': 1}\n"
    )
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 23.82 GiB. GPU 3 has 79.11 GiB"
    told = verdict(log + TRACE.format(code="loss()", said=said)).root_causes[0].detail
    assert "the longest sample before it has 50321 tokens (rollout/response_len/max, line 3)" in told
    assert "rollout_max_context_len (line 1) allows 4096" in told
    short = log.replace("50321", "3999")
    assert "longest sample" not in verdict(short + TRACE.format(code="loss()", said=said)).root_causes[0].detail


WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:828] [{group}Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={number}, OpType={kind}, Timeout(ms)=4800000) ran for 4804648 milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    ("group", "number", "kind", "is_told"),
    [
        ("", 18364, "_ALLGATHER_BASE", True),
        ("PG ID 2 PG GUID 2(dp) ", 7, "_ALLGATHER_BASE", True),
        ("", 7, "_ALLGATHER_BASE", False),
        ("", 18364, "ALLGATHER", False),
    ],
    ids=["late", "of a named group", "perhaps of two groups", "the same"],
)
def test_watchdogs_of_one_number_tell_which_ranks_are_elsewhere(verdict, group, number, kind, is_told):
    log = "".join(
        WATCHDOG.format(group=group, rank=rank, number=number, kind="ALLGATHER" if rank else kind) for rank in range(4)
    )
    found = verdict(log)
    causes = [cause.id for cause in found.root_causes]
    assert ("collective-mismatch" in causes) is is_told
    if is_told:
        assert f"at number {number} rank 0 in {kind} and ranks 1, 2, 3 in ALLGATHER" in found.root_causes[0].detail
