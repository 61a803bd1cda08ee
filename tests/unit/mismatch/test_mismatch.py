"""The shares of the gap: each planted cause gets the tokens it is responsible for, and a clean run has none."""

import json

import numpy as np
import pytest
import torch

import rldbg
from bigram_rollouts import LENGTH, WORDS, log_softmax, record, rollouts
from rldbg.cli.application import run
from rldbg.core import IncompleteDataError
from rldbg.mismatch import explain_mismatch

CLEAN = rollouts()


def other_weights(seed=1, size=0.3):
    return CLEAN.log_probs(CLEAN.logits + np.random.default_rng(seed).normal(0, size, (WORDS, WORDS)))


def rows(name):
    """A row of inputs per sample, with one fault from the third token on."""
    ids = CLEAN.tokens.copy()
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape).copy()
    mask = np.ones_like(ids)
    if name == "tokens-changed":
        ids[:, 2] += 1
    elif name == "positions":
        positions[:, 3:] -= 3
    elif name == "tokens-not-attended":
        mask[:, 0] = 0
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


def raised(array, where):
    changed = array.copy()
    changed[where] = 0
    return changed


def penalised(amount):
    """Logits of tokens that the answer has already are lowered."""
    found = CLEAN.rollout.copy()
    for row, tokens in enumerate(CLEAN.tokens):
        for place in range(LENGTH):
            logits = CLEAN.logits[tokens[place]].copy()
            logits[np.unique(tokens[1 : place + 1])] -= amount
            scaled = logits / 0.8
            found[row, place] = scaled[tokens[place + 1]] - np.log(np.exp(scaled).sum())
    return found


def packed_rows(restart):
    """Six rows of eight samples each, whose position ids start again with each sample, or go on."""
    ids = CLEAN.tokens.reshape(6, -1)
    places = np.arange(ids.shape[1])
    return {"input_ids": ids, "position_ids": np.broadcast_to(places % 7 if restart else places, ids.shape).copy()}


def coarse(data):
    """Logits, of the size that trained models have, and log softmax in bfloat16."""
    scaled = torch.from_numpy(data.logits / 0.8 + 16).to(torch.bfloat16)
    return torch.log_softmax(scaled, -1).double().numpy()[data.tokens[:, :-1], data.tokens[:, 1:]]


FIRST = (slice(None), 0)
PLANTED = {
    "temperature": CLEAN.but(rollout=CLEAN.log_probs(temperature=1.0)),
    "sampling-filter": (lambda data: data.but(rollout=data.log_probs(keep=5)))(rollouts(keep=5)),
    "penalty": CLEAN.but(rollout=penalised(1.0)),
    "zero-filled": CLEAN.but(rollout=raised(CLEAN.rollout, FIRST)),
    "shift-by-one": CLEAN.but(rollout=np.roll(CLEAN.rollout, 1, axis=1)),
    "non-finite": CLEAN.but(rollout=np.where(np.arange(LENGTH) == 2, np.nan, CLEAN.rollout)),
    "weights-not-synced": CLEAN.but(rollout=other_weights(), reference=other_weights()),
    "policy-version": CLEAN.but(rollout=other_weights(), versions=CLEAN.versions),
    "one-replica": CLEAN.but(
        rollout=np.where(np.arange(48)[:, None] % 2 == 1, other_weights(), CLEAN.rollout),
        extra=[{"replica": row % 2} for row in range(48)],
    ),
    "environment-in-mask": CLEAN.but(
        rollout=raised(CLEAN.rollout, (slice(None), 3)), versions=np.where(np.arange(LENGTH) == 3, -1, CLEAN.versions)
    ),
    "stop-token": CLEAN.but(rollout=np.where(np.arange(LENGTH) == LENGTH - 1, CLEAN.rollout - 2, CLEAN.rollout)),
    "lora-not-delivered": CLEAN.but(
        rollout=other_weights(), reference=other_weights(), trains="layers.0.lora_A.weight"
    ),
    "packing": CLEAN.but(
        trainer=np.where(np.arange(48)[:, None] % 8 != 0, other_weights(), CLEAN.trainer), inputs=packed_rows(False)
    ),
    "softmax-precision": CLEAN.but(rollout=coarse(CLEAN)),
    "precision": CLEAN.but(rollout=other_weights(size=0.01)),
    **{
        name: CLEAN.but(trainer=np.where(np.arange(LENGTH) >= 2, other_weights(), CLEAN.trainer), inputs=rows(name))
        for name in ("tokens-changed", "positions", "tokens-not-attended")
    },
}


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_accounts_for_the_gap(tmp_path, cause):
    steps = (CLEAN, PLANTED[cause]) if cause == "policy-version" else (PLANTED[cause],)
    report = explain_mismatch(record(tmp_path, *steps))
    assert [item.id for item in report.causes][:1] == [cause]
    assert report.causes[0].share > 0.9 and len(report.causes[0].proof) == 3
    rest = report.unexplained.share if report.unexplained else 0.0
    assert sum(item.share for item in report.causes) + rest == pytest.approx(1, abs=6e-3)


def test_a_clean_run_is_silent(tmp_path):
    report = explain_mismatch(record(tmp_path, CLEAN, CLEAN.but(versions=CLEAN.versions + 1)))
    assert report.agrees and report.metrics["mean_abs"] == 0 and report.metrics["ess"] == pytest.approx(1)


def test_what_nothing_shows_is_unexplained_and_says_where(tmp_path):
    spoiled = CLEAN.but(rollout=np.where(np.arange(LENGTH) == 0, CLEAN.rollout - 2, CLEAN.rollout))
    report = explain_mismatch(record(tmp_path, spoiled))
    assert not report.causes
    assert report.unexplained.share == pytest.approx(1) and "first token of an answer" in report.unexplained.text


def test_packed_rows_whose_positions_start_again_are_no_cause(tmp_path):
    """What is packed rightly says nothing about a gap that has another cause."""
    report = explain_mismatch(record(tmp_path / "bad", PLANTED["packing"].but(inputs=packed_rows(True))))
    assert "packing" not in [item.id for item in report.causes] and not report.agrees
    assert explain_mismatch(record(tmp_path / "clean", CLEAN.but(inputs=packed_rows(True)))).agrees


def test_log_probs_that_are_only_stored_coarsely_are_told_from_a_coarse_softmax(tmp_path):
    stored = torch.from_numpy(CLEAN.rollout).to(torch.bfloat16).double().numpy()
    report = explain_mismatch(record(tmp_path, CLEAN.but(rollout=stored)))
    assert [item.id for item in report.causes] == ["precision"] and "stored in bfloat16" in report.causes[0].text


def test_before_the_first_update_the_starting_weights_are_no_cause(tmp_path):
    """Policy and reference are one model; the trainer's log probs are only stored coarsely."""
    stored = torch.from_numpy(CLEAN.trainer).to(torch.bfloat16).double().numpy()
    report = explain_mismatch(record(tmp_path, CLEAN.but(trainer=stored, reference=CLEAN.rollout)))
    assert [item.id for item in report.causes] == ["precision"] and report.causes[0].share > 0.99


def test_two_causes_get_their_shares(tmp_path):
    filled = raised(CLEAN.log_probs(temperature=1.0), FIRST)
    report = explain_mismatch(record(tmp_path, CLEAN.but(rollout=filled)))
    shares = {item.id: item.share for item in report.causes}
    exact = np.abs(filled - CLEAN.trainer)
    assert set(shares) == {"zero-filled", "temperature"}
    assert shares["zero-filled"] == pytest.approx(exact[FIRST].sum() / exact.sum(), abs=1e-3)


def test_the_engine_that_depends_on_its_batch_is_told_by_repeated_tokens(tmp_path):
    noisy = CLEAN.rollout + np.random.default_rng(3).normal(0, 0.05, CLEAN.rollout.shape)
    report = explain_mismatch(record(tmp_path, CLEAN.but(rollout=noisy)))
    assert report.causes[0].id == "batch-variance" and report.causes[0].parameters["side"] == "rollout"
    assert report.causes[0].parameters["scatter"] == pytest.approx(0.05, rel=0.4)


def test_metrics_come_by_step_position_turn_length_replica_and_lag(tmp_path):
    report = explain_mismatch(record(tmp_path, CLEAN, PLANTED["one-replica"]))
    assert set(report.parts) == {"step", "position", "replica", "version lag"}
    assert report.parts["replica"]["0"]["mean_abs"] == 0 < report.parts["replica"]["1"]["mean_abs"]
    assert report.parts["step"]["0"]["max_abs"] == 0 < report.parts["step"]["1"]["max_abs"]
    gap = np.abs(PLANTED["one-replica"].rollout - CLEAN.trainer)
    assert report.parts["step"]["1"]["beyond_e"] == pytest.approx((gap > 1).mean(), abs=1e-6)


def test_the_trainer_of_one_recording_and_the_rollout_of_another(tmp_path):
    trainer, rollout = record(tmp_path / "a", CLEAN), record(tmp_path / "b", PLANTED["temperature"])
    assert explain_mismatch(trainer, rollout).causes[0].id == "temperature"
    assert explain_mismatch(rollout, trainer).agrees


def test_the_verb_prints_shares_and_exits_with_1(tmp_path, capsys):
    record(tmp_path / "bad", PLANTED["temperature"])
    assert run(["mismatch", str(tmp_path / "bad")]) == 1
    assert "temperature: the rollout's log probs are those of logits divided by 1.25" in capsys.readouterr().out
    assert run(["mismatch", str(tmp_path / "bad"), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["causes"][0]["id"] == "temperature" and document["parts"]["step"]["0"]["tokens"] == 288
    record(tmp_path / "good", CLEAN)
    assert run(["mismatch", str(tmp_path / "good")]) == 0


LONG = 40


def lone_samples(seed=4, top_p=1.0, penalty=0.0, scope=0):
    """One sample per prompt, so that no two tokens share a context: [32, 1 + LONG] tokens and their logits."""
    numbers = np.random.default_rng(seed)
    tables = numbers.normal(0, 3.0, (32, LONG, 40))
    tokens = np.zeros((32, 1 + LONG), np.int64)
    tokens[:, 0] = np.arange(32)
    shown = tables.copy()
    for row in range(32):
        for place in range(LONG):
            logits = shown[row, place]
            logits[np.unique(tokens[row, scope : place + 1])] -= penalty
            ordered = np.sort(log_softmax(logits))[::-1]
            kept = np.count_nonzero(np.exp(ordered).cumsum() - np.exp(ordered) < top_p)
            logits[log_softmax(logits) < ordered[kept - 1]] = -np.inf
            chances = np.exp(log_softmax(logits))
            tokens[row, place + 1] = numbers.choice(40, p=chances)
    rows, places = np.arange(32)[:, None], np.arange(LONG)[None]
    both = [log_softmax(which)[rows, places, tokens[:, 1:]] for which in (shown, tables)]
    return CLEAN.but(tokens=tokens, rollout=both[0], trainer=both[1], versions=np.zeros((32, LONG), int),
                     extra=[{} for _ in tokens])  # fmt: skip


def noisy(data):
    return data.but(rollout=data.rollout + np.random.default_rng(0).normal(0, 0.02, data.rollout.shape))


@pytest.mark.parametrize(
    ("cause", "data"),
    [
        # One token is left at some places: its log prob is 0, and not because it was filled in.
        ("sampling-filter", lone_samples(top_p=0.8)),
        ("penalty", lone_samples(penalty=1.0, scope=1)),
        ("penalty", lone_samples(penalty=1.0, scope=0)),
        ("precision", noisy(lone_samples())),
    ],
)
def test_causes_are_told_without_shared_contexts(tmp_path, cause, data):
    report = explain_mismatch(record(tmp_path, data))
    assert [(item.id, item.share > 0.9) for item in report.causes] == [(cause, True)]


@pytest.mark.parametrize("seed", range(3))
def test_log_probs_of_another_context_are_not_taken_for_a_temperature(tmp_path, seed):
    """What the trainer's model was given is not recorded: its log probs are lower, as far as they are unlikely."""
    data = lone_samples()
    other = np.random.default_rng(seed).normal(0, 2.0, (32, LONG, 40))
    wrong = log_softmax(other)[np.arange(32)[:, None], np.arange(LONG)[None], data.tokens[:, 1:]]
    entropy = -(np.exp(log_softmax(other)) * log_softmax(other)).sum(-1)
    record(tmp_path, data.but(trainer=wrong))
    with rldbg.Recorder(tmp_path) as recorder:
        samples = [(f"g{row // 8}", row % 8) for row in range(32)]
        numbers = {"log_probs": wrong, "entropy": entropy}
        recorder.record("forward_data", step=0, micro=0, samples=samples, response_mask=np.ones((32, LONG), int),
                        **{name: value.astype(np.float32) for name, value in numbers.items()})  # fmt: skip
    report = explain_mismatch(rldbg.open(tmp_path))
    assert report.causes == () and report.unexplained.share == pytest.approx(1)


def sequences(values):
    return [[0.0, *map(float, row)] for row in values]


def nemo_rl(folder, data):
    tokens, rollout, trainer = data.tokens.tolist(), sequences(data.rollout), sequences(data.trainer)
    rows = [
        {"token_ids": [ids], "token_loss_mask": [[0, *[1] * LENGTH]], "generation_logprobs": [theirs],
         "prev_logprobs": [ours], "rewards": [0.0], "input_lengths": [1 + LENGTH], "idx": [number]}
        for number, (ids, theirs, ours) in enumerate(zip(tokens, rollout, trainer, strict=True))
    ]  # fmt: skip
    (folder / "train_data_step1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def prime_rl(folder, data):
    place = folder / "token_exports" / "step_1"
    place.mkdir(parents=True)
    tokens, rollout, trainer = data.tokens.tolist(), sequences(data.rollout), sequences(data.trainer)
    rows = [
        {"schema_version": 1, "step": 1, "rank": 0, "micro_step": number // 8, "micro_sequence_idx": number % 8,
         "export_sequence_idx": number, "token_ids": ids, "loss_mask": [False, *[True] * LENGTH],
         "inference_logprobs": theirs, "trainer_logprobs": ours}
        for number, (ids, theirs, ours) in enumerate(zip(tokens, rollout, trainer, strict=True))
    ]  # fmt: skip
    (place / "rank_0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("written", [nemo_rl, prime_rl])
def test_values_on_whole_sequences_are_those_of_their_tokens(tmp_path, written):
    for name, data in (("clean", CLEAN), ("temperature", PLANTED["temperature"])):
        (tmp_path / name).mkdir()
        written(tmp_path / name, data)
        found = [item.id for item in explain_mismatch(rldbg.open(tmp_path / name)).causes]
        assert found == ([] if name == "clean" else [name])


@pytest.mark.parametrize("kind", ["old_log_probs", "trajectory", "batch_inputs"])
def test_a_step_that_cannot_be_read_is_left_out_and_told(tmp_path, kind, capsys):
    sampled = PLANTED["temperature"].but(inputs=packed_rows(True))
    record(tmp_path, sampled, sampled, sampled)
    (damaged,) = (tmp_path / kind).glob("step_000001*")
    damaged.write_bytes(damaged.read_bytes()[:300])
    report = explain_mismatch(rldbg.open(tmp_path))
    assert [finding.where for finding in report.findings] == ["step 1"]
    assert report.causes[0].id == "temperature" and set(report.parts["step"]) == {"0", "2"}
    assert run(["mismatch", str(tmp_path)]) == 1
    assert "step 1" in capsys.readouterr().out
    with pytest.raises(IncompleteDataError, match=damaged.name):
        explain_mismatch(rldbg.open(tmp_path), steps=[1])
