"""Loops drawn at random: an algorithm, and two implementations of it that share no shapes.

Each records by the README alone, with `Recorder` or `record_loop`. Samples are those of one engine; what is drawn is
how sequences are padded or packed, how they are cut into micro-batches, how updates and steps are numbered, which
layouts and kinds are recorded, and the algorithm itself. `fault` is one of FAULTS, in one of the two.
"""

import copy
import math
import random
from types import SimpleNamespace

import torch

import rldbg
from standalone_loops.tiny_lm import VOCABULARY, TinyLM

END, BEGIN, GROUPS, STEPS = 1, 2, 3, 2
FAULTS = ("no-std", "rate", "temperature", "mask-one-late")


def draw_algorithm(seed):
    choose = random.Random(f"algorithm {seed}").choice
    return SimpleNamespace(
        seed=seed,
        size=choose((3, 4)),
        most=choose((4, 5)),
        turns=choose((1, 2)),
        binary=choose((True, False)),
        advantage=choose(("std", "mean", "rloo")),
        clip=choose((None, 0.02, 0.2)),
        aggregation=choose(("token-mean", "sequence-mean", "fixed")),
        epochs=choose((1, 2)),
        minis=choose((1, 2)),
        kl=choose((0.0, 0.05)),
        entropy=choose((0.0, 0.01)),
        adamw=choose((True, True, False)),
        norm=choose((None, 0.05, 1.0)),
        temperature=choose((1.0, 0.8)),
    )


def draw_implementation(choose):
    return SimpleNamespace(
        passes=choose(("left", "right", "rows", "packed")),
        trajectory=choose(("left", "right", "lists", "mappings")),
        attention=choose((True, False)),
        values=choose(("whole", "behind-the-first", "response", "lists")),
        mask=choose((torch.long, torch.bool, torch.float)),
        is_hooked=choose((True, False)),
        micro=choose((2, 3, 4, 100)),
        is_shuffled=choose((True, False)),
        first_step=choose((0, 1)),
        names=choose(("shared", "own")),
        has_terms=choose((True, False)),
        records_means=choose((True, False)),
        python_advantages=choose((True, False)),
    )


def draw(seed):
    """An algorithm and two implementations."""
    choose = random.Random(f"pair {seed}").choice
    return draw_algorithm(seed), draw_implementation(choose), draw_implementation(choose)


class LM(TinyLM):
    """Also for rows that hold several samples, one behind the other."""

    def forward(self, input_ids, attention_mask=None, position_ids=None, samples=None):
        if samples is None:
            return super().forward(input_ids, attention_mask)
        hidden = self.token(input_ids) + self.position(position_ids)
        query, key, value = self.qkv(hidden).chunk(3, -1)
        scores = query @ key.transpose(-1, -2) / hidden.shape[-1] ** 0.5
        length = input_ids.shape[-1]
        seen = torch.ones(length, length, dtype=torch.bool).tril() & (samples[:, :, None] == samples[:, None, :])
        hidden = hidden + scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value
        return self.head(hidden + self.down(self.up(hidden).relu()))


def converse(model, algorithm, prompt, generator):
    tokens, mask, log_probs = list(prompt), [0] * len(prompt), [0.0] * len(prompt)
    for turn in range(algorithm.turns):
        for _ in range(algorithm.most):
            ids = torch.tensor([tokens])
            with torch.no_grad():
                every = (model(ids, torch.ones_like(ids))[0, -1] / algorithm.temperature).log_softmax(-1)
            chosen = int(torch.multinomial(every.exp(), 1, generator=generator))
            tokens.append(chosen)
            mask.append(1)
            log_probs.append(float(every[chosen]))
            if chosen == END:
                break
        if turn + 1 < algorithm.turns:
            text = [3 + sum(tokens) % 7, 5, 4][: 2 + sum(tokens) % 2]
            tokens, mask, log_probs = tokens + text, mask + [0] * len(text), log_probs + [0.0] * len(text)
    own = [token for token, is_own in zip(tokens, mask, strict=True) if is_own]
    reward = float(sum(own) % 2) if algorithm.binary else sum(token in prompt for token in own) / len(own)
    return {"tokens": tokens, "mask": mask, "sampled": log_probs, "start": len(prompt), "reward": reward}


def rollouts(model, algorithm, step):
    draws = random.Random(f"prompts {algorithm.seed} {step}")
    rows = []
    for group in range(GROUPS):
        prompt = [BEGIN, *(draws.randrange(3, VOCABULARY) for _ in range(draws.randint(1, 5)))]
        for run in range(algorithm.size):
            generator = torch.Generator().manual_seed(1009 * (131 * algorithm.seed + step) + 31 * group + run)
            rows.append(converse(model, algorithm, prompt, generator) | {"group": group, "run": run})
    return rows


def padded(rows, *, left, fill=0):
    width = max(map(len, rows))
    fills = [[fill] * (width - len(row)) for row in rows]
    return torch.tensor([gap + row if left else row + gap for gap, row in zip(fills, map(list, rows), strict=True)])


def scored(model, rows, how, temperature):
    """Log probs and entropies of the tokens behind each prompt."""

    def read(logits, ids):
        every = (logits / temperature).log_softmax(-1)
        return every.gather(-1, ids[..., None])[..., 0], -(every.exp() * every).sum(-1)

    found = []
    if how == "rows":
        for row in rows:
            ids = torch.tensor([row["tokens"]])
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids))[0]
            found.append(read(logits[row["start"] - 1 : -1], ids[0, row["start"] :]))
        return found
    if how == "packed":
        tokens = [row["tokens"] for row in rows]
        ids = torch.tensor([[token for row in tokens for token in row]])
        places = torch.tensor([[place for row in tokens for place in range(len(row))]])
        samples = torch.tensor([[number for number, row in enumerate(tokens) for _ in row]])
        logits, begin = model(input_ids=ids, position_ids=places, samples=samples)[0], 0
        for row in rows:
            first, end = begin + row["start"], begin + len(row["tokens"])
            found.append(read(logits[first - 1 : end - 1], ids[0, first:end]))
            begin = end
        return found
    ids = padded([row["tokens"] for row in rows], left=how == "left")
    attention = padded([[1] * len(row["tokens"]) for row in rows], left=how == "left")
    values, entropies = read(model(input_ids=ids, attention_mask=attention)[:, :-1], ids[:, 1:])
    for number, row in enumerate(rows):
        gap = ids.shape[1] - len(row["tokens"]) if how == "left" else 0
        part = slice(gap + row["start"] - 1, gap + len(row["tokens"]) - 1)
        found.append((values[number, part], entropies[number, part]))
    return found


def advantages_of(rewards, size, rule, *, in_python):
    if not in_python:
        grouped = torch.tensor(rewards).view(-1, size)
        gap = grouped - grouped.mean(1, keepdim=True)
        if rule == "std":
            gap = gap / (grouped.std(1, keepdim=True) + 1e-6)
        return (gap * size / (size - 1) if rule == "rloo" else gap).view(-1).tolist()
    found = []
    for first in range(0, len(rewards), size):
        part = rewards[first : first + size]
        mean = sum(part) / size
        spread = math.sqrt(sum((value - mean) ** 2 for value in part) / (size - 1)) + 1e-6
        others = [(sum(part) - value) / (size - 1) for value in part]
        for value, rest in zip(part, others, strict=True):
            found.append(value - rest if rule == "rloo" else (value - mean) / (spread if rule == "std" else 1.0))
    return found


class Loop:
    """One training, recorded into a folder."""

    def __init__(self, algorithm, shape, out, fault=""):
        torch.manual_seed(algorithm.seed)
        self.algorithm, self.shape, self.out, self.fault = algorithm, shape, out, fault
        self.model = LM()
        self.reference = copy.deepcopy(self.model)
        rate = 3.3e-3 if fault == "rate" else 3e-3
        if algorithm.adamw:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, weight_decay=0.05)
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=10 * rate, momentum=0.9)
        self.temperature = algorithm.temperature * (1.1 if fault == "temperature" else 1.0)

    def train(self):
        steps = range(STEPS)
        if self.shape.is_hooked:
            with rldbg.record_loop(self.model, self.optimizer, self.out) as loop:
                self.recorder, self.record = None, lambda kind, _place, **fields: loop.record(kind, **fields)
                for step in steps:
                    with rldbg.step(step + self.shape.first_step):
                        self.step(step)
            return
        with rldbg.Recorder(self.out, parameter_patterns=[".*"]) as recorder:
            self.recorder, self.record = (
                recorder,
                lambda kind, place, **fields: recorder.record(kind, **place, **fields),
            )
            for step in steps:
                self.step(step)
                recorder.end_step(step + self.shape.first_step)

    def ids(self, rows, step):
        prefix = f"step{step}-" if self.shape.names == "shared" else f"{self.shape.passes}-{self.shape.values}/"
        return [(f"{prefix}{row['group']}", row["run"]) for row in rows]

    def sequences(self, rows, **columns):
        """What trajectories hold, in the shape that the implementation has them in."""
        shape = self.shape
        columns = {"tokens": "tokens", "loss_mask": "mask", "logprobs": "sampled"} | columns
        rewards = [row["reward"] for row in rows]
        if shape.trajectory == "mappings":
            fields = [{name: list(row[key]) for name, key in columns.items()} for row in rows]
            return {"trajectories": [one | {"reward": reward} for one, reward in zip(fields, rewards, strict=True)]}
        found = {name: [list(row[key]) for row in rows] for name, key in columns.items()}
        if shape.trajectory != "lists":
            found |= {name: padded(part, left=shape.trajectory == "left") for name, part in found.items()}
            found["loss_mask"] = found["loss_mask"].to(shape.mask)
            if shape.attention:
                ones = [[1] * len(row["tokens"]) for row in rows]
                found["attention_mask"] = padded(ones, left=shape.trajectory == "left")
        return found | {"reward": rewards}

    def laid_out(self, rows, **columns):
        """Values of the tokens behind each prompt, in the shape that the implementation has them in."""
        shape = self.shape
        found = {}
        for name, parts in columns.items():
            lists = [torch.as_tensor(part).detach().tolist() for part in parts]
            if shape.values in ("whole", "behind-the-first"):
                ahead = int(shape.values == "behind-the-first")
                lists = [[0] * (row["start"] - ahead) + part for row, part in zip(rows, lists, strict=True)]
            found[name] = lists if shape.values == "lists" else padded(lists, left=self._is_left)
            if name == "response_mask" and shape.values != "lists":
                found[name] = found[name].to(shape.mask)
        return found

    @property
    def _is_left(self):
        return self.shape.passes == "left" and self.shape.values != "response"

    def scored(self, model, rows):
        parts = [rows[at : at + self.shape.micro] for at in range(0, len(rows), self.shape.micro)]
        return [one for part in parts for one in scored(model, part, self.shape.passes, self.temperature)]

    def step(self, step):
        algorithm, shape = self.algorithm, self.shape
        rows = rollouts(self.model, algorithm, step)
        if self.fault == "mask-one-late":
            rows = [row | {"mask": [0, *row["mask"][:-1]]} for row in rows]
        place, ids = {"step": step + shape.first_step}, self.ids(rows, step)
        self.record("trajectory", place, samples=ids, **self.sequences(rows))
        with torch.no_grad():
            old, reference = (self.scored(model, rows) for model in (self.model, self.reference))
        self.record("old_log_probs", place, samples=ids, **self.laid_out(rows, old_log_probs=[one[0] for one in old]))
        rule = "mean" if self.fault == "no-std" else algorithm.advantage
        rewards = [row["reward"] for row in rows]
        advantages = advantages_of(rewards, algorithm.size, rule, in_python=shape.python_advantages)
        for row, before, anchor, advantage in zip(rows, old, reference, advantages, strict=True):
            row |= {"old": before[0], "reference": anchor[0], "advantage": advantage}
            row["advantages"] = [advantage * trained for trained in row["mask"]]
        self.record("prepared_trajectories", place, samples=ids, **self.sequences(rows, advantages="advantages"))
        size = -(-len(rows) // algorithm.minis)
        for epoch in range(algorithm.epochs):
            for mini in range(algorithm.minis):
                chosen = rows[mini * size : (mini + 1) * size]
                if shape.is_shuffled:
                    random.Random(f"{step} {epoch} {mini} {shape.passes}").shuffle(chosen)
                self.update(chosen, step, place | {"epoch": epoch, "mini_batch": mini})

    def update(self, rows, step, place):
        algorithm, shape = self.algorithm, self.shape
        masks = [torch.tensor(row["mask"][row["start"] :], dtype=torch.float) for row in rows]
        every = float(sum(mask.sum() for mask in masks))
        self.optimizer.zero_grad()
        for micro, first in enumerate(range(0, len(rows), shape.micro)):
            part, mask = rows[first : first + shape.micro], masks[first : first + shape.micro]
            here = place | {"micro": micro}
            passes = scored(self.model, part, shape.passes, self.temperature)
            ids = self.ids(part, step)
            columns = {"log_probs": [one[0] for one in passes], "response_mask": mask}
            self.record("forward_data", here, samples=ids, **self.laid_out(part, **columns))
            loss, policy = self.losses(part, passes, mask, every, len(rows))
            if self.recorder is not None:
                # A mean of the micro-batch's own, as many loops log it, or its share of the mini-batch.
                is_mean = shape.records_means and algorithm.aggregation == "sequence-mean"
                factor = len(rows) / len(part) if is_mean else 1.0
                terms = {"pg_loss": (factor * policy).detach()} if shape.has_terms else {}
                self.record("loss", here, samples=ids, loss=(factor * loss).detach(), **terms)
            loss.backward()
        if self.recorder is not None:
            self.recorder.record_gradients(model=self.model, **place)
        if algorithm.norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), algorithm.norm)
        self.optimizer.step()
        if self.recorder is not None:
            self.recorder.record_parameters(model=self.model, **place)

    def losses(self, rows, passes, masks, every, count):
        """The whole loss and the policy's part of it."""
        algorithm = self.algorithm
        policy = rest = torch.zeros(())
        for row, (log_probs, entropy), mask in zip(rows, passes, masks, strict=True):
            by = {"token-mean": every, "sequence-mean": float(mask.sum()) * count, "fixed": 16.0 * count}
            ratio = (log_probs - row["old"]).exp()
            terms = -ratio * row["advantage"]
            if algorithm.clip is not None:
                clipped = ratio.clamp(1 - algorithm.clip, 1 + algorithm.clip)
                terms = torch.maximum(terms, -clipped * row["advantage"])
            gap = row["reference"] - log_probs
            extra = algorithm.kl * (gap.exp() - gap - 1) - algorithm.entropy * entropy
            policy = policy + (terms * mask).sum() / by[algorithm.aggregation]
            rest = rest + (extra * mask).sum() / by[algorithm.aggregation]
        return policy + rest, policy
