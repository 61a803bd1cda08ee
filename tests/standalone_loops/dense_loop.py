"""GRPO in a hundred lines, with dense tensors: prompts padded on the left, responses on the right, steps from 1.

python -m standalone_loops.dense_loop OUT [--seed N]
"""

import argparse

import torch

import rldbg
from standalone_loops.tiny_lm import PAD, new_model, prompts, reward

END, GROUP, MOST, STEPS = 1, 4, 7, 4


def generate(model, batch, generator, temperature=1.0):
    """Samples a response for every prompt; returns tokens, attention mask, loss mask and the sampler's log probs."""
    rows = [prompt for prompt in batch for _ in range(GROUP)]
    width = max(map(len, rows))
    tokens = torch.tensor([[PAD] * (width - len(row)) + row for row in rows])
    attention = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    alive, log_probs = torch.ones(len(rows), dtype=torch.long), []
    for _ in range(MOST):
        with torch.no_grad():
            distribution = (model(tokens, attention)[:, -1] / temperature).log_softmax(-1)
        chosen = torch.multinomial(distribution.exp(), 1, generator=generator)[:, 0]
        chosen = torch.where(alive == 1, chosen, PAD)
        log_probs.append(torch.where(alive == 1, distribution.gather(-1, chosen[:, None])[:, 0], 0.0))
        tokens, attention = torch.cat([tokens, chosen[:, None]], 1), torch.cat([attention, alive[:, None]], 1)
        alive = alive * (chosen != END)
    loss_mask = attention.clone()
    loss_mask[:, :width] = 0
    return tokens, attention, loss_mask, torch.stack(log_probs, 1), width


def token_log_probs(model, tokens, attention):
    """[B, T - 1]: column j is the log prob of token j + 1."""
    distribution = model(tokens, attention)[:, :-1].log_softmax(-1)
    entropy = -(distribution.exp() * distribution).sum(-1)
    return distribution.gather(-1, tokens[:, 1:, None])[..., 0], entropy


def main(words=None):
    arguments = argparse.ArgumentParser()
    arguments.add_argument("out")
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args(words)
    model = new_model(options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(options.seed)
    with rldbg.Recorder(options.out, parameter_patterns=[".*"]) as recorder:
        for step in range(1, STEPS + 1):
            batch = prompts(options.seed, step)
            tokens, attention, loss_mask, sampled, width = generate(model, batch, generator)
            rewards = torch.tensor(
                [
                    reward(batch[row // GROUP], tokens[row, width:][loss_mask[row, width:] == 1].tolist())
                    for row in range(len(tokens))
                ]
            )
            grouped = rewards.view(-1, GROUP)
            advantages = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-6)
            advantages = advantages.view(-1)
            samples = [(f"{step}-{row // GROUP}", row % GROUP) for row in range(len(tokens))]
            recorder.record(
                "trajectory",
                step=step,
                samples=samples,
                tokens=tokens,
                attention_mask=attention,
                loss_mask=loss_mask,
                reward=rewards,
                logprobs=sampled,
            )
            mask = loss_mask[:, 1:].float()
            with torch.no_grad():
                old, _ = token_log_probs(model, tokens, attention)
            recorder.record("old_log_probs", step=step, samples=samples, old_log_probs=old[:, width - 1 :])
            for epoch in range(2):
                log_probs, entropy = token_log_probs(model, tokens, attention)
                ratio = (log_probs - old).exp()
                objective = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.98, 1.02) * advantages[:, None])
                loss = -(objective * mask).sum() / mask.sum()
                fields = {"log_probs": log_probs, "entropy": entropy, "response_mask": mask}
                recorder.record("forward_data", step=step, epoch=epoch, samples=samples, **fields)
                recorder.record("loss", step=step, epoch=epoch, samples=samples, loss=loss)
                optimizer.zero_grad()
                loss.backward()
                recorder.record_gradients(step, model, epoch=epoch)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                recorder.record_parameters(step, model, epoch=epoch)
            recorder.end_step(step)


if __name__ == "__main__":
    main()
