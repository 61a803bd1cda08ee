"""Losses of users on saved batches: what equals which reference, what is wrong with the others, bad input."""

import json
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest

import rldbg
from loss_batches import save_batch
from rldbg.core import IncompleteDataError, RldbgError, UsageError
from rldbg.replay.loss import LossRequest, rerun_loss

LOSSES = """
import torch

def clipped(log_probs, old_log_probs, advantages, low, high):
    ratio = torch.exp(log_probs - old_log_probs)
    return torch.maximum(-ratio * advantages, -ratio.clamp(1 - low, 1 + high) * advantages)

def ppo(log_probs, old_log_probs, advantages, mask):
    return (clipped(log_probs, old_log_probs, advantages, 0.2, 0.2) * mask).sum() / mask.sum()

def dapo(logprobs, old_logprobs, adv, loss_mask, coefficient=1.0):
    return {"loss": coefficient * (clipped(logprobs, old_logprobs, adv, 0.2, 0.28) * loss_mask).sum() / loss_mask.sum()}

def grpo(batch):
    values = clipped(batch["log_probs"], batch["old_log_probs"], batch["advantages"], 0.2, 0.2) * batch["mask"]
    return (values.sum(1) / batch["mask"].sum(1)).mean(), {"more": 1}

def turned(log_probs, old_log_probs, advantages, mask):
    return -ppo(log_probs, old_log_probs, advantages, mask)

def padded_mean(log_probs, old_log_probs, advantages, mask):
    return (clipped(log_probs, old_log_probs, advantages, 0.2, 0.2) * mask).mean()

def over_rows(log_probs, old_log_probs, advantages, mask):
    return (clipped(log_probs, old_log_probs, advantages, 0.2, 0.2) * mask).sum() / len(mask)

def unmasked(log_probs, advantages, mask):
    return (log_probs * 0.5).sum()

def detached(log_probs, old_log_probs, advantages, mask):
    return ppo(log_probs.detach(), old_log_probs, advantages, mask)

def infinite(log_probs, mask):
    return (torch.log(log_probs * 0) * mask).sum()

def raising(log_probs, advantages):
    return {}["no such thing"]

def vector(log_probs):
    return log_probs

def number(log_probs):
    return 1.0

def unknown(log_probs, kl_reference):
    return log_probs.sum()

def of_logits(logits):
    return logits.sum()

constant = 3
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("losses")
    (folder / "my_losses.py").write_text(LOSSES)
    save_batch(folder / "batch.pt")
    return folder


def run(project, name, **options):
    options.setdefault("path", project / "batch.pt")
    request = LossRequest(loss=f"{project}/my_losses.py:{name}", device="cpu", **options)
    report, rank = rerun_loss(request, load_model=lambda name, device: None)
    assert rank == 0
    return report


@pytest.mark.parametrize("name", ["grpo", "dapo", "ppo"])
def test_a_loss_equals_its_reference_and_no_other(project, name):
    report = run(project, name, reference=name)
    assert report.equal_to == (name,) and report.ok and not report.findings
    recorded, moved = report.points
    assert recorded.gradient_norm > 0 and recorded.loss != moved.loss
    # Where every ratio is 1 the clip of DAPO cannot be told from that of PPO.
    verdicts = {item.reference: item.verdict for item in recorded.comparisons}
    assert verdicts["dapo"] == verdicts["ppo"] and verdicts[name] == "equal"
    assert json.dumps(asdict(recorded)) and report.to_dict()["equal_to"] == [name]


@pytest.mark.parametrize(
    ("name", "finding", "said"),
    [
        ("turned", "sign-reversed", "the opposite of that of ppo"),
        ("padded_mean", "loss-scaled", "padding is counted in the mean"),
        ("over_rows", "loss-scaled", "tokens / rows: the sum is divided by the rows"),
        ("unmasked", "gradient-outside-mask", "first sample g0/0, response token 1"),
        ("detached", "loss-without-gradient", "no gradient"),
        ("infinite", "loss-not-finite", "the loss is"),
    ],
)
def test_what_is_wrong_is_found_by_its_numbers(project, name, finding, said):
    report = run(project, name)
    found = {item.id: item for item in report.findings}
    assert said in found[finding].evidence[0], report.findings
    assert report.ok == (finding == "loss-scaled") and not report.equal_to


def test_a_recording_with_one_advantage_per_sample(project, tmp_path):
    tokens, mask = np.arange(8).reshape(2, 4), np.array([[0, 0, 1, 1], [0, 0, 1, 1]])
    with rldbg.Recorder(tmp_path) as recorder:
        recorder.record(
            "trajectory", step=0, samples=[("g", 0), ("g", 1)], tokens=tokens, loss_mask=mask,
            logprobs=-0.5 * mask.astype(np.float32), reward=np.array([1.0, 0.0]), advantages=np.array([3.0, -1.0]),
        )  # fmt: skip
    report = run(project, "ppo", path=tmp_path)
    assert report.equal_to[-1] == "ppo" and report.points[0].loss == pytest.approx(-1.0)


def test_another_reference_than_the_one_asked_for(project):
    report = run(project, "dapo", reference="grpo")
    assert not report.ok and "differs-from-grpo" in {item.id for item in report.findings}
    assert run(project, "dapo", clip_high=0.2).equal_to == ()
    assert run(project, "ppo", clip_low=0.2, clip_high=0.2).equal_to == ("dapo", "ppo")


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("raising", RldbgError, "KeyError: 'no such thing'"),
        ("vector", RldbgError, r"a tensor of shape \[6, 8\]"),
        ("number", RldbgError, "returned 1.0"),
        ("unknown", UsageError, "asks for 'kl_reference', which a saved batch does not have"),
        ("of_logits", UsageError, "asks for logits"),
        ("constant", UsageError, "is a int, not a function"),
        ("missing", UsageError, "has no 'missing'"),
    ],
)
def test_functions_that_are_no_loss(project, name, error, said):
    with pytest.raises(error, match=said) as raised:
        run(project, name)
    assert raised.value.hint


def test_batches_that_say_nothing(project, tmp_path):
    save_batch(tmp_path / "flat.pt", rewards=np.ones(6))
    with pytest.raises(IncompleteDataError, match=r"every advantage of .* is 0") as raised:
        run(project, "ppo", path=tmp_path / "flat.pt")
    assert "--random-advantages" in raised.value.hint
    assert run(project, "ppo", path=tmp_path / "flat.pt", random_advantages=1).equal_to == ("ppo",)
    save_batch(tmp_path / "blind.pt", logprobs=False)
    with pytest.raises(IncompleteDataError, match="has no log probs"):
        run(project, "ppo", path=tmp_path / "blind.pt")
    with pytest.raises(IncompleteDataError, match="no such file"):
        run(project, "ppo", path=tmp_path / "nowhere.pt")
    with pytest.raises(IncompleteDataError, match="no trajectories of step 7"):
        run(project, "ppo", step=7)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["rerun", "batch.pt", "--loss", "my_losses:ppo"], 0),
        (["rollout", "my_flow:flow", "--data", "data.jsonl", "--addrs", "127.0.0.1:9"], 5),
    ],
)
def test_a_machine_with_torch_and_little_else_is_enough(project, words, code):
    (project / "my_flow.py").write_text("def flow(prompt, generate): ...")
    (project / "data.jsonl").write_text('{"prompt": "p"}')
    missing = ("ray", "pydantic", "omegaconf", "psutil", "debugpy", "starlette", "uvicorn", "httpx")
    blocked = f"import sys\nfor name in {missing}: sys.modules[name] = None\n"
    call = f"{blocked}from rldbg.cli.application import run\nraise SystemExit(run({[*words, '--json']}))"
    done = subprocess.run([sys.executable, "-c", call], cwd=project, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
