"""Which tensor a GPU had no memory for, by the line that failed, and whether fragmentation is ruled out."""

import pytest

FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried} GiB. GPU 0 has a total capacity of 79.10 "
    "GiB of which {free} GiB is free. Including non-PyTorch memory, this process has 60.00 GiB memory in use. Of the "
    "allocated memory 55.00 GiB is allocated by PyTorch, and {unused} GiB is reserved by PyTorch but unallocated.\n"
)


def failed_at(code, *, tried="30.51", free="12.00", unused="1.10", head=""):
    return (
        f'{head}Traceback (most recent call last):\n  File "/w/fold.py", line 9, in <module>\n    run_step(batch)\n'
        f'  File "/w/loss.py", line 5, in step\n    {code}\n' + FULL.format(tried=tried, free=free, unused=unused)
    )


def cause_of(verdict, text):
    cause = verdict(text).root_causes[0]
    assert cause.id == "torch-cuda-oom"
    return cause


@pytest.mark.parametrize(
    "code",
    [
        "logp = torch.log_softmax(logits.float(), dim=-1)",
        "loss = F.cross_entropy(out.view(-1, n), labels)",
        "x = logits / temperature",
        "ent = entropy_from_logits(logits[:, -n:])",
    ],
)
def test_lines_on_logits_are_told_with_a_range_of_tokens(verdict, code):
    cause = cause_of(verdict, failed_at(code))
    assert "makes the logits" in cause.detail
    assert "an estimate, for the log does not show the vocabulary" in cause.detail
    assert "31,000" in cause.detail  # 30.51 GiB / (262,144 x 4)
    assert "256,000" in cause.detail  # 30.51 GiB / (32,000 x 4)
    assert "in chunks" in cause.fix[0]
    assert "One sample is never split" in cause.fix[1]


def test_a_vocabulary_in_the_log_gives_the_tokens(verdict):
    cause = cause_of(verdict, failed_at("p = log_softmax(logits)", head="config: vocab_size=128256\n"))
    assert "at 128256 words of the vocabulary" in cause.detail
    assert "64,000 tokens" in cause.detail


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("self.optimizer.step()", "state of the optimizer"),
        ("self.kv_cache = torch.zeros(shape, device=device)", "keys and values"),
        ("dist.all_gather_into_tensor(out, shard)", "put together from all ranks"),
        ("attn_weights = torch.matmul(q, k) * scale", "scores of attention"),
        ("return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))", "activations of a layer"),
    ],
)
def test_other_lines_tell_their_tensor(verdict, code, words):
    cause = cause_of(verdict, failed_at(code))
    assert words in cause.detail
    assert "an estimate" not in cause.detail


def test_numbers_rule_fragmentation_out(verdict):
    assert "it is not fragmentation" in cause_of(verdict, failed_at("y = f(x)")).detail
    assert "fragmentation" not in cause_of(verdict, failed_at("y = f(x)", unused="15.00")).detail


def test_lines_that_are_printed_below_the_exception_count(verdict):
    text = FULL.format(tried="30.51", free="12.00", unused="1.10") + (
        "                 ^^^^^^^^^^^^\n    nll = compute_log_probs(logits.clone(), tokens)\n"
        '   File "/w/loss.py", line 5, in step\n'
    )
    assert "makes the logits" in cause_of(verdict, text).detail
