"""A training step computed in a few lines of numpy, with a hook at every place where a run can go wrong.

Sides made of it stay in memory, so that a hypothesis can be tried on many wrong runs in no time. Two epochs of two
mini-batches of two micro-batches; tokens depend on the one before, so samples of a group share contexts.
"""

from collections import defaultdict

import numpy as np

from rldbg.algorithms import grpo_advantages
from rldbg.core import SampleId
from rldbg.recording import Ragged, Record, RecordKey

GROUPS, PER_GROUP, VOCABULARY, STEP = 4, 4, 3, 0
SAMPLES = [SampleId(f"g{group}", run) for group in range(GROUPS) for run in range(PER_GROUP)]
UPDATES = [(epoch, mini) for epoch in range(2) for mini in range(2)]
VERSION, TEMPERATURE, CLIP = 3, 0.8, (0.8, 1.28)


class MemorySide:
    """What hypotheses ask of a side, answered from a list of records."""

    weight_faults = None  # weights are not recorded
    updates_per_pass = 1

    def __init__(self, records):
        self._records = defaultdict(list)
        for record in records:
            self._records[record.key.kind, record.key.step].append(record)

    def records(self, kind, step):
        return iter(self._records[kind, step])

    not_compared = records

    def steps(self, kind=None):
        return {step for name, step in self._records if kind in (None, name) and self._records[name, step]}

    def updates(self, kind, step):
        return {(record.key.epoch, record.key.mini_batch) for record in self._records[kind, step]}


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


class ImaginedRun:
    """`hooks` maps the name of a place to a function that gets the right value and gives the one to use."""

    def __init__(self, *, turns=False, **hooks):
        self._hooks = hooks
        rng = np.random.default_rng(0)
        self._logits, self._move = rng.standard_normal((2, 20, VOCABULARY))
        self.prompts = [np.full(2 + group % 2, 10 + group) for group in range(GROUPS) for _ in range(PER_GROUP)]
        lengths = rng.integers(3, 6, len(SAMPLES))
        answers = [rng.integers(0, VOCABULARY, length) for length in lengths]
        self.tokens = [np.concatenate(pair) for pair in zip(self.prompts, answers, strict=True)]
        self.rewards = rng.choice([0.0, 0.25, 1.0, 1.5], len(SAMPLES))
        if turns:
            # A tool answers every second sample after its third token, with two tokens.
            more = [np.concatenate([tokens, rng.integers(0, VOCABULARY, 4)]) for tokens in self.tokens]
            self.tokens = more
            self.rewards = np.abs(self.rewards) + 0.5
        starts = [len(prompt) for prompt in self.prompts]
        self.masks = [np.repeat([0, 1], [n, len(t) - n]) for t, n in zip(self.tokens, starts, strict=True)]
        for row in range(1, len(SAMPLES), 2) if turns else ():
            self.masks[row][starts[row] + 3 : starts[row] + 5] = 0
        self.gradients = [{"w": rng.standard_normal((6, 20)), "v": 0.1 * rng.standard_normal((5, 8))} for _ in UPDATES]

    def at(self, place, value, *facts):
        return self._hooks[place](value, *facts) if place in self._hooks else value

    def side(self):
        return MemorySide(list(self._all_records()))

    def log_probs(self, learned, *, temperature=TEMPERATURE):
        """Row by row, of the policy that has learned so much; and the entropies."""
        table = log_softmax((self._logits + learned * self._move) / temperature)
        entropy = -(np.exp(table) * table).sum(-1)
        rows, entropies = [], []
        for tokens, prompt in zip(self.tokens, self.prompts, strict=True):
            before, chosen = tokens[len(prompt) - 1 : -1], tokens[len(prompt) :]
            rows.append(table[before, chosen])
            entropies.append(entropy[before])
        return rows, entropies

    def _all_records(self):
        masks = self.at("loss_mask", self.masks)
        tokens = self.at("tokens", self.tokens)
        rewards = np.asarray(self.at("rewards", self.rewards), dtype=np.float64)
        groups = np.repeat(np.arange(GROUPS), PER_GROUP)
        advantages = self.at("advantages", grpo_advantages(self.rewards, groups), self.rewards, groups)
        rollout = self.at("rollout", self.log_probs(0.0)[0])
        old = self.at("old", self.log_probs(0.0)[0])
        padded = [np.concatenate([np.zeros(len(p)), row]) for p, row in zip(self.prompts, rollout, strict=True)]
        versions = [np.where(mask != 0, VERSION, -1) for mask in self.masks]
        fields = {"tokens": tokens, "loss_mask": masks, "logprobs": padded}
        fields["policy_versions"] = self.at("versions", versions)
        ragged = {name: Ragged.from_rows(rows) for name, rows in fields.items()}
        yield _record("trajectory", fields={**ragged, "reward": rewards}, policy_version=VERSION)
        yield _record("old_log_probs", fields={"old_log_probs": _pad(old)})
        if "earlier" in self._hooks:
            yield _record("old_log_probs", fields={"old_log_probs": _pad(old)}, step=STEP - 1)
        if "later" in self._hooks:
            yield _record("loss", fields={"loss": 0.0}, step=STEP + 1)
        for number, update in enumerate(UPDATES):
            yield from self._update(number, update, old, np.asarray(advantages), masks)

    def _update(self, number, update, old, advantages, masks):
        new, entropy = (self.at(name, rows, number) for name, rows in _both(self.log_probs(0.1 * number)))
        reference = self.at("reference", self.log_probs(-0.3)[0], new, old)
        rows = [
            self.at("advantage_rows", np.full(len(row), value), own[-len(row) :])
            for row, value, own in zip(new, advantages, self.masks, strict=True)
        ]
        half = range(8 * update[1], 8 * update[1] + 8)
        micros = self.at("micros", [list(half[::2]), list(half[1::2])], update)
        answers = [own[-len(row) :].astype(float) for row, own in zip(new, self.masks, strict=True)]
        total = sum(answers[row].sum() for row in half)
        for micro, chosen in enumerate(micros):
            place = {"micro": micro, "update": update, "samples": [SAMPLES[row] for row in chosen]}
            log_probs, old_rows, ref_rows, entropies, advantage = (
                _pad([values[row] for row in chosen]) for values in (new, old, reference, entropy, rows)
            )
            advantage = self.at("advantages_in_loss", advantage, old_rows, ref_rows)
            mask = self.at("response_mask", _pad([answers[row] for row in chosen]))
            yield from self._inputs(chosen, place)
            fields = {"log_probs": log_probs, "entropy": entropies, "ref_log_probs": ref_rows, "response_mask": mask}
            yield _record("forward_data", fields=fields, **place)
            in_loss = self.at("old_in_loss", old_rows, log_probs)
            ratio = self.at("ratio", np.exp(log_probs - in_loss), log_probs, in_loss, ref_rows)
            low, high = self.at("clip", CLIP)
            losses = np.maximum(-ratio * advantage, -np.clip(ratio, low, high) * advantage)
            losses = self.at("token_loss", losses, ratio, advantage)
            yield _record(
                "is_loss_debug",
                fields={
                    "log_probs": log_probs,
                    "old_log_probs": in_loss,
                    "advantages": advantage,
                    "prob_ratio": ratio,
                    "elementwise_loss": losses,
                    "effective_valid": mask,
                },
                **place,
            )
            yield _record("loss", fields=self._losses(losses, entropies, log_probs - ref_rows, mask, total), **place)
        for kind, tensors in self._tensors(number):
            for rank in (0, 1):
                for name, value in self.at(f"{kind}_of_rank", tensors, rank).items():
                    fields = {"param_name": name, kind: value}
                    yield _record(kind, fields=fields, rank=rank, update=update, samples=())

    def _inputs(self, chosen, place):
        width = max(len(self.prompts[row]) for row in chosen)
        ids = _pad([np.concatenate([np.full(width - len(self.prompts[row]), 99), self.tokens[row]]) for row in chosen])
        attended = np.zeros(ids.shape, np.int64)
        for line, row in enumerate(chosen):
            first = width - len(self.prompts[row])
            attended[line, first : first + len(self.tokens[row])] = 1
        ids, attended = self.at("inputs", (ids, attended))
        positions = self.at("positions", np.maximum(attended.cumsum(1) - 1, 0))
        fields = {"input_ids": ids.astype(np.int64), "attention_mask": attended, "position_ids": positions}
        yield _record("batch_inputs", fields=fields, **place)

    def _losses(self, losses, entropies, gap, mask, total):
        def summed(values):
            return self.at("aggregate", (values * mask).sum() / total, values, mask)

        policy, entropy = summed(losses), self.at("entropy_total", summed(entropies), entropies, mask)
        kl = summed(self.at("kl", np.expm1(-gap) + gap, gap))
        entropy_weight, kl_weight = self.at("weights", (0.01, 0.05))
        whole = self.at("loss", policy - entropy_weight * entropy + kl_weight * kl)
        return self.at("terms", {"loss": whole, "pg_loss": policy, "entropy_loss": entropy, "kl_loss": kl})

    def _tensors(self, number):
        """Gradients and the parameters AdamW makes of all gradients so far."""
        gradients = [self.at("gradient", dict(tensors), place) for place, tensors in enumerate(self.gradients)]
        gradients = self.at("gradients", gradients)
        yield "gradient", gradients[number]
        settings = {"rate": 0.01, "betas": (0.9, 0.95), "epsilon": 1e-5, "decay": 0.0, "clip": None}
        settings |= self.at("optimizer", {})
        yield "param", self.at("parameters", _adamw(gradients[: number + 1], **settings), number)


def _adamw(
    gradients, *, rate, betas, epsilon, decay, clip, corrects=True, coupled=0.0, of_largest=False, keeps_largest=False
):
    start = np.random.default_rng(7)
    values = {name: start.standard_normal(tensor.shape) for name, tensor in gradients[0].items()}
    mean = {name: 0 * value for name, value in values.items()}
    square = {name: 0 * value for name, value in values.items()}
    most = dict(square)
    for step, tensors in enumerate(gradients, 1):
        norm = np.sqrt(sum((tensor**2).sum() for tensor in tensors.values()))
        if of_largest:
            norm = max(np.abs(tensor).max() for tensor in tensors.values())
        shorter = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
        for name, tensor in tensors.items():
            used = tensor * shorter + coupled * values[name]
            mean[name] = betas[0] * mean[name] + (1 - betas[0]) * used
            square[name] = betas[1] * square[name] + (1 - betas[1]) * used**2
            starts = [1 - beta**step if corrects else 1.0 for beta in betas]
            most[name] = np.maximum(most[name], square[name]) if keeps_largest else square[name]
            size = np.sqrt(most[name] / starts[1]) + epsilon
            values[name] = values[name] * (1 - rate * decay) - rate * mean[name] / starts[0] / size
    return values


def _both(found):
    return zip(("new", "entropy"), found, strict=True)


def _pad(rows):
    padded = np.zeros((len(rows), max(map(len, rows))))
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded


def _record(kind, *, fields, step=STEP, update=(0, 0), micro=0, rank=0, samples=tuple(SAMPLES), policy_version=None):
    key = RecordKey(kind, step, rank, micro, *update)
    fields = {name: np.asarray(value) if isinstance(value, float) else value for name, value in fields.items()}
    return Record(key=key, fields=fields, samples=tuple(samples), policy_version=policy_version)


def right_padded(inputs):
    """Padding moved from the left to the right, as a loop that pads on the right has it."""
    return tuple(
        np.stack([np.roll(row, -int(seen.argmax())) for row, seen in zip(part, inputs[1], strict=True)])
        for part in inputs
    )


def with_first_token(inputs):
    """A token before the first of every sample."""
    ids, attended = (np.concatenate([part[:, :1] * 0, part], 1) for part in inputs)
    first = attended.argmax(1)
    ids[np.arange(len(ids)), first - 1], attended[np.arange(len(ids)), first - 1] = 55, 1
    return ids, attended
