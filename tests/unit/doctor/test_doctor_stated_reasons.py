"""An exception that states its reason is told: a variable, a count of rows, a prefix, an address."""

import pytest

LIB = "/v/lib/python3.11/site-packages/"


def raised(said, *, file=f"{LIB}quilt/sew.py", function="sew"):
    return f'Traceback (most recent call last):\n  File "{file}", line 3, in {function}\n    check(7)\n{said}\n'


def ids(found):
    return [cause.id for cause in found.root_causes]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("AssertionError: The env var, FROB_SEAM_HOOK, is not allowed here", "FROB_SEAM_HOOK"),
        ("RuntimeError: frob sees an invalid LD_AUDIT; start python with `LD_AUDIT=/x/frob.so`", "LD_AUDIT"),
        ("ValueError: environment variable SEAM_ROOT is empty", "SEAM_ROOT"),
        ("RuntimeError: Expected env var QUILT_RANK to be an integer, got 'a'", "QUILT_RANK"),
    ],
)
def test_a_variable_that_a_message_names_is_the_cause(verdict, said, name):
    found = verdict(raised(said))
    assert ids(found) == ["message-names-setting"]
    assert name in found.headline


@pytest.mark.parametrize(
    "said",
    [
        "RuntimeError: CUDA error: device-side assert. Compile with TORCH_USE_FROB to enable it",
        "ValueError: seam is CRITICAL for row 7",
        "RuntimeError: connection to SEAM_HOST timed out",
        "ValueError: unknown token PAD_TOKEN is in row 7",
    ],
)
def test_capitals_are_not_always_a_variable(verdict, said):
    assert "message-names-setting" not in ids(verdict(raised(said)))


def test_variables_that_ray_keeps_for_itself(verdict):
    found = verdict(
        raised(
            "AssertionError: The env var, __RAY_FROB_HOOK_ENV_VAR, is not permitted because it is reserved for the "
            "internal use.",
            file=f"{LIB}vllm/v1/executor/seam.py",
        )
    )
    assert ids(found) == ["ray-reserved-variable"]


def test_a_memory_saver_that_was_not_preloaded(verdict):
    found = verdict(
        raised(
            'AssertionError: TorchMemorySaver observes invalid LD_PRELOAD. You can use frob() (LD_PRELOAD="" '
            "process_id=7)",
            file=f"{LIB}torch_memory_saver/hooks/frob.py",
        )
    )
    assert ids(found) == ["memory-saver-not-preloaded"]


@pytest.mark.parametrize(
    "said",
    [
        "AssertionError: data batch size must be divisible by mini_batch_size, got 1032 and 512",
        "ValueError: number of samples (1030) is not divisible by 8 ranks",
        "AssertionError: len(rows) % ranks == 0, got 1030 and 8",
        "ValueError: got 37 trajectories, which must be a multiple of 8",
    ],
)
def test_a_count_of_rows_is_no_setting(verdict, said):
    found = verdict(raised(said))
    assert ids(found) == ["row-count-not-divisible"], found.headline
    assert not any("Change the settings" in step for step in found.root_causes[0].fix)


@pytest.mark.parametrize(
    "said",
    [
        "AssertionError: global_batch_size 30 is not divisible by micro batch times data parallel size 8",
        "ValueError: hidden_size must be divisible by num_seams",
    ],
)
def test_a_size_that_was_set_is_one(verdict, said):
    assert "row-count-not-divisible" not in ids(verdict(raised(said)))


@pytest.mark.parametrize(
    ("name", "word"),
    [("base_model", "PEFT"), ("base_model.model.model.embed", "PEFT"), ("_orig_mod", "torch.compile"), ("seam", "")],
)
def test_a_wrapper_s_prefix_tells_whose_names_were_sent(verdict, name, word):
    said = f"ValueError: There is no module or parameter named '{name}' in FrobForCausalLM"
    cause = verdict(raised(said, file=f"{LIB}vllm/model_executor/models/utils.py")).root_causes[0]
    told = cause.title + cause.detail
    assert word in told
    assert ("PEFT" in told) == (word == "PEFT")
    assert not any("Qwen" in step for step in cause.fix)


def test_an_address_at_which_no_head_answers_may_be_stale(verdict):
    found = verdict(
        "05-16 11:05:50,467 INFO worker.py:9 -- Connecting to existing Ray cluster at address: 10.2.0.3:7001...\n"
        "[2026-05-16 11:05:55,537 E 6 6] gcs_rpc_client.h:9: Failed to connect to GCS at address 10.2.0.3:7001 within "
        "5 seconds.\n"
    )
    assert ids(found) == ["ray-gcs-unreachable"]
    steps = "".join(found.root_causes[0].fix)
    assert "--address=10.2.0.3:7001" in steps
    assert "ray stop" in steps and "unset RAY_ADDRESS" in steps and "node-ip-address" in steps


def test_two_ranks_that_write_at_once_are_read_apart(verdict):
    found = verdict(
        " 11%|##   | 12/99 [00:25<8:30, 30.64s/it]\n"
        "Traceback (most recent call last):\n"
        '    "seams": row["seams_k"],    "seams": row["seams_k"],\n\n'
        "KeyErrorKeyError: : 'seams_k'\n"
    )
    assert "KeyError: 'seams_k'" in found.headline
    assert "KeyErrorKeyError" not in found.headline
    assert "without its last line" not in found.headline


@pytest.mark.parametrize(
    ("missing", "surplus", "told"),
    [
        ("backbone.embeddings.weight", "backbone.embedding.weight", "embedding"),
        ("layers.0.seam.weight", "model.layers.0.seam.weight", "model."),
        ("layers.0.seam.weight", "layers.0.frob.bias", ""),
    ],
)
def test_how_names_differ_is_told(verdict, missing, surplus, told):
    found = verdict(
        raised(
            "RuntimeError: Error(s) in loading state_dict for Quilt:\n"
            f'\tMissing key(s) in state_dict: "{missing}". \n\tUnexpected key(s) in state_dict: "{surplus}". '
        )
    )
    words = found.headline + "".join(cause.detail for cause in found.root_causes) + "".join(found.next)
    assert ("the names differ" in words) == bool(told)
    assert told in words


def test_the_reason_is_not_looked_for_where_it_is_told(verdict):
    head = "(EngineCore_DP0 pid=9) ERROR 03-18 18:02:58 [core.py:10] "
    found = verdict(
        f"{head}EngineCore failed to start.\n{head}Traceback (most recent call last):\n"
        f'{head}  File "{LIB}vllm/v1/frob.py", line 96, in run\n{head}    go()\n'
        f"{head}WibbleError: the seam is open\nRuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert "the seam is open" in found.headline
    assert not any("the reason is in the output" in step for step in found.next)


@pytest.mark.parametrize("code", ["show(eval_dataset[0][SEAMS])", '"seams": feature["seams_k"],'])
def test_a_column_that_rows_lack_is_a_candidate_with_its_proof(verdict, code):
    head = 'Traceback (most recent call last):\n  File "/w/train.py", line 7, in main\n'
    log = f"{head}    {code}\nKeyError: 'seams_k'\n"
    assert any("column_names" in step for step in verdict(log).next)


def test_a_key_of_something_else_is_none(verdict):
    head = 'Traceback (most recent call last):\n  File "/w/train.py", line 7, in main\n'
    log = head + "    go(os.environ['SEAM'])\nKeyError: 'SEAM'\n"
    assert not any("column_names" in step for step in verdict(log).next)


def test_of_an_unknown_process_no_placeholder_is_printed(verdict):
    found = verdict("ERROR 06-12 10:46:34 [core.py:517] EngineCore encountered a fatal error.\n")
    assert found.verdict == "unknown"
    assert not any("<pid>" in step or "{pid}" in step for step in found.next)
