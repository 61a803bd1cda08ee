"""compare on real recordings: what must be found, where, and what must not be called a difference."""

import copy
import json
import random
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import rldbg
from rldbg.analysis import compare
from rldbg.core import IncompleteDataError
from rldbg.recording.formats.pt_writer import dump_pt


def trajectories(count=24, length=12, prompt=4, group=4):
    rng = np.random.default_rng(0)
    made = []
    for number in range(count):
        tokens = rng.integers(0, 99, length).tolist()
        tokens[:prompt] = [number // group + 1] * prompt
        made.append(
            {
                "tokens": tokens,
                "loss_mask": [0] * prompt + [1] * (length - prompt),
                "reward": float(number % 2),
                "is_val": False,
                "extra_fields": {"group_id": f"g{number // group}", "run_id": number % group},
            }
        )
    return made


LOG_PROBS = -np.random.default_rng(1).random((2, 2, 6, 8), dtype=np.float32)


def write(root, samples, log_probs=LOG_PROBS, step=0, **changes):
    """A NexRL dump: one trajectory file and 2 ranks x 2 micro-batches of forward data."""
    (root / "trajectory").mkdir(parents=True, exist_ok=True)
    (root / "forward_data").mkdir(exist_ok=True)
    body = {"step": step, "num_trajectories": len(samples), "trajectories": samples}
    dump_pt(body, root / "trajectory" / f"step_{step:06d}.pt")
    for rank in range(2):
        for micro in range(2):
            values = log_probs[rank, micro]
            body = {
                "step": step,
                "rank": rank,
                "micro_idx": micro,
                "log_probs": values,
                "entropy": -values,
                "response_mask": np.ones(values.shape, dtype=np.int64),
                "log_probs_shape": list(values.shape),
                "entropy_shape": list(values.shape),
            } | changes
            dump_pt(body, root / "forward_data" / f"step_{step:06d}_rank{rank}_micro{micro}.pt")
    return root


@pytest.fixture
def base(tmp_path):
    return write(tmp_path / "a", trajectories())


def run(a, b, **options):
    return compare(rldbg.open(a), rldbg.open(b), **options)


def test_a_recording_equals_itself(base):
    result = run(base, base)
    assert result.verdict == "equal" and result.first_difference is None and result.compared > 0


def test_order_of_samples_is_no_difference(base, tmp_path):
    samples = trajectories()
    random.Random(0).shuffle(samples)
    assert run(base, write(tmp_path / "b", samples)).verdict == "equal"


def test_one_token_of_one_rank_is_named(base, tmp_path):
    changed = LOG_PROBS.copy()
    changed[1, 0, 4, 5] -= 8
    first = run(base, write(tmp_path / "b", trajectories(), changed)).first_difference.to_dict()
    assert (first["stage"], first["kind"], first["field"]) == ("forward", "forward_data", "log_probs")
    assert (first["rank"], first["micro"], first["row"], first["token"]) == (1, 0, 4, 5)


def test_small_noise_on_everything_is_found(base, tmp_path):
    noise = 1e-3 * np.random.default_rng(2).standard_normal(LOG_PROBS.shape).astype(np.float32)
    result = run(base, write(tmp_path / "b", trajectories(), LOG_PROBS + noise))
    assert result.verdict == "different" and result.first_difference.stage.value == "forward"


def test_the_earlier_stage_is_named_first(base, tmp_path):
    samples = trajectories()
    samples[10]["reward"] = -99.0
    first = run(base, write(tmp_path / "b", samples, LOG_PROBS - 1)).first_difference.to_dict()
    assert first["stage"] == "reward" and first["sample"] == "g2/2" and (first["a"], first["b"]) == (0.0, -99.0)


def test_other_ids_are_matched_by_prompt_and_prefix(base, tmp_path):
    samples = trajectories()
    for sample in samples:
        sample["extra_fields"]["group_id"] = "other-" + sample["extra_fields"]["group_id"]
    random.Random(1).shuffle(samples)
    assert run(base, write(tmp_path / "same", copy.deepcopy(samples))).verdict == "equal"
    victim = next(s for s in samples if s["extra_fields"] == {"group_id": "other-g3", "run_id": 1})
    victim["tokens"][9] += 1
    first = run(base, write(tmp_path / "b", samples)).first_difference.to_dict()
    assert (first["field"], first["sample"], first["token"]) == ("tokens", "g3/1", 9)


def test_a_missing_sample_counts(base, tmp_path):
    result = run(base, write(tmp_path / "b", trajectories()[:-1]))
    assert result.verdict == "different"
    assert any(finding.id == "unaligned" and "g5/3" in finding.evidence for finding in result.findings)


def test_padding_is_no_difference_but_a_longer_response_is(base, tmp_path):
    wide = np.concatenate([LOG_PROBS, np.full((2, 2, 6, 3), 7, np.float32)], axis=-1)
    mask = np.ones(wide.shape[2:], dtype=np.int64)
    mask[:, 8:] = 0
    assert run(base, write(tmp_path / "b", trajectories(), wide, response_mask=mask)).verdict == "equal"
    mask[2, 8] = 1
    first = run(base, write(tmp_path / "c", trajectories(), wide, response_mask=mask)).first_difference
    assert (first.place.row, first.place.token) == (2, 8)


def test_nan_on_both_sides_is_equal_and_on_one_side_is_not(tmp_path):
    odd = LOG_PROBS.copy()
    odd[0, 0, 0, 0] = np.nan
    a = write(tmp_path / "a", trajectories(), odd)
    assert run(a, write(tmp_path / "b", trajectories(), odd.copy())).verdict == "equal"
    assert run(a, write(tmp_path / "c", trajectories())).verdict == "different"


def test_missing_steps_and_nothing_to_compare(base, tmp_path):
    longer = write(write(tmp_path / "b", trajectories()), trajectories(), step=1)
    assert run(base, longer).verdict == "incomplete"
    assert run(base, longer, steps=[0]).verdict == "equal"
    with pytest.raises(IncompleteDataError, match="step 1"):
        run(base, longer, steps=[1])
    with pytest.raises(IncompleteDataError, match="nothing to compare"):
        run(base, longer, kinds=["gradient"])


def test_a_rank_missing_on_one_side_counts(base, tmp_path):
    other = write(tmp_path / "b", trajectories())
    (other / "forward_data" / "step_000000_rank1_micro1.pt").unlink()
    result = run(base, other)
    assert result.verdict == "different" and any(
        "rank 1 micro 1" in line for f in result.findings for line in f.evidence
    )


def test_comparing_is_symmetric(base, tmp_path):
    changed = LOG_PROBS.copy()
    changed[0, 1, 2, 3] += 1
    other = write(tmp_path / "b", trajectories(), changed)
    there, back = run(base, other).first_difference.to_dict(), run(other, base).first_difference.to_dict()
    assert there.pop("a") == back.pop("b") and there.pop("b") == back.pop("a") and there == back


def test_the_documents_own_call(base, tmp_path, capsys):
    from rldbg.cli.application import run as rldbg_command

    changed = LOG_PROBS.copy()
    changed[1, 1] += 1e-3
    weaver = write(tmp_path / "weaver", trajectories(), changed)
    for root, shift in ((base, 0.0), (weaver, 3.5e-4)):
        (root / "loss").mkdir()
        for rank in range(2):
            body = {
                "step": 0,
                "rank": rank,
                "micro_idx": 0,
                "loss": 0.5 + shift * rank,
                "pg_loss": 0.5,
                "entropy_loss": 0.0,
            }
            dump_pt(body, root / "loss" / f"step_000000_rank{rank}_micro0.pt")
    report = tmp_path / "comparison_report.json"
    form = ["compare", "--self_hosted_dir", str(base), "--weaver_dir", str(weaver)]
    assert rldbg_command([*form, "--step", "0", "--output", str(report)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "Debug Dump Comparison Report - Step 0" in lines and "Comparing: 2 ranks × 2 microbatches" in lines
    assert "  rank0_micro0 loss: ✓ diff=0.000000e+00" in lines and "  rank1_micro0 loss: ✗ diff=3.500000e-04" in lines
    assert "  max: 3.500000e-04" in lines and report.exists()
    assert rldbg_command(form) == 4, "the documented default is step 1, which is not there"
    assert rldbg_command([*form, "--step", "0", "--num_ranks", "1"]) == 0
    capsys.readouterr()
    assert rldbg_command([*form, "--step", "0", "--remote_api_dir", str(weaver)]) == 1
    assert capsys.readouterr().out.count("rank1_micro0 loss: ✗") == 1, "one folder in two roles is compared once"


def _documented(base, tmp_path):
    """The service's and the remote API's dumps beside `base`: one old log prob, one loss and one reward differ."""
    weaver, remote = write(tmp_path / "weaver", trajectories()), tmp_path / "remote"
    for folder in (base / "old_log_probs", base / "loss", weaver / "loss", weaver / "is_loss_debug"):
        folder.mkdir()
    for folder in ("prepared_trajectories", "datums"):
        (remote / folder).mkdir(parents=True)
    dump_pt({"step": 0, "old_log_probs": LOG_PROBS.reshape(24, 8)}, base / "old_log_probs" / "step_000000.pt")
    for rank, micro in ((rank, micro) for rank in range(2) for micro in range(2)):
        name, where = f"step_000000_rank{rank}_micro{micro}.pt", {"step": 0, "rank": rank, "micro_idx": micro}
        for root, loss in ((base, 0.5), (weaver, 0.5 + 3.5e-4 * rank)):
            dump_pt(where | {"loss": loss, "pg_loss": 0.5, "entropy_loss": 0.0}, root / "loss" / name)
        old = LOG_PROBS[rank, micro].copy()
        old[2, 3] -= 0.5 * (rank == 1 and micro == 0)
        values = {"log_probs": old, "old_log_probs": old, "advantages": old * 0, "effective_valid": old * 0 + 1}
        dump_pt(where | values | {"loss": 0.5}, weaver / "is_loss_debug" / name)
    samples = trajectories()
    samples[7]["reward"] = 5.0
    body = {"step": 0, "num_trajectories": len(samples), "trajectories": samples, "advantages": [0.0] * len(samples)}
    dump_pt(body, remote / "prepared_trajectories" / "step_000000.pt")
    inputs = {"target_tokens": [2, 3, 4], "logprobs": [0.0, -1.0, -2.0], "advantages": [0.0, 1.0, 1.0]}
    datums = [{"input_tokens": [1, 2, 3], "loss_fn_inputs": inputs}] * 2
    dump_pt({"step": 0, "num_datums": 2, "datums": datums}, remote / "datums" / "step_000000.pt")
    return weaver, remote


def test_the_documents_report_has_its_sections_beside_ours(base, tmp_path, capsys):
    weaver, remote = _documented(base, tmp_path)
    report = tmp_path / "report.json"
    form = ["--self_hosted_dir", base, "--weaver_dir", weaver, "--remote_api_dir", remote, "--step", 0]
    ran = subprocess.run(
        [sys.executable, "-m", "rldbg.compare_debug_dumps", *map(str, form), "--output", report],
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr
    written = json.loads(report.read_text())
    assert written["verdict"] == "different" and (written["num_ranks"], written["num_micros"]) == (2, 2)
    assert (written["self_hosted_dir"], written["weaver_dir"]) == (str(base), str(weaver))
    names = ["trajectories", "forward_data_all", "loss_data_all", "is_loss_debug_all", "datums_analysis"]
    assert [section["section"] for section in written["sections"]] == names
    samples, forward, loss, debug, datums = written["sections"]
    assert len(samples["trajectory_comparisons"]) == 24 and samples["trajectory_comparisons"][7]["ra_reward"] == 5.0
    assert forward["comparisons"][0]["comparisons"][0] | {"correlation": 1} == {
        "name": "log_probs", "status": "compared", "t1_shape": [6, 8], "t2_shape": [6, 8], "max_diff": 0,
        "mean_diff": 0, "is_close": True, "correlation": 1,
        **{f"t{side}_{name}": pytest.approx(value) for side in (1, 2) for name, value in
           {"mean": LOG_PROBS[0, 0].mean(), "std": LOG_PROBS[0, 0].std(ddof=1), "min": LOG_PROBS[0, 0].min(),
            "max": LOG_PROBS[0, 0].max()}.items()},
    }  # fmt: skip
    assert [part["comparisons"][0]["is_close"] for part in loss["comparisons"]] == [True, True, False, False]
    held = {(part["rank"], part["micro"]): part["comparisons"][1] for part in debug["comparisons"]}
    assert {cell for cell, item in held.items() if not item["is_close"]} == {(1, 0)}
    assert held[1, 0]["name"] == "old_log_probs" and held[1, 0]["max_diff"] == pytest.approx(0.5)
    assert debug["comparisons"][0]["comparisons"][2] == {
        "name": "advantages", "status": "first_none", "t2_shape": [6, 8]
    }  # fmt: skip
    assert (datums["status"], datums["num_datums"], datums["input_tokens_len"]) == ("analyzed", 2, 3)
    assert set(datums["loss_fn_inputs_keys"]) == {"target_tokens", "logprobs", "advantages"}
    assert re.search(r"IS_LOSS_DEBUG_ALL(.|\n)* old_log_probs: ✗ diff=(5.0|4.9)\d+e-01", ran.stdout), ran.stdout
    assert "Number of datums: 2" in ran.stdout.splitlines()


@pytest.mark.parametrize("width", [8, 6, 10])
def test_old_log_probs_are_held_against_a_services_where_it_trains(base, tmp_path, width):
    """The service pads each micro-batch by itself, and has no log probs of tokens that it does not train on."""
    service = write(tmp_path / "service", trajectories())
    for folder in (base / "old_log_probs", service / "is_loss_debug"):
        folder.mkdir()
    dump_pt({"step": 0, "old_log_probs": LOG_PROBS.reshape(24, 8)}, base / "old_log_probs" / "step_000000.pt")
    for wrong in (0.0, 0.5):
        for rank, micro in ((rank, micro) for rank in range(2) for micro in range(2)):
            valid, values = np.zeros((6, width)), np.zeros((6, width), np.float32)
            valid[:, : min(width, 8)] = 1
            values[:, : min(width, 8)] = LOG_PROBS[rank, micro][:, :width]
            valid[2, 3] = values[2, 3] = 0
            values[4, 5] -= wrong * (rank == 1 and micro == 1)
            body = {"step": 0, "rank": rank, "micro_idx": micro, "old_log_probs": values, "effective_valid": valid}
            dump_pt(body, service / "is_loss_debug" / f"step_000000_rank{rank}_micro{micro}.pt")
        for a, b in ((base, service), (service, base)):
            result = run(a, b)
            assert result.verdict == ("different" if wrong else "equal"), result.findings
            if wrong:
                first = result.first_difference
                assert (first.stage.value, first.place.token, first.field) == ("old_log_probs", 5, "old_log_probs")


def test_a_remote_dump_is_compared_by_what_it_has(base, tmp_path):
    remote = tmp_path / "remote"
    (remote / "prepared_trajectories").mkdir(parents=True)
    samples = trajectories()
    samples[7]["reward"] = 5.0
    body = {"step": 0, "num_trajectories": len(samples), "trajectories": samples, "advantages": [0.0] * len(samples)}
    dump_pt(body, remote / "prepared_trajectories" / "step_000000.pt")
    first = run(base, remote).first_difference.to_dict()
    assert (first["stage"], first["sample"], first["b"]) == ("reward", "g1/3", 5.0)


def test_a_users_kind_may_hold_tensors_beside_its_samples(tmp_path):
    for name, shift in (("a", 0.0), ("b", 1.0)):
        with rldbg.Recorder(tmp_path / name) as recorder:
            weights = np.arange(6, dtype=np.float32).reshape(1, 6)
            weights[0, 4] += shift
            recorder.record(
                "mine", step=0, samples=[("g", 0), ("g", 1)], weights=weights, scores=np.zeros(2, np.float32)
            )
    first = run(tmp_path / "a", tmp_path / "b").first_difference.to_dict()
    assert (first["kind"], first["field"], first["index"]) == ("mine", "weights", [0, 4])


def test_what_follows_the_first_optimizer_step_can_be_left_out(tmp_path):
    for name, updates in (("a", 2), ("b", 1)):
        with rldbg.Recorder(tmp_path / name / "recording", kinds=("loss",)) as recorder:
            for mini_batch in range(updates):
                recorder.record("loss", step=1, mini_batch=mini_batch, loss=0.5)
    a, b = rldbg.open(tmp_path / "a"), rldbg.open(tmp_path / "b")
    assert compare(a, b).verdict == "different"
    assert compare(a, b, first_update=True).verdict == "equal"


def test_trajectories_with_the_same_bytes_on_both_sides_are_decoded_once(base, tmp_path, monkeypatch):
    from rldbg.analysis import side

    monkeypatch.setattr(side, "_WORTH_COMPARING_BYTES", 1)
    same = copy_of(base, tmp_path / "same")
    opened = rldbg.open(same)
    assert compare(rldbg.open(base), opened).verdict == "equal"
    assert opened._contents and not any("trajectory" in file for file in opened._contents), "tensors are mapped only"
    samples = trajectories()
    samples[5]["tokens"][6] += 1
    other = rldbg.open(write(tmp_path / "other", samples))
    first = compare(rldbg.open(base), other).first_difference.to_dict()
    assert (first["field"], first["sample"], first["token"]) == ("tokens", "g1/1", 6)
    assert "trajectory/step_000000.pt" in other._contents


def copy_of(folder, place):
    shutil.copytree(folder, place)
    return place


def test_one_column_of_padding_that_only_one_side_can_know_is_no_difference(tmp_path):
    """A trajectory says how long a prompt is; a recording without trajectories has ids and the response mask only."""
    samples, ids = [("g", 0), ("g", 1)], np.array([[0, 11, 12, 16, 3, 1], [6, 12, 3, 16, 4, 1]])
    passed = {"input_ids": ids, "response_mask": np.ones((2, 2)), "log_probs": np.full((2, 2), -0.5)}
    with rldbg.Recorder(tmp_path / "a") as recorder:
        tokens = [ids[0, 1:], ids[1]]
        masks = [np.r_[np.zeros(len(row) - 2), np.ones(2)] for row in tokens]
        recorder.record("trajectory", step=0, samples=samples, tokens=tokens, loss_mask=masks, reward=[0.0, 1.0])
        recorder.record("forward_data", step=0, micro=0, samples=samples, **passed)
    for name, changed in (("same", ids), ("other", np.where(ids == 11, 10, ids))):
        with rldbg.Recorder(tmp_path / name) as recorder:
            recorder.record("forward_data", step=0, micro=0, samples=samples, **passed | {"input_ids": changed})
    verdicts = [compare(rldbg.open(tmp_path / "a"), rldbg.open(tmp_path / name)).verdict for name in ("same", "other")]
    assert verdicts == ["equal", "different"]


@pytest.mark.parametrize(("name", "verdict"), [("actor/lr", "different"), ("actor/grad_norm", "equal within noise")])
def test_a_small_learning_rate_is_compared_by_its_own_size(tmp_path, name, verdict):
    for folder, value in (("a", 1e-6), ("b", 2e-6)):
        with rldbg.Recorder(tmp_path / folder) as recorder:
            recorder.record("metrics", step=0, metrics={name: value})
    assert compare(rldbg.open(tmp_path / "a"), rldbg.open(tmp_path / "b")).verdict == verdict
