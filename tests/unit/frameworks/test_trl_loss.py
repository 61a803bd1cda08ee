"""What the loss of GRPOTrainer computed on the way, from its own variables, in the kinds that compare knows."""

from types import SimpleNamespace

import pytest

from rldbg.frameworks.trl.loss_facts import loss_facts, loss_form, loss_terms

torch = pytest.importorskip("torch")
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])


def trainer(**settings):
    given = {"loss_type": "grpo", "beta": 0.1, "importance_sampling_level": "token", "max_completion_length": 5}
    args = SimpleNamespace(delta=settings.pop("delta", None), steps_per_generation=1)
    accelerator = SimpleNamespace(num_processes=1)
    return SimpleNamespace(**given | settings, args=args, accelerator=accelerator)


def variables(**others):
    """As `_compute_loss` has them at its end: the loss of a token has its KL term."""
    torch.manual_seed(1)
    policy, kl = torch.randn(2, 3), torch.rand(2, 3)
    return {
        "per_token_loss": policy + 0.1 * kl,
        "per_token_kl": kl,
        "log_importance_weights": torch.randn(2, 3),
    } | others


@pytest.mark.parametrize("kind", ["grpo", "bnpo", "dr_grpo", "dapo", "luspo"])
def test_the_terms_add_up_to_the_loss(kind):
    made = variables()
    job, inputs = trainer(loss_type=kind), {"num_items_in_batch": MASK.sum()}
    counted = made["per_token_loss"] * MASK
    loss = {
        "grpo": (counted.sum(-1) / MASK.sum(-1)).mean(),
        "bnpo": counted.sum() / MASK.sum(),
        "dr_grpo": counted.sum() / (2 * 5),
        "dapo": counted.sum() / MASK.sum(),
        "luspo": counted.sum(-1).mean(),
    }[kind]
    tokens, terms = loss_terms(job, loss_facts(job, inputs, MASK), made, MASK)
    assert float(terms["pg_loss"] + job.beta * terms["kl_loss"]) == pytest.approx(float(loss), rel=1e-5)
    assert torch.equal(tokens["prob_ratio"], made["log_importance_weights"].exp())
    assert torch.allclose(tokens["elementwise_loss"], made["per_token_loss"] - 0.1 * made["per_token_kl"])


@pytest.mark.parametrize(
    ("settings", "others", "form"),
    [
        ({}, {}, "ratio"),
        ({"delta": 1.5}, {}, "two-sided ratio"),
        ({"importance_sampling_level": "sequence"}, {"log_importance_weights": torch.zeros(2, 1)}, "sequence ratio"),
        ({"use_vllm": True, "vllm_importance_sampling_correction": True}, {}, "weighted ratio"),
        ({}, {"entropy_mask": MASK}, "weighted ratio"),
        ({"loss_type": "cispo"}, {}, "cispo"),
    ],
)
def test_each_token_has_its_loss_and_what_it_is_made_of(settings, others, form):
    job, made = trainer(**settings), variables(**others)
    facts = loss_facts(job, {"num_items_in_batch": MASK.sum()}, MASK)
    tokens, terms = loss_terms(job, facts, made, MASK)
    assert {name: value.shape for name, value in tokens.items()} == dict.fromkeys(
        ("prob_ratio", "elementwise_loss"), MASK.shape
    )
    assert set(terms) == {"pg_loss", "kl_loss"}
    assert loss_form(job, facts["loss_type"], made) == form


def test_a_loss_of_the_users_own_has_no_terms():
    job = trainer()
    assert loss_terms(job, loss_facts(job, {}, MASK), {"my_loss": 1.0}, MASK) == ({}, {})
