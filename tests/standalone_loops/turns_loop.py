"""GRPO over conversations of two turns: lists of different lengths, an engine of its own, mini- and micro-batches, KL.

Losses are recorded by term and without denominators, steps count from 1. A bug is one of BUGS.
"""

import copy

import torch

import rldbg
from standalone_loops.tiny_lm import PAD, new_model, prompts

END, GROUP, MOST, STEPS, RATE, DECAY = 1, 4, 4, 2, 3e-3, 0.05
# The stage in which each bug first shows, and the ids of the explanations that name it; none where nothing may.
BUGS = {
    "first-token-greedy": ("trajectory", "greedy"),
    "min-p": ("trajectory", "sampling-filter"),
    "repetition-penalty": ("trajectory", "sampling-rule"),
    "end-token-less-likely": ("trajectory", None),
    "engine-misses-biases": ("trajectory", None),
    "tool-text-trained-after-a-cut": ("trajectory", "environment-in-mask"),
    "baseline-weighted-by-length": ("loss", "advantage-normalisation"),
    "mean-absolute-deviation": ("loss", "advantage-normalisation"),
    "divided-by-root-of-length": ("loss", "advantage-normalisation"),
    "one-micro-batch-misaligned": ("loss", None),
    "negative-not-clipped": ("loss", "clip"),
    "kl-against-old": ("loss", "kl-estimator"),
    "kl-of-every-token": ("loss", "kl-aggregation"),
    "kl-of-the-first-micro-batch": ("loss", "kl-coefficient"),
    "mean-of-micro-batches": ("loss", "aggregation"),
    "last-turn-twice": ("loss", "loss-of-some-tokens"),
    "likely-tokens-left-out": ("loss", "loss-of-some-tokens"),
    "gradient-of-one-tensor-halved": ("gradient", "gradient-scaled-by-tensor"),
    "gradient-kept": ("gradient", "gradient-carried-over"),
    "decay-of-matrices-only": ("parameter", "weight-decay"),
    "slower-embeddings": ("parameter", "learning-rate"),
    "betas-exchanged": ("parameter", "optimizer-betas"),
}


def converse(model, prompt, generator, bug):
    """One conversation: tokens, loss mask and the engine's log probs, 0 where it did not sample."""
    tokens, mask, log_probs = list(prompt), [0] * len(prompt), [0.0] * len(prompt)
    for turn in range(2):
        for place in range(MOST):
            with torch.no_grad():
                logits = model(torch.tensor([tokens]), torch.ones(1, len(tokens), dtype=torch.long))[0, -1]
            if bug == "end-token-less-likely":
                logits[END] -= 1.0
            if bug == "min-p":
                logits = logits.masked_fill(logits.softmax(-1) < 0.3 * logits.softmax(-1).max(), -torch.inf)
            distribution = logits.log_softmax(-1)
            sampled = distribution.clone()
            if bug == "repetition-penalty":
                sampled[tokens] -= 1.5
            chosen = int(torch.multinomial(sampled.exp(), 1, generator=generator))
            if bug == "first-token-greedy" and place == 0:
                chosen = int(distribution.argmax())
            tokens, mask = [*tokens, chosen], [*mask, 1]
            log_probs.append(float(distribution[chosen]))
            if chosen == END:
                break
        if turn == 0:
            was_cut = tokens[-1] != END
            tokens, log_probs = [*tokens, 20 + sum(tokens) % 3, 5, 23], [*log_probs, 0.0, 0.0, 0.0]
            mask += [0, 0, int(was_cut and bug == "tool-text-trained-after-a-cut")]
    return {"prompt": prompt, "tokens": tokens, "mask": mask, "sampled": log_probs, "start": len(prompt)}


def scored(model, rows):
    """Log probs and entropy of every token after the prompt, row by row; rows are padded on the left."""
    width = max(len(row["tokens"]) for row in rows)
    padding = [width - len(row["tokens"]) for row in rows]
    tokens = torch.tensor([[PAD] * gap + row["tokens"] for gap, row in zip(padding, rows, strict=True)])
    attention = torch.tensor([[0] * gap + [1] * (width - gap) for gap in padding])
    every = model(tokens, attention)[:, :-1].log_softmax(-1)
    chosen = every.gather(-1, tokens[:, 1:, None])[..., 0]
    entropy = -(every.exp() * every).sum(-1)
    first = [gap + row["start"] - 1 for gap, row in zip(padding, rows, strict=True)]
    return [(chosen[n, at:], entropy[n, at:]) for n, at in enumerate(first)]


def reward(row):
    got = [token for token, own in zip(row["tokens"], row["mask"], strict=True) if own]
    return sum(token in row["prompt"] for token in got) / len(got) - 0.01 * len(got)


def advantages_of(rewards, lengths, bug):
    mean, spread = rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True)
    if bug == "baseline-weighted-by-length":
        mean = (rewards * lengths).sum(1, keepdim=True) / lengths.sum(1, keepdim=True)
    if bug == "mean-absolute-deviation":
        spread = (rewards - mean).abs().mean(1, keepdim=True)
    found = (rewards - mean) / (spread + 1e-6)
    return (found / lengths.sqrt() if bug == "divided-by-root-of-length" else found).view(-1)


def optimizer_of(model, bug):
    slow = [name for name, _ in model.named_parameters() if name.startswith(("token", "position"))]
    groups = [
        {
            "params": [parameter],
            "lr": RATE / 10 if bug == "slower-embeddings" and name in slow else RATE,
            "weight_decay": 0.0 if bug == "decay-of-matrices-only" and parameter.dim() < 2 else DECAY,
        }
        for name, parameter in model.named_parameters()
    ]
    return torch.optim.AdamW(groups, betas=(0.999, 0.9) if bug == "betas-exchanged" else (0.9, 0.999))


def terms_of(row, advantage, log_probs, entropy, old, reference, bug):
    """Sums over tokens of the policy's loss, the KL and the entropy."""
    mask = torch.tensor(row["mask"][row["start"] :], dtype=torch.float)
    ratio = (log_probs - old).exp()
    policy = -torch.minimum(ratio * advantage, ratio.clamp(0.98, 1.02) * advantage)
    if bug == "negative-not-clipped" and advantage < 0:
        policy = -ratio * advantage
    if bug == "last-turn-twice":
        last = mask.flip(0).cumprod(0).flip(0)
        policy = policy * (1 + last)
    if bug == "likely-tokens-left-out":
        policy = policy * (log_probs <= log_probs[mask > 0].quantile(0.8))
    gap = (old if bug == "kl-against-old" else reference) - log_probs
    kl = (gap.exp() - gap - 1) * (1.0 if bug == "kl-of-every-token" else mask)
    return (policy * mask).sum(), kl.sum(), (entropy * mask).sum()


def main(out, *, bug="", micro=5, seed=0):
    model, generator = new_model(seed), torch.Generator().manual_seed(seed)
    engine, first = copy.deepcopy(model), copy.deepcopy(model)
    optimizer = optimizer_of(model, bug)
    with rldbg.Recorder(out, parameter_patterns=[".*"]) as recorder:
        for step in range(1, STEPS + 1):
            rows = [converse(engine, prompt, generator, bug) for prompt in prompts(seed, step) for _ in range(GROUP)]
            rewards = torch.tensor([reward(row) for row in rows])
            lengths = torch.tensor([float(sum(row["mask"])) for row in rows]).view(-1, GROUP)
            advantages = advantages_of(rewards.view(-1, GROUP), lengths, bug)
            samples = [(f"{step}-{number // GROUP}", number % GROUP) for number in range(len(rows))]
            columns = {"tokens": "tokens", "loss_mask": "mask", "logprobs": "sampled"}
            fields = {name: [row[key] for row in rows] for name, key in columns.items()}
            recorder.record("trajectory", step=step, samples=samples, reward=rewards, **fields)
            with torch.no_grad():
                old, reference = ([found[0] for found in scored(of, rows)] for of in (model, first))
            recorder.record("old_log_probs", step=step, samples=samples, old_log_probs=[row.tolist() for row in old])
            for epoch in range(2):
                for mini in range(2):
                    half = range(mini * len(rows) // 2, (mini + 1) * len(rows) // 2)
                    parts = [half[at : at + micro] for at in range(0, len(half), micro)]
                    if bug != "gradient-kept" or epoch == 0:
                        optimizer.zero_grad()
                    for number, part in enumerate(parts):
                        passes = scored(model, [rows[n] for n in part])
                        own = [float(advantages[n]) for n in part]
                        if bug == "one-micro-batch-misaligned" and number == 1:
                            own.reverse()
                        found = [
                            terms_of(rows[n], value, *passed, old[n], reference[n], bug)
                            for n, value, passed in zip(part, own, passes, strict=True)
                        ]
                        tokens = sum(sum(rows[n]["mask"]) for n in half)
                        if bug == "mean-of-micro-batches":
                            tokens = sum(sum(rows[n]["mask"]) for n in part) * len(parts)
                        policy, kl, entropy = (sum(column) / tokens for column in zip(*found, strict=True))
                        weight = 0.0 if bug == "kl-of-the-first-micro-batch" and number else 0.05
                        loss = policy + weight * kl - 0.01 * entropy
                        place = {"step": step, "epoch": epoch, "mini_batch": mini, "micro": number}
                        place["samples"] = [samples[n] for n in part]
                        recorder.record(
                            "forward_data",
                            **place,
                            log_probs=[passed[0].tolist() for passed in passes],
                            entropy=[passed[1].tolist() for passed in passes],
                            response_mask=[rows[n]["mask"][rows[n]["start"] :] for n in part],
                            ref_log_probs=[reference[n].tolist() for n in part],
                        )
                        numbers = {"loss": loss, "pg_loss": policy, "kl_loss": kl, "entropy_loss": entropy}
                        recorder.record("loss", **place, **{name: value.item() for name, value in numbers.items()})
                        loss.backward()
                    if bug == "gradient-of-one-tensor-halved":
                        model.head.weight.grad.mul_(0.5)
                    recorder.record_gradients(step, model, epoch=epoch, mini_batch=mini)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    optimizer.step()
                    recorder.record_parameters(step, model, epoch=epoch, mini_batch=mini)
            for (name, held), sent in zip(engine.named_parameters(), model.parameters(), strict=True):
                if bug != "engine-misses-biases" or "bias" not in name:
                    held.data.copy_(sent.data)
            recorder.end_step(step)
