"""`--probe` on a tiny model made in code: each way in which an engine or a trainer may differ, by real numbers."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import rldbg
from rldbg.mismatch import probe
from rldbg.trainer.settings import TinyModel
from rldbg.trainer.tiny_model import TinyLlama

WORDS, SAMPLES, LENGTH, PROMPT = 40, 6, 24, 4
RANK, ALPHA = 4, 16


def tiny():
    torch.manual_seed(0)
    model = TinyLlama(TinyModel(hidden_size=32, layers=2, heads=2), WORDS).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


def adapters(model):
    """Per attention projection and layer a delta of low rank."""
    numbers = torch.Generator().manual_seed(1)
    names = [name for name, _ in model.named_parameters() if "q_proj" in name or "v_proj" in name]
    return {
        name: tuple(torch.randn(shape, generator=numbers) * 0.15 for shape in ((RANK, 32), (32, RANK)))
        for name in names
    }


MODEL = tiny()
LORA = adapters(MODEL)
TOKENS = np.random.default_rng(0).integers(2, WORDS, (SAMPLES, LENGTH))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    MODEL.to_transformers().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory):
    """As peft writes it."""
    folder = tmp_path_factory.mktemp("adapter")
    settings = {"base_model_name_or_path": str(base), "r": RANK, "lora_alpha": ALPHA, "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    tensors = {}
    for name, (down, up) in LORA.items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        tensors |= {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def log_probs(logits):
    wide = torch.log_softmax(logits if logits.dtype == torch.bfloat16 else logits.double(), -1).double()
    return wide[:, :-1].gather(-1, torch.from_numpy(TOKENS)[:, 1:, None])[..., 0].numpy()[:, PROMPT - 1 :]


def scored(change=lambda model: None, logits=lambda values: values):
    """Log probs of the responses by a changed copy of the model; each sample alone."""
    model = tiny()
    with torch.no_grad():
        change(model)
        return log_probs(logits(model(torch.from_numpy(TOKENS)).logits))


def merged(factor=1.0, without=""):
    def change(model):
        for name, parameter in model.named_parameters():
            if name in LORA and name != without:
                parameter += LORA[name][1] @ LORA[name][0] * (factor * ALPHA / RANK)

    return change


def fp8(model):
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module is not model.lm_head:
            scale = module.weight.abs().amax(1, keepdim=True) / 448
            module.weight.copy_((module.weight / scale).to(torch.float8_e4m3fn).float() * scale)


def behind_others(restart):
    """All samples in one row, each attending to those before it."""
    row = torch.from_numpy(TOKENS.reshape(1, -1))
    places = torch.arange(row.shape[1])[None]
    with torch.no_grad():
        output = MODEL(row, position_ids=places % LENGTH if restart else places).logits
    return log_probs(output.reshape(SAMPLES, LENGTH, WORDS))


def recorded(folder, rollout, trainer):
    samples = [(f"g{row}", 0) for row in range(SAMPLES)]
    whole = np.zeros((SAMPLES, LENGTH), np.float32)
    whole[:, PROMPT:] = rollout
    mask = np.broadcast_to(np.arange(LENGTH) >= PROMPT, TOKENS.shape).astype(np.int64)
    with rldbg.Recorder(folder) as recorder:
        recorder.record(
            "trajectory", step=0, samples=samples, policy_version=0, tokens=list(TOKENS), loss_mask=list(mask),
            logprobs=list(whole), reward=np.zeros(SAMPLES, np.float32),
        )  # fmt: skip
        recorder.record("old_log_probs", step=0, samples=samples, old_log_probs=trainer.astype(np.float32))
    return rldbg.open(folder)


PLAIN = scored()
Q = "model.layers.1.self_attn.q_proj"
CHANGED = {
    "quantised": (scored(fp8), PLAIN, {"form": "float8 with one scale per row"}),
    "softmax": (scored(logits=lambda values: values.bfloat16()), PLAIN, {"dtype": "bfloat16"}),
    # Another implementation of the same model: bfloat16 does not repeat bit for bit.
    "precision": (scored(lambda model: model.bfloat16(), lambda values: values.float()), PLAIN, {"dtype": "bfloat16"}),
    "packing": (PLAIN, behind_others(restart=True), {"restarted": True}),
}  # fmt: skip
OF_ADAPTER = {
    "it was not delivered, or not merged": (scored(), {"factor": 0.0}),
    "times 0.25 (alpha / rank left out)": (scored(merged(RANK / ALPHA)), {"factor": RANK / ALPHA}),
    "times 4 (alpha not divided by the rank)": (scored(merged(RANK)), {"factor": float(RANK)}),
    f"without the LoRA adapter of {Q}": (scored(merged(without=f"{Q}.weight")), {"without": Q}),
}


@pytest.mark.parametrize("cause", CHANGED)
def test_the_change_that_was_made_is_the_cause(tmp_path, base, cause):
    rollout, trainer, parameters = CHANGED[cause]
    report = probe(recorded(tmp_path, rollout, trainer), samples=3, checkpoint=base)
    assert (report.cause.id, report.cause.parameters) == (cause, parameters)
    assert report.side == ("trainer" if cause == "packing" else "rollout")


@pytest.mark.parametrize("text", OF_ADAPTER)
def test_what_is_wrong_with_a_lora_adapter_in_the_engine_is_told(tmp_path, adapter, text):
    rollout, parameters = OF_ADAPTER[text]
    report = probe(recorded(tmp_path, rollout, scored(merged())), samples=3, checkpoint=adapter)
    assert (report.cause.id, report.side) == ("lora", "rollout") and text in report.cause.change
    assert report.cause.parameters == pytest.approx(parameters)


def test_an_adapter_that_is_merged_rightly_is_no_cause(tmp_path, adapter):
    both = scored(merged())
    report = probe(recorded(tmp_path, both, both), samples=3, checkpoint=adapter)
    assert report.cause is None and max(report.rollout_gap, report.trainer_gap) < 1e-4


def test_a_gap_that_no_change_closes_has_no_cause(tmp_path, base):
    noisy = PLAIN + np.random.default_rng(5).normal(0, 0.1, PLAIN.shape)
    assert probe(recorded(tmp_path, noisy, PLAIN), samples=3, checkpoint=base).cause is None
