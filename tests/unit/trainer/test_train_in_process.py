"""The whole loop in one process: what is recorded, that it repeats itself, that it replays and resumes bit for bit."""

import json
import signal
import threading
import time

import numpy as np
import pytest

import rldbg
from rldbg.analysis import compare
from rldbg.core import IncompleteDataError, Run, UsageError
from rldbg.recording.token_text import TokenText, find_tokenizer
from rldbg.trainer import CharacterTokenizer, train
from rldbg.trainer.in_process import ThreadMeeting

SELF_HOSTED = {
    "trajectory",
    "old_log_probs",
    "forward_data",
    "loss",
    "param",
    "gradient",
    "is_loss_debug",
    "batch_inputs",
}


def losses(run):
    return [float(record.fields["loss"]) for record in rldbg.open(run).records("loss")]


def parameters(run, step):
    return {record.fields["param_name"]: record.array("param") for record in rldbg.open(run).records("param", step)}


def same_parameters(one, other, step):
    ours, theirs = parameters(one, step), parameters(other, step)
    assert ours.keys() == theirs.keys() and len(ours) > 5
    return all(np.array_equal(ours[name], theirs[name]) for name in ours)


def replay_of(run):
    return {"type": "mock", "need_llm_inference": False, "trajectory_load_path": str(run)}


def test_every_kind_is_recorded_with_sample_ids_and_verifies_clean(base_run):
    run = base_run
    recording = rldbg.open(run)
    assert set(recording.kinds()) >= SELF_HOSTED
    assert recording.verify() == []
    samples = recording.samples(0, "trajectory")
    assert len(samples) == 12
    for kind in SELF_HOSTED - {"param", "gradient"}:
        rows = [sample for record in recording.records(kind, 0) for sample in record.samples]
        assert rows == list(samples), kind
    assert recording.micros("forward_data", 0) == (0, 1, 2)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1]
    assert {"success_rate", "reward/mean", "loss", "grad_norm"} <= rows[0].keys()
    facts = json.loads((run / "run.json").read_text())
    assert facts["exit_code"] == 0 and facts["threads"] == 1 and facts["process_threads"]["torch_threads"] == 1


def test_mini_batches_and_epochs_do_not_overwrite_each_other(trained):
    run = trained("a", steps=1, policy={"mini_batches": 3, "epochs": 2, "micro_batch_size": 2})
    recording = rldbg.open(run)
    places = {(key.epoch, key.mini_batch, key.micro) for key in recording.keys("loss", 0)}
    assert places == {(epoch, mini, micro) for epoch in range(2) for mini in range(3) for micro in range(2)}
    assert len({(key.epoch, key.mini_batch) for key in recording.keys("gradient", 0)}) == 6
    assert recording.verify() == []


def test_the_first_ratio_is_exactly_one(base_run):
    recording = rldbg.open(base_run)
    for record in recording.records("is_loss_debug", 0):
        valid = record.array("effective_valid") != 0
        assert np.all(record.array("prob_ratio")[valid] == 1)


def test_a_run_repeats_itself_bit_for_bit(base_run, trained):
    again = trained("again")
    assert losses(base_run) == losses(again) and any(losses(again))
    assert same_parameters(base_run, again, 1)
    assert not same_parameters(base_run, trained("other", seed=1), 1)


@pytest.mark.parametrize("format", ["safetensors", "jsonl"])
def test_a_replay_gives_the_same_losses_and_parameters_as_the_run_it_replays(trained, format):
    debug = {
        "enable_data_dump": True,
        "dump_format": format,
        "dump_options": {"trajectory": True, "loss": True, "param": True},
    }
    first = trained("a", debug=debug)
    second = trained("b", debug=debug, rollout_worker=replay_of(first))
    assert losses(first) == losses(second)
    assert same_parameters(first, second, 1)


def test_a_run_records_its_tokenizer(base_run):
    recording = rldbg.open(base_run)
    sample = recording.sample(recording.samples(0, "trajectory")[0], 0, "trajectory")
    texts = TokenText(find_tokenizer(recording)).of(sample.find("tokens").tolist())
    assert "".join(texts[:-1]).replace("<eos>", "").isascii() and "=" in texts
    assert texts == [CharacterTokenizer().decode([token]) or "<eos>" for token in sample.find("tokens").tolist()]


def changed_copy(run, target, change):
    """The run's trajectories, with one thing changed, as a recording of their own."""
    with rldbg.Recorder(target) as recorder:
        for record in rldbg.open(run).records("trajectory"):
            fields = dict(record.fields)
            if record.key.step == 0:
                change(fields)
            recorder.record(
                "trajectory", step=record.key.step, samples=record.samples, prompt_hashes=record.prompt_hashes, **fields
            )
    return target


def one_reward(fields):
    fields["reward"] = np.array(fields["reward"])
    fields["reward"][1] = 1 - fields["reward"][1]


def one_token(fields):
    """The first response token of a sample that goes on after it, so that what comes next is less or more certain."""
    tokens, masks = fields["tokens"], list(fields["loss_mask"])
    row = next(row for row, mask in enumerate(masks) if mask.sum() > 1)
    place = tokens.offsets[row] + int(masks[row].argmax())
    values = np.array(tokens.values)
    values[place] = 5 if values[place] != 5 else 6
    fields["tokens"] = type(tokens)(values, tokens.offsets)


@pytest.mark.parametrize("change", [one_reward, one_token])
def test_a_changed_reward_or_token_changes_the_replayed_loss(base_run, trained, tmp_path, change):
    unchanged = changed_copy(base_run, tmp_path / "unchanged", lambda fields: None)
    changed = changed_copy(base_run, tmp_path / "changed", change)
    same, different = (trained(place.name + "-run", rollout_worker=replay_of(place)) for place in (unchanged, changed))
    assert losses(same) == losses(base_run)
    assert losses(different)[:3] != losses(base_run)[:3]
    assert not same_parameters(different, base_run, 0)


def test_a_replay_asks_for_what_it_needs_by_name(base_run, trained, tmp_path):
    first = base_run
    with pytest.raises(IncompleteDataError, match="no trajectories of step 2"):
        trained("b", steps=3, rollout_worker=replay_of(first))
    with pytest.raises(IncompleteDataError, match=r"group_id='.*', run_id=4"):
        trained("c", data={"samples_per_prompt": 8}, rollout_worker=replay_of(first))
    with pytest.raises(IncompleteDataError, match="nowhere"):
        trained("d", rollout_worker=replay_of(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="trajectory_format is pt"):
        trained("e", rollout_worker=replay_of(first) | {"trajectory_format": "pt"})


def test_a_partial_replay_must_be_asked_for(trained):
    first = trained("a", data={"samples_per_prompt": 2})
    with pytest.raises(IncompleteDataError, match="run_id=2"):
        trained("b", rollout_worker=replay_of(first))
    run = trained("c", allow_partial=True, rollout_worker=replay_of(first))
    assert len(rldbg.open(run).samples(0, "trajectory")) == 6


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(trained):
    kl = {"kl_coeff": 0.1}  # the reference is what training began with, also when it goes on from a checkpoint
    whole = trained("whole", steps=4, algorithm=kl, checkpoint={"every_n_steps": 2})
    assert sorted(folder.name for folder in (whole / "checkpoints").iterdir()) == ["step_000002", "step_000004"]
    rest = trained("rest", steps=4, algorithm=kl, resume=whole / "checkpoints" / "step_000002")
    assert [row["step"] for row in map(json.loads, (rest / "metrics.jsonl").read_text().splitlines())] == [2, 3]
    assert same_parameters(whole, rest, 3)
    with pytest.raises(IncompleteDataError, match="no checkpoint"):
        trained("none", resume=rest)


def test_a_missing_model_is_named_before_anything_starts(trained, tmp_path):
    loaded = trained.recipe(model={"path": str(tmp_path / "nothing")})
    with pytest.raises(UsageError, match="nothing"):
        train(loaded, Run(tmp_path / "run"))


def test_a_kl_term_and_several_turns_train(trained):
    run = trained("a", algorithm={"kl_coeff": 0.1}, data={"max_turns": 2})
    kl = [float(record.fields["kl_loss"]) for record in rldbg.open(run).records("loss")]
    assert kl[0] == 0 and any(value > 0 for value in kl)
    record = next(iter(rldbg.open(run).records("trajectory", 0)))
    turns = [np.count_nonzero(np.diff(row) == 1) for row in record.rows("loss_mask")]
    assert max(turns) == 2


@pytest.mark.parametrize("place", [".", "recording"])
def test_a_replay_starts_from_the_weights_of_the_run_it_replays(base_run, trained, monkeypatch, place):
    """On another CPU the warm start would end elsewhere."""
    monkeypatch.setattr("rldbg.trainer.policy.warm_start", lambda *_, **__: pytest.fail("the warm start ran again"))
    replayed = trained("again", rollout_worker=replay_of(base_run / place))
    assert json.loads((replayed / "run.json").read_text())["warm_start"]["from"] == str(base_run / place)
    assert compare(rldbg.open(base_run), rldbg.open(replayed)).verdict == "equal"


def test_other_settings_start_from_a_warm_start_of_their_own(base_run, trained):
    replayed = trained("other", seed=1, rollout_worker=replay_of(base_run))
    assert "from" not in json.loads((replayed / "run.json").read_text())["warm_start"]


def test_an_interrupt_does_not_wait_for_what_a_rank_computes():
    meeting, release = ThreadMeeting(2), threading.Event()

    def rank():
        release.wait(60)

    def interrupted():
        # As the kernel does on Ctrl-C: the main thread is woken wherever it waits.
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        release.wait(60)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            meeting.each([rank, interrupted])
        assert time.monotonic() - started < 30
        assert meeting.barrier.broken
    finally:
        signal.signal(signal.SIGINT, before)
        release.set()
