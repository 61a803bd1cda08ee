"""Stubs of trainers that do not run here: functions with the names and shapes of the real ones, on one batch.

The same four samples in each framework's own layout. What each trainer is handed is what its source of the version
named in its hooks hands over.
"""

from types import ModuleType, SimpleNamespace

import numpy as np
import torch

PROMPTS, RESPONSES = (2, 2, 3, 3), (4, 3, 3, 1)
TOKENS = [
    np.array([*range(3, 3 + prompt), *range(10 * row, 10 * row + response)])
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True), start=1)
]
REWARDS = [1.0, 0.0, 0.5, 0.25]
NORM = 1.5


def values(seed):
    """One value per token; what is on prompts is never seen."""
    numbers = np.random.default_rng(seed)
    return [-numbers.uniform(0.5, 2, len(row)).astype(np.float32) for row in TOKENS]


MASK = [np.array([0] * prompt + [1] * response) for prompt, response in zip(PROMPTS, RESPONSES, strict=True)]
OLD, NEW, ROLLOUT, ADVANTAGES, ENTROPY = (values(seed) for seed in range(5))
LOSS = torch.tensor(0.75)


def model():
    layer = torch.nn.Linear(2, 1)
    layer.weight.grad = torch.ones(1, 2)
    return layer


def padded(rows, *, left=False, cut=0, dtype=torch.float32):
    """[B, T - cut]: without the first `cut` columns."""
    length = max(map(len, TOKENS))
    out = np.zeros((len(rows), length))
    for place, row in zip(out, rows, strict=True):
        place[length - len(row) if left else 0 :][: len(row)] = row
    return torch.tensor(out[:, cut:]).to(dtype)


def responses(rows, dtype=torch.float32):
    """[B, R] beside prompts that are padded on the left and responses that are padded on the right."""
    out = np.zeros((len(rows), max(RESPONSES)))
    for place, row, start in zip(out, rows, PROMPTS, strict=True):
        place[: len(row) - start] = row[start:]
    return torch.tensor(out).to(dtype)


def both_sides(rows, dtype=torch.int64):
    """[B, P + R], prompts padded on the left, responses on the right."""
    out = np.zeros((len(rows), max(PROMPTS)))
    for place, row, start in zip(out, rows, PROMPTS, strict=True):
        place[max(PROMPTS) - start :] = row[:start]
    return torch.cat([torch.tensor(out).to(dtype), responses(rows, dtype)], dim=1)


def listed(rows, *, whole=False):
    return [torch.tensor(row if whole else row[start:]) for row, start in zip(rows, PROMPTS, strict=True)]


def packed(rows):
    return torch.tensor(np.concatenate(rows))


HELD = [np.ones(len(row)) for row in TOKENS]


class Stub:
    """The modules of a framework, by process."""

    def __init__(self):
        self.processes = {}

    def add(self, module, name, value, process="rank"):
        modules = self.processes.setdefault(process, {})
        setattr(modules.setdefault(module, ModuleType(module)), name, value)

    def __getitem__(self, path):
        module, name = path
        return next(getattr(modules[module], name) for modules in self.processes.values() if module in modules)


def class_with(*names, **more):
    """A class whose methods return what their object was told to."""

    def method(name):
        def call(self, *args, **kwargs):
            return self.answers[name](*args, **kwargs) if callable(self.answers.get(name)) else self.answers.get(name)

        call.__name__ = name
        return call

    return type("Stub", (), {name: method(name) for name in names} | more)


def nemo_rl():
    estimators, policies, workers, losses, training = (
        "nemo_rl.algorithms.advantage_estimator", "nemo_rl.models.policy.lm_policy",
        "nemo_rl.models.policy.workers.dtensor_policy_worker_v2", "nemo_rl.algorithms.loss.loss_functions",
        "nemo_automodel.components.training.utils",
    )  # fmt: skip
    stub = Stub()
    stub.add(estimators, "GRPOAdvantageEstimator", class_with("compute_advantage"), "driver")
    stub.add(policies, "Policy", class_with("train"), "driver")
    stub.add(workers, "DTensorPolicyWorkerV2Impl", class_with("train"))
    stub.add(losses, "ClippedPGLossFn", class_with("__call__"))
    stub.add(training, "scale_grads_and_clip_grad_norm", lambda *_, **__: NORM)

    def run():
        data = {
            "input_ids": padded(TOKENS, dtype=torch.int64), "input_lengths": torch.tensor([*map(len, TOKENS)]),
            "token_mask": padded(MASK), "sample_mask": torch.ones(4), "advantages": padded(ADVANTAGES),
            "prev_logprobs": padded(OLD), "generation_logprobs": padded(ROLLOUT),
        }  # fmt: skip
        estimator = stub[estimators, "GRPOAdvantageEstimator"]()
        estimator.answers = {}
        estimator.compute_advantage(None, torch.tensor(REWARDS), None)
        worker, loss = stub[workers, "DTensorPolicyWorkerV2Impl"](), stub[losses, "ClippedPGLossFn"]()
        worker.model = model()
        loss.answers, loss.loss_type = {"__call__": (LOSS, {"kl_penalty": 0.0})}, "LossType.TOKEN_LEVEL"

        def train(batch, *_):
            loss(padded(NEW, cut=1), batch, None, None)
            stub[training, "scale_grads_and_clip_grad_norm"](1.0, [worker.model])

        worker.answers = {"train": train}
        policy = stub[policies, "Policy"]()
        policy.answers = {}
        policy.train(data, loss)
        worker.train(data, loss)

    return stub, run


def slime(package="slime.backends.megatron_utils", loss_module=None, processors=None, advantages_module=None):
    losses = loss_module or f"{package}.loss"
    stub = Stub()
    stub.add(f"{package}.actor", "MegatronTrainRayActor", class_with("train"))
    passed = {"log_probs": listed(NEW), "entropy": listed(ENTROPY)}
    result = passed if processors else (torch.empty(0), passed)
    stub.add(processors or losses, "get_log_probs_and_entropy", lambda *_, **__: result)
    stub.add(advantages_module or losses, "compute_advantages_and_returns", compute_advantages)
    metrics = {"pg_loss": LOSS, "entropy_loss": LOSS}

    def policy_loss_function(args, batch, logits, reduce):
        stub[processors or losses, "get_log_probs_and_entropy"](logits, args=args)
        return LOSS, metrics

    def train_one_step(args, rollout_id, step_id, data_iterator, parts, optimizer, *_):
        if data_iterator["role"] == "actor":
            stub[losses, "policy_loss_function"](args, data_iterator, None, None)
        optimizer.step()
        parts[0].zero_grad()
        return {}, NORM

    stub.add(losses, "policy_loss_function", policy_loss_function)
    stub.add(f"{package}.model", "train_one_step", train_one_step)

    def run():
        args = SimpleNamespace(use_rollout_logprobs=False)
        batch = {
            "tokens": listed(TOKENS, whole=True), "unconcat_tokens": listed(TOKENS, whole=True), "rewards": REWARDS,
            "loss_masks": listed(MASK), "log_probs": listed(OLD), "rollout_log_probs": listed(ROLLOUT),
        }  # fmt: skip
        parts, optimizer = [model()], SimpleNamespace(step=lambda: None)
        holder = type("Optimizer", (), {"step": lambda self: optimizer.step()})()

        def train(rollout_id, _data):
            stub[advantages_module or losses, "compute_advantages_and_returns"](args, batch)
            stub[f"{package}.model", "train_one_step"](args, rollout_id, 0, batch, parts, holder)

        for role in ("critic", "actor"):
            actor = stub[f"{package}.actor", "MegatronTrainRayActor"]()
            actor.answers, actor.role, batch["role"] = {"train": train}, role, role
            parts[:] = [model()]
            actor.train(1, None)
        assert "step" not in vars(holder)

    return stub, run


def compute_advantages(args, rollout_data):
    rollout_data["advantages"] = listed(ADVANTAGES)
    rollout_data["values"] = rollout_data["returns"] = listed(OLD)


def miles():
    training = "miles.backends.training_utils"
    return slime(
        "miles.backends.megatron_utils",
        f"{training}.loss_hub.losses",
        f"{training}.loss_hub.logit_processors",
        f"{training}.loss",
    )


def prime_rl():
    stub = Stub()
    stub.add("prime_rl.trainer.rl.data", "DataLoader", class_with("get_batch"))
    stub.add("prime_rl.trainer.model", "forward", lambda *_, **__: None)
    stub.add("prime_rl.trainer.rl.loss", "compute_loss", lambda **_: (LOSS, {}))
    stub.add("prime_rl.trainer.utils", "clip_grad_norm_", lambda *_: torch.tensor(NORM))

    def run():
        batch = {
            "input_ids": packed(TOKENS)[None], "loss_mask": packed(MASK)[None] != 0,
            "advantages": packed(ADVANTAGES)[None], "inference_logprobs": packed(OLD)[None],
            "sequence_lengths": [*map(len, TOKENS)],
        }  # fmt: skip
        layer, loader = model(), stub["prime_rl.trainer.rl.data", "DataLoader"]()
        loader.answers = {"get_batch": [batch]}
        loader.get_batch()
        stub["prime_rl.trainer.model", "forward"](layer, None, None)
        split = lambda rows: [torch.tensor(row) for row in rows]  # noqa: E731
        stub["prime_rl.trainer.rl.loss", "compute_loss"](
            trainer_logprobs=split(NEW), inference_logprobs=split(OLD), ref_logprobs=None,
            advantages=split(ADVANTAGES), loss_mask=split(MASK), rl_scale=11,
        )  # fmt: skip
        stub["prime_rl.trainer.utils", "clip_grad_norm_"](None, layer, 1.0, False)
        loader.answers = {"get_batch": [batch]}
        loader.get_batch()

    return stub, run


def rlinf():
    actors, algorithms, manager = (
        "rlinf.workers.actor.fsdp_actor_worker", "rlinf.algorithms.registry",
        "rlinf.hybrid_engines.fsdp.fsdp_model_manager",
    )  # fmt: skip
    stub = Stub()
    base = class_with("optimizer_step")
    stub.add(manager, "FSDPModelManager", base)
    methods = class_with("run_training", "compute_advantages_and_returns", "forward_batch")
    stub.add(actors, "FSDPActor", type("FSDPActor", (base,), dict(vars(methods))))
    stub.add(algorithms, "policy_loss", lambda **_: (LOSS, {}))

    def run():
        batch = {
            "input_ids": both_sides(TOKENS), "attention_mask": both_sides(HELD), "rewards": torch.tensor(REWARDS),
            "response_mask": both_sides(MASK), "rollout_logprobs": responses(ROLLOUT),
            "recomputed_logprobs": responses(OLD), "advantages": responses(ADVANTAGES),
        }  # fmt: skip
        actor = stub[actors, "FSDPActor"]()
        actor.response_len, actor.model = max(RESPONSES), model()

        def train(_channel):
            actor.compute_advantages_and_returns(batch)
            actor.forward_batch(batch, True)
            stub[algorithms, "policy_loss"](
                task_type="reasoning", loss_type="actor", logprobs=responses(NEW), old_logprobs=responses(OLD),
                advantages=responses(ADVANTAGES), loss_mask=batch["response_mask"][:, -actor.response_len :],
            )  # fmt: skip
            actor.optimizer_step()

        actor.answers = {
            "run_training": train, "compute_advantages_and_returns": lambda each: each,
            "forward_batch": (responses(NEW), responses(ENTROPY)), "optimizer_step": (NORM, [1e-3]),
        }  # fmt: skip
        actor.run_training(None)

    return stub, run


def nexrl():
    actors, losses = (
        "nexrl.train_service_backend.fsdp_worker.fsdp_actor",
        ("nexrl.train_service_backend.utils.core_algos"),
    )
    stub = Stub()
    stub.add(actors, "DataParallelPPOActor", class_with("update_policy", "_forward_micro_batch", "_optimizer_step"))
    stub.add(losses, "compute_policy_loss_impl", lambda *_, **__: (LOSS, {}))

    def run():
        batch = {
            "input_ids": both_sides(TOKENS), "attention_mask": both_sides(HELD),
            "scoring_attention_mask": both_sides(MASK), "responses": responses(TOKENS, torch.int64),
            "advantages": responses(ADVANTAGES), "old_log_probs": responses(OLD),
        }  # fmt: skip
        actor = stub[actors, "DataParallelPPOActor"]()
        actor.actor_module = model()

        def update(data):
            actor._forward_micro_batch(batch, 1.0)
            stub[losses, "compute_policy_loss_impl"](responses(NEW), batch, "ppo")
            actor._optimizer_step()

        actor.answers = {
            "update_policy": update, "_forward_micro_batch": (responses(ENTROPY), responses(NEW)),
            "_optimizer_step": torch.tensor(NORM),
        }  # fmt: skip
        actor.update_policy(SimpleNamespace(batch=batch, meta_info={"global_step": 1}))

    return stub, run


STUBS = {each.__name__: each for each in (nemo_rl, slime, miles, prime_rl, rlinf, nexrl)}
