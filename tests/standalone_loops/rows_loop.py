"""The same algorithm written anew: one sample at a time, Python lists, no padding, steps from 0.

python -m standalone_loops.rows_loop OUT --rollouts RECORDING [--bug NAME] [--seed N]

Rollouts are read from another loop's recording, so that both train on the same samples.
"""

import argparse
import math

import torch

import rldbg
from standalone_loops.tiny_lm import new_model

GROUP = 4
BUGS = ("", "temperature", "sequence-mean", "clip-high", "mask-shifted", "no-std", "learning-rate", "no-clip")


def read_rollouts(path):
    """[step][sample] -> tokens, mask, reward, log probs of the sampler, without padding."""
    steps = []
    recording = rldbg.open(path)
    for record in recording.records("trajectory"):
        rows = []
        for row in range(len(record.samples)):
            real = record.array("attention_mask")[row] == 1
            mask = record.array("loss_mask")[row][real].tolist()
            rows.append(
                {
                    "tokens": record.array("tokens")[row][real].tolist(),
                    "mask": mask,
                    "reward": float(record.array("reward")[row]),
                    "sampled": record.array("logprobs")[row][: sum(mask)].tolist(),
                }
            )
        steps.append(rows)
    return steps


def response_log_probs(model, row, temperature=1.0):
    tokens = torch.tensor([row["tokens"]])
    logits = model(tokens, torch.ones_like(tokens))[0] / temperature
    start = row["mask"].index(1)
    distribution = logits[start - 1 : -1].log_softmax(-1)
    chosen = tokens[0, start:, None]
    return distribution.gather(-1, chosen)[:, 0], -(distribution.exp() * distribution).sum(-1)


def advantages_of(rows, bug):
    values = []
    for first in range(0, len(rows), GROUP):
        rewards = [row["reward"] for row in rows[first : first + GROUP]]
        mean = sum(rewards) / GROUP
        spread = math.sqrt(sum((value - mean) ** 2 for value in rewards) / (GROUP - 1)) + 1e-6
        values += [(value - mean) / (1.0 if bug == "no-std" else spread) for value in rewards]
    return values


def main(words=None):
    arguments = argparse.ArgumentParser()
    arguments.add_argument("out")
    arguments.add_argument("--rollouts", required=True)
    arguments.add_argument("--bug", default="", choices=BUGS)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args(words)
    bug = options.bug
    model = new_model(options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3.3e-3 if bug == "learning-rate" else 3e-3)
    temperature = 1.1 if bug == "temperature" else 1.0
    high = 1.03 if bug == "clip-high" else 1.02
    with rldbg.Recorder(options.out, parameter_patterns=[".*"]) as recorder:
        for step, rows in enumerate(read_rollouts(options.rollouts)):
            samples = [(f"prompt{number // GROUP}", number % GROUP) for number in range(len(rows))]
            recorder.record(
                "trajectory",
                step=step,
                samples=samples,
                tokens=[row["tokens"] for row in rows],
                loss_mask=[row["mask"] for row in rows],
                reward=[row["reward"] for row in rows],
                logprobs=[row["sampled"] for row in rows],
            )
            with torch.no_grad():
                old = [response_log_probs(model, row, temperature)[0] for row in rows]
            recorder.record("old_log_probs", step=step, samples=samples, old_log_probs=[row.tolist() for row in old])
            advantages = advantages_of(rows, bug)
            total = sum(sum(row["mask"]) for row in rows)
            for epoch in range(2):
                passes = [response_log_probs(model, row, temperature) for row in rows]
                loss, masks = torch.zeros(()), []
                for advantage, (log_probs, _), before in zip(advantages, passes, old, strict=True):
                    ratio = (log_probs - before).exp()
                    terms = torch.minimum(ratio * advantage, ratio.clamp(0.98, high) * advantage)
                    mask = torch.ones_like(terms)
                    if bug == "mask-shifted":
                        mask[-1] = 0
                    masks.append(mask.tolist())
                    if bug == "sequence-mean":
                        loss = loss - (terms * mask).mean() / len(rows)
                    else:
                        loss = loss - (terms * mask).sum() / total
                recorder.record(
                    "forward_data",
                    step=step,
                    epoch=epoch,
                    samples=samples,
                    log_probs=[log_probs.tolist() for log_probs, _ in passes],
                    entropy=[entropy.tolist() for _, entropy in passes],
                    response_mask=masks,
                )
                recorder.record("loss", step=step, epoch=epoch, samples=samples, loss=loss.item())
                optimizer.zero_grad()
                loss.backward()
                recorder.record_gradients(step, model, epoch=epoch)
                if bug != "no-clip":
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                recorder.record_parameters(step, model, epoch=epoch)
            recorder.end_step(step)


if __name__ == "__main__":
    main()
