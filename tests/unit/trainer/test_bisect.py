"""`rldbg bisect`: the first module that differs, by its parameters, its code or its gradients, is named."""

import json
import sys
from copy import deepcopy

import pytest
import torch
from torch.nn import functional

import rldbg
from rldbg.bisection import bisect_captures, capture_pass
from rldbg.bisection.dumps import read_dump
from rldbg.bisection.operations import first_operation, operations_inside
from rldbg.cli.application import run
from rldbg.core import IncompleteDataError
from rldbg.trainer import Capsule, capsule_model, recipe_from_data
from rldbg.trainer.settings import TinyModel
from rldbg.trainer.tiny_model import TinyLlama

TOKENS = torch.tensor([[3, 7, 5, 11, 2, 9]])
INPUTS = {"input_ids": TOKENS, "use_cache": False}


def tiny():
    torch.manual_seed(0)
    return TinyLlama(TinyModel(hidden_size=16, layers=2, heads=2), 20).eval()


def loss(logits):
    return -torch.log_softmax(logits.float() if logits.dtype != torch.float64 else logits, -1)[0, :, 4].mean()


def captured(model, title="side"):
    return capture_pass(model, INPUTS, loss, title=title)


def compared(change):
    """A model against a copy of itself with one thing changed."""
    model = tiny()
    other = deepcopy(model)
    change(other)
    report = bisect_captures(captured(model), captured(other), captured(deepcopy(model).double()))
    return model, other, report


def test_equal_models_agree_forward_and_backward():
    _, _, report = compared(lambda _: None)
    assert report.agrees and len(report.modules) > 20 and len(report.gradients) > 20


def test_rounding_is_not_a_difference():
    model = tiny()
    wide = captured(deepcopy(model).double())
    assert bisect_captures(captured(model), wide, wide).agrees


def test_a_parameter_that_differs_is_named():
    def change(other):
        with torch.no_grad():
            other.model.layers[1].self_attn.o_proj.weight[0, 0] += 0.01

    _, _, report = compared(change)
    assert report.forward.name == "model.layers.1.self_attn.o_proj" and not report.forward.given
    assert report.parameters == {"model.layers.1.self_attn.o_proj.weight": pytest.approx(0.01, rel=1e-3)}


def test_code_that_differs_is_placed_in_the_module_that_has_it_and_the_operation_is_named():
    def change(other):
        mlp = other.model.layers[0].mlp
        mlp.forward = lambda hidden: mlp.down_proj(functional.gelu(mlp.gate_proj(hidden)) * mlp.up_proj(hidden))

    model, other, report = compared(change)
    assert report.forward.name == "model.layers.0.mlp.down_proj" and report.forward.given
    assert report.forward.place == "model.layers.0.mlp" and report.parameters == {}
    assert "silu" in first_operation(model, other, report.forward.place, report.forward.place, INPUTS)


def test_operations_are_hashed_as_debug_mode_does_it_without_debug_mode(monkeypatch):
    """Results that are no floating-point tensors are left out by one and hashed by the other."""
    logged = operations_inside(tiny(), "model.layers.0.mlp", INPUTS)
    monkeypatch.setitem(sys.modules, "torch.utils._debug_mode", None)
    ours = operations_inside(tiny(), "model.layers.0.mlp", INPUTS)
    assert len(logged) > 5 and [name for name, _ in ours] == [name for name, _ in logged]
    assert [value for _, value in ours] == pytest.approx([value for _, value in logged])


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_context, values):
        return values.clone()

    @staticmethod
    def backward(_context, gradient):
        return gradient * 2


def test_a_gradient_that_differs_while_outputs_agree_is_named():
    def change(other):
        mlp = other.model.layers[1].mlp
        plain = mlp.forward
        mlp.forward = lambda hidden: Doubled.apply(plain(hidden))

    _, _, report = compared(change)
    assert report.forward is None and report.backward.name == "model.layers.1.mlp.down_proj"


def dumped(folder, form):
    """The outputs of a model whose second layer is wrong, as another tool writes them: without a batch axis."""
    other = tiny()
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight.mul_(1.5)
    outputs = {}
    for name, module in other.named_modules():
        if name.endswith("_proj"):
            module.register_forward_hook(
                lambda _m, _i, output, name=name: outputs.__setitem__(name, output[0].detach())
            )
    other(**INPUTS)
    place = folder / "step0" / "rank0" / "dump_tensor_data" if form == "msprobe" else folder
    place.mkdir(parents=True, exist_ok=True)
    for number, (name, output) in enumerate(outputs.items()):
        msprobe = f"Module.{name}.Linear.forward.0.output.0.pt"
        sglang = f"forward_pass_id=1___rank=0___name=language_{name}___dump_index={number}.pt"
        torch.save(output, place / (msprobe if form == "msprobe" else sglang))


@pytest.mark.parametrize("form", ["msprobe", "sglang"])
def test_a_dump_of_another_tool_is_a_side(tmp_path, form):
    dumped(tmp_path, form)
    model = tiny()
    exact = captured(deepcopy(model).double())
    report = bisect_captures(captured(model), read_dump(tmp_path), exact)
    assert report.forward.name == "model.layers.1.mlp.up_proj"
    assert report.forward.matched_by == ("name" if form == "msprobe" else "similar name")


def test_a_dump_of_msprobe_is_read_in_the_order_of_its_calls(tmp_path):
    """As msprobe 26.2 writes it for a process without ranks; the gradient of an output is its backward pass's input."""
    names = ["Module.layers.2.Linear", "Module.layers.10.Linear", "Module.head.Linear"]
    calls = [f"{name}.forward.0" for name in names] + [f"{name}.backward.0" for name in reversed(names)]
    for step in (1, 0):
        place = tmp_path / f"step{step}" / "proc123" / "dump_tensor_data"
        place.mkdir(parents=True)
        (place.parent / "dump.json").write_text(json.dumps({"level": "L0", "data": {call: {} for call in calls}}))
        for number, call in enumerate(calls):
            for part, value in (("input", 100 + number), ("output", number)):
                torch.save(torch.full((2,), step + value + 0.5), place / f"{call}.{part}.0.pt")
    found = read_dump(tmp_path)
    assert [(item.name, item.values[0]) for item in found.forward] == [
        ("layers.2", 0.5),
        ("layers.10", 1.5),
        ("head", 2.5),
    ]
    assert [(item.name, item.values[0]) for item in found.backward] == [
        ("head", 103.5),
        ("layers.10", 104.5),
        ("layers.2", 105.5),
    ]


def test_a_folder_without_dumps_says_so(tmp_path):
    with pytest.raises(IncompleteDataError, match="no dumped outputs"):
        read_dump(tmp_path)


def test_the_verb_runs_the_models_of_two_capsules(base_run, capsys):
    same = ["bisect", str(base_run), str(base_run), "--step", "1"]
    assert run(same) == 0 and "equal" in capsys.readouterr().out
    assert run([*same, "--set-b", "model.dtype=bfloat16", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["forward"]["name"] == "model.embed_tokens"
    assert run([*same, "--sample", "nobody/0"]) == 4


def folders(place, base_run):
    """The capsule's model as a Hugging Face folder, and one whose second matrix of the MLP is wrong."""
    capsule = Capsule(rldbg.open(base_run), 1)
    model = capsule_model(capsule, recipe_from_data(capsule.recipe, source="test")).to_transformers()
    model.save_pretrained(place / "right")
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3] += 0.01
    model.save_pretrained(place / "wrong")
    return place / "right", place / "wrong"


def test_a_model_folder_is_a_side_with_the_tokens_of_any_recording(tmp_path, base_run, capsys):
    right, wrong = folders(tmp_path, base_run)
    assert run(["bisect", str(base_run), str(right), "--step", "1", "--device", "cpu"]) == 0
    capsys.readouterr()
    both = ["bisect", str(right), str(wrong), "--step", "1", "--device", "cpu"]
    assert run(both) == 2 and "--tokens-of" in capsys.readouterr().err
    assert run([*both, "--tokens-of", str(base_run), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["forward"]["name"] == "model.layers.0.mlp.up_proj"
    assert list(report["parameters"]) == ["model.layers.0.mlp.up_proj.weight"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_a_gpu_names_the_same_module_and_operation(tmp_path, base_run, capsys):
    right, wrong = folders(tmp_path, base_run)
    same = ["bisect", str(base_run), str(base_run), "--step", "1", "--device", "cuda"]
    assert run(same) == 0 and run(["bisect", str(base_run), str(right), *same[3:]]) == 0
    capsys.readouterr()
    assert run(["bisect", str(base_run), str(wrong), *same[3:], "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["forward"]["name"] == "model.layers.0.mlp.up_proj"
    assert list(report["parameters"]) == ["model.layers.0.mlp.up_proj.weight"]
    assert run([*same, "--set-b", "model.dtype=bfloat16", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["forward"]["name"] == "model.embed_tokens"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_half_a_billion_parameters_fit_a_bounded_memory(tmp_path, base_run, capsys):
    """A model of the size of Qwen2.5-0.5B: one module's code differs. A, its copy in double, B and gradients."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=32000, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, tie_word_embeddings=True, dtype="bfloat16",
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "a")
    with torch.no_grad():
        model.model.layers[17].self_attn.v_proj.bias[5] += 1
    model.save_pretrained(tmp_path / "b")
    size = sum(value.numel() for value in model.parameters())
    torch.cuda.reset_peak_memory_stats()
    arguments = ["bisect", str(tmp_path / "a"), str(tmp_path / "b"), "--step", "1", "--tokens-of", str(base_run)]
    assert run([*arguments, "--device", "cuda", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["forward"]["name"] == "model.layers.17.self_attn.v_proj"
    # A, its copy and gradients in double precision; then A, B and gradients. Outputs are kept on the host.
    assert torch.cuda.max_memory_allocated() < (2 + 8 + 8 + 4) * size
