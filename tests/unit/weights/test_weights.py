"""Fingerprints, what they survive, and how each way to spoil a tensor is told."""

import json

import pytest
import torch

import rldbg
from rldbg.analysis import check
from rldbg.cli.application import run
from rldbg.weights import (
    BaseWeight,
    Box,
    FingerprintStream,
    faults_of,
    fingerprints,
    fingerprints_of_pieces,
    map_names,
    snapshot_fields,
    snapshots_of,
    unfused,
)

TORCH = torch.Generator().manual_seed(0)


def random(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=TORCH).to(dtype)


def weights():
    layer = "model.layers.{}."
    tensors = {"model.embed_tokens.weight": random(24, 16), "lm_head.weight": random(24, 16)}
    for number in range(2):
        names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
        tensors |= {f"{layer.format(number)}{name}.weight": random(16, 16) for name in names}
        tensors |= {f"{layer.format(number)}mlp.{name}.weight": random(32, 16) for name in ("gate_proj", "up_proj")}
        tensors |= {f"{layer.format(number)}mlp.experts.{e}.down_proj.weight": random(16, 32) for e in range(3)}
        tensors[f"{layer.format(number)}input_layernorm.weight"] = random(16)
    return tensors


OLD, NEW = weights(), weights()
Q = "model.layers.1.self_attn.q_proj.weight"


def total(tensor):
    return fingerprints({"w": tensor})[0].total


def recorded(folder, held, *, base=None):
    """Two versions sent, and what one replica holds of the second."""
    with rldbg.Recorder(folder) as recorder:
        recorder.record("weights", step=0, micro=0, **snapshot_fields("sent", fingerprints(OLD)))
        recorder.record("weights", step=1, micro=0, **snapshot_fields("sent", fingerprints(NEW), base=base))
        pieces = fingerprints(held) if isinstance(held, dict) else held
        recorder.record("weights", step=1, micro=2, **snapshot_fields("held", pieces, replica=1))
        recorder.record("loss", step=1, loss=0.0)
    return rldbg.open(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float64])
@pytest.mark.parametrize("cut", [0, 1])
def test_pieces_add_up_to_the_whole_wherever_it_is_cut(dtype, cut):
    whole = random(13, 7, dtype=dtype)
    for at in (1, 4, 6):
        parts = (whole[:at], whole[at:]) if cut == 0 else (whole[:, :at], whole[:, at:])
        offsets = ((0, 0), (at, 0) if cut == 0 else (0, at))
        pieces = fingerprints_of_pieces(
            ("w", part, Box((13, 7), offset, tuple(part.shape))) for part, offset in zip(parts, offsets, strict=True)
        )
        assert (sum(item.total for item in pieces) - total(whole)) % 2**64 == 0
        assert (sum(item.by_row for item in pieces) - fingerprints({"w": whole})[0].by_row) % 2**64 == 0


def test_stacked_experts_may_be_cut_on_any_axis():
    whole = random(4, 6, 10)
    cuts = [(slice(0, 2), 0), (slice(2, 4), 2)]
    pieces = [("w", whole[part, 3:, 5:], Box((4, 6, 10), (start, 3, 5), (2, 3, 5))) for part, start in cuts]
    rest = [
        ("w", whole[:, :3], Box((4, 6, 10), (0, 0, 0), (4, 3, 10))),
        ("w", whole[:, 3:, :5], Box((4, 6, 10), (0, 3, 0), (4, 3, 5))),
    ]
    assert (sum(item.total for item in fingerprints_of_pieces([*pieces, *rest])) - total(whole)) % 2**64 == 0


def test_a_fingerprint_changes_with_any_element_its_place_and_nothing_else():
    whole = random(8, 8)
    first = total(whole)
    assert total(whole.clone()) == first and total(whole.T.contiguous().T) == first
    assert total(torch.zeros(8, 8)) == 0
    changed = whole.clone()
    changed[3, 5] = torch.nextafter(changed[3, 5], torch.tensor(10.0))
    swapped = whole.clone()
    swapped[[0, 1]] = whole[[1, 0]]
    assert len({first, total(changed), total(swapped), total(whole.T)}) == 4


def test_tensors_of_one_shape_have_the_fingerprints_they_have_alone():
    together = {item.name: item for item in fingerprints(NEW)}
    for name, tensor in NEW.items():
        (alone,) = fingerprints({name: tensor})
        assert (alone.grid == together[name].grid).all() and alone.norm == pytest.approx(together[name].norm)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int64])
def test_a_gpu_gives_the_same_numbers(dtype):
    shapes = [(7,), (96,), (16, 40), (520, 130), (3, 10, 24), (), (0, 8), (2048, 16), (600, 1100)]
    tensors = {f"{shape}": (random(*shape) * 4).to(dtype) for shape in shapes} | {"turned": random(8, 16).to(dtype).T}
    expected = {item.name: item for item in fingerprints(tensors)}
    for item in fingerprints({name: tensor.cuda() for name, tensor in tensors.items()}):
        other = expected[item.name]
        assert (item.grid == other.grid).all() and (item.by_row, item.by_column) == (other.by_row, other.by_column)
        assert (item.norm, item.sum) == pytest.approx((other.norm, other.sum), rel=1e-4, abs=1e-2)


SPOILED = {
    "stale": OLD[Q],
    "zero": torch.zeros(16, 16),
    "transposed": NEW[Q].T,
    "scaled": NEW[Q] * 0.5,
    "fused-order": NEW[Q.replace("q_proj", "k_proj")],
    "reordered": NEW[Q].roll(4, 0),
    "quantised": NEW[Q].to(torch.bfloat16).float(),
    "partial": torch.cat([NEW[Q][:8], OLD[Q][8:]]),
    "different": random(16, 16) * 3,
    "lora-missing": NEW[Q] + 0.25,
}


@pytest.mark.parametrize("how", SPOILED)
def test_the_way_a_tensor_is_wrong_is_told(tmp_path, how):
    base = {Q: BaseWeight(total(SPOILED[how]))} if how == "lora-missing" else None
    recording = recorded(tmp_path, NEW | {Q: SPOILED[how]}, base=base)
    (fault,) = faults_of(snapshots_of(recording))
    assert (fault.how, fault.version, fault.replica, fault.name) == (how, 1, 1, Q)
    report = check(recording, only=["engine-holds-what-was-sent"])
    assert report.findings[0].where == f"version 1 replica 1 tensor {Q}"


def test_dtype_expert_and_missing_tensors_are_told(tmp_path):
    expert = "model.layers.0.mlp.experts.{}.down_proj.weight"
    held = NEW | {Q: NEW[Q].half(), expert.format(0): NEW[expert.format(2)]}
    del held["model.layers.1.input_layernorm.weight"]
    faults = {fault.name: fault for fault in faults_of(snapshots_of(recorded(tmp_path, held)))}
    assert faults[Q].text == "was sent in float32 and is held in float16"
    assert faults[expert.format(0)].how == "wrong-expert" and expert.format(2) in faults[expert.format(0)].text
    assert faults["model.layers.1.input_layernorm.weight"].how == "missing"
    assert len(faults) == 3


def test_a_version_that_was_not_loaded_at_all_is_one_fault(tmp_path):
    (fault,) = faults_of(snapshots_of(recorded(tmp_path, OLD)))
    assert fault.how == "stale" and fault.tensors == len(NEW) and "version 0" in fault.text


def engine_side(shard=0, shards=1, tensors=NEW):
    """The tensors as an engine holds them: fused, cut by rows or columns, with tied embeddings."""
    held = {}
    for name, tensor in tensors.items():
        layer = name.rsplit(".", 3)[0]
        columns = "down_proj" in name or "o_proj" in name
        own = tensor.chunk(shards, -1 if columns else 0)[shard] if tensor.ndim > 1 else tensor
        for part, fused in (("q_proj", "qkv_proj"), ("k_proj", "qkv_proj"), ("v_proj", "qkv_proj")):
            if part in name:
                held.setdefault(name.replace(part, fused), []).append(own)
        for part in ("gate_proj", "up_proj"):
            if part in name:
                held.setdefault(name.replace(part, "gate_up_proj"), []).append(own)
        if not any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")):
            held[name] = [own]
        assert layer
    return {name: torch.cat(parts) for name, parts in held.items()}


SHAPES = {name: tuple(tensor.shape) for name, tensor in NEW.items()}


@pytest.mark.parametrize("shards", [1, 2])
def test_an_engine_that_fuses_and_cuts_holds_what_was_sent(tmp_path, shards):
    pieces = [
        piece
        for shard in range(shards)
        for piece in fingerprints_of_pieces(unfused(engine_side(shard, shards), SHAPES, shard=shard, shards=shards))
    ]
    assert list(faults_of(snapshots_of(recorded(tmp_path, pieces)))) == []


def test_the_shard_that_is_stale_is_named(tmp_path):
    sides = [engine_side(0, 2), engine_side(1, 2)]
    name = "model.layers.0.self_attn.qkv_proj.weight"
    sides[1][name] = engine_side(1, 2, OLD)[name]
    pieces = [
        piece
        for shard in range(2)
        for piece in fingerprints_of_pieces(unfused(sides[shard], SHAPES, shard=shard, shards=2))
    ]
    faults = list(faults_of(snapshots_of(recorded(tmp_path, pieces))))
    assert {fault.how for fault in faults} == {"stale"} and sum(fault.tensors for fault in faults) == 3
    assert faults[0].name == "model.layers.0.self_attn.q_proj.weight shard 1 (at [8, 0] of [16, 16])"


def test_names_map_by_rule():
    engine = ["model.layers.0.self_attn.qkv_proj.weight", "model.norm.weight", "model.embed_tokens.weight", "odd"]
    engine.append("base_model.model.model.layers.0.self_attn.o_proj.base_layer.weight")
    engine.append("model.layers.0.mlp.experts.w2_weight")
    experts = [f"model.layers.0.mlp.experts.{number}.down_proj.weight" for number in range(3)]
    trainer = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkvo"]
    mapped = map_names(engine, [*trainer, "model.norm.weight", "model.embed_tokens.weight", "lm_head.weight", *experts])
    rules = {item.engine: (item.rule, item.trainer) for item in mapped if item.rule and item.rule != "tied-embeddings"}
    assert rules[engine[0]] == ("fused-qkv", tuple(trainer[:3])) and rules["odd"] == ("unknown", ())
    assert rules[engine[4]][1] == (trainer[3],) and rules[engine[5]] == ("expert-down", tuple(experts))
    assert [item.trainer for item in mapped if item.rule == "tied-embeddings"] == [("lm_head.weight",)]


def test_the_verb_shows_rules_and_names(tmp_path, capsys):
    assert run(["weights", "map"]) == 0 and "fused-qkv" in capsys.readouterr().out
    recorded(tmp_path, NEW)
    assert run(["weights", "map", str(tmp_path), "--json"]) == 0
    assert all(item["rule"] == "" for item in json.loads(capsys.readouterr().out)["tensors"])


def test_weights_without_any_step_are_checked_and_an_engines_own_numbers_are_no_hole(tmp_path):
    with rldbg.Recorder(tmp_path) as recorder:
        recorder.record("weights", step=0, micro=0, at=1.0, **snapshot_fields("sent", fingerprints(NEW)))
        held = snapshot_fields("held", fingerprints(NEW | {Q: SPOILED["zero"]}))
        recorder.record("weights", step=0, micro=4321, engine="host:1", at=2.0, **held)
    report = check(rldbg.open(tmp_path))
    assert [(item.id, item.where) for item in report.findings] == [
        ("engine-holds-what-was-sent", f"version 0 replica 0 tensor {Q}")
    ]


DELTA = random(16, 4) @ random(4, 16) * 0.2


@pytest.mark.parametrize(
    ("held", "how", "text"),
    [
        (NEW[Q] - DELTA, "lora-missing", "the LoRA delta is missing"),
        (NEW[Q] - DELTA + 2 * DELTA, "lora-scaled", "plus 2 times the LoRA delta"),
        (NEW[Q] - DELTA + 0.25 * DELTA, "lora-scaled", "plus 0.25 times the LoRA delta"),
        (NEW[Q] + random(16, 16), "different", "256 of 256 elements differ"),
    ],
)
def test_what_is_wrong_with_a_merged_adapter_is_told(tmp_path, held, how, text):
    (plain,) = fingerprints({Q: NEW[Q] - DELTA})
    base = {Q: BaseWeight.of(plain, NEW[Q], NEW[Q] - DELTA)}
    with rldbg.Recorder(tmp_path) as recorder:
        sent = snapshot_fields("sent", fingerprints(NEW), base=base, values={Q: NEW[Q]})
        recorder.record("weights", step=0, micro=0, **sent)
        fields = snapshot_fields("held", fingerprints(NEW | {Q: held}), values={Q: held})
        recorder.record("weights", step=0, micro=1, **fields)
    (fault,) = faults_of(snapshots_of(rldbg.open(tmp_path)))
    assert (fault.how, fault.name) == (how, Q) and text in fault.text


def grouped(shards, **changes):
    """What ranks of an engine hold of a layer with two key heads to four query heads, with changes by name."""
    parts = {"q_proj": 32, "k_proj": 16, "v_proj": 16, "o_proj": 32, "gate_proj": 64, "up_proj": 64}
    sent = {f"model.layers.0.{name}.weight": random(rows, 32, dtype=torch.bfloat16) for name, rows in parts.items()}
    sent |= {f"model.layers.0.experts.{e}.down_proj.weight": random(32, 16, dtype=torch.bfloat16) for e in range(2)}
    sent["model.embed_tokens.weight"] = random(48, 32, dtype=torch.bfloat16)
    held = sent | {f"model.layers.0.{name}.weight": change(sent) for name, change in changes.items()}
    return sent, [cut_and_fused(held, shard, shards) for shard in range(shards)]


def cut_and_fused(tensors, shard, shards, order="qkv"):
    columns = ("o_proj", "down_proj")
    own = {
        name: tensor.chunk(shards, 1 if any(part in name for part in columns) else 0)[shard]
        for name, tensor in tensors.items()
    }
    layer = "model.layers.0."
    held = {name: own[name] for name in own if "embed" in name or "o_proj" in name}
    held[f"{layer}qkv_proj.weight"] = torch.cat([own[f"{layer}{part}_proj.weight"] for part in order])
    held[f"{layer}gate_up_proj.weight"] = torch.cat([own[f"{layer}{part}_proj.weight"] for part in ("gate", "up")])
    held[f"{layer}experts.w2_weight"] = torch.stack([own[f"{layer}experts.{e}.down_proj.weight"] for e in range(2)])
    return held


def told(folder, sent, ranks, base=None):
    shapes = {name: tuple(tensor.shape) for name, tensor in sent.items()}
    pieces = [
        piece
        for shard, held in enumerate(ranks)
        for piece in fingerprints_of_pieces(unfused(held, shapes, shard=shard, shards=len(ranks)))
    ]
    with rldbg.Recorder(folder) as recorder:
        recorder.record("weights", step=0, micro=0, **snapshot_fields("sent", fingerprints(sent), base=base))
        recorder.record("weights", step=0, micro=1, **snapshot_fields("held", pieces))
    return {(fault.how, fault.name.partition(" ")[0]) for fault in faults_of(snapshots_of(rldbg.open(folder)))}


def one_shard(name, spoil):
    """The second half of a tensor, by columns, is spoiled."""
    return lambda sent: torch.cat([sent[name][:, :16], spoil(sent[name][:, 16:])], 1)


OUT = "model.layers.0.o_proj.weight"


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize(
    ("how", "name", "change"),
    [
        ("scaled", "o_proj", lambda sent: sent[OUT] * -0.7),
        ("quantised", "o_proj", lambda sent: sent[OUT].to(torch.float8_e4m3fn).to(torch.bfloat16)),
        ("transposed", "o_proj", lambda sent: sent[OUT].T.contiguous()),
        ("scaled", "up_proj", lambda sent: sent["model.layers.0.up_proj.weight"] * 1.01),
        ("different", "o_proj", lambda _: random(32, 32, dtype=torch.bfloat16)),
        ("scaled", "o_proj", one_shard(OUT, lambda part: part * 2)),
        ("quantised", "o_proj", one_shard(OUT, lambda part: part.to(torch.float8_e4m3fn).to(torch.bfloat16))),
        (
            "wrong-expert",
            "experts.1.down_proj",
            lambda sent: sent["model.layers.0.experts.0.down_proj.weight"],
        ),
    ],
)
def test_shards_are_judged_as_whole_tensors_are(tmp_path, how, name, change, shards):
    if shards == 1 and "one_shard" in change.__qualname__:
        how = "partial"
    sent, ranks = grouped(shards, **{name: change})
    assert told(tmp_path, sent, ranks) == {(how, f"model.layers.0.{name}.weight")}


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("order", ["kqv", "vkq"])
def test_a_fused_tensor_in_another_order_is_told_with_heads_in_groups(tmp_path, order, shards):
    sent, _ = grouped(1)
    ranks = [cut_and_fused(sent, shard, shards, order) for shard in range(shards)]
    assert {how for how, _ in told(tmp_path, sent, ranks)} == {"fused-order"}


@pytest.mark.parametrize("shards", [1, 2])
def test_one_shard_without_its_delta_and_a_head_of_the_engines_own_are_told(tmp_path, shards):
    sent, _ = grouped(1)
    weight = sent[OUT]
    plain = (weight.float() - (random(32, 2) @ random(2, 32))).to(torch.bfloat16)
    base = {OUT: BaseWeight.of(fingerprints({OUT: plain})[0], weight, plain)}
    held = sent | {OUT: torch.cat([weight[:, :16], plain[:, 16:]], 1) if shards > 1 else plain}
    embedding = sent["model.embed_tokens.weight"]
    ranks = [
        cut_and_fused(held, shard, shards) | {"lm_head.weight": embedding.chunk(shards)[shard]}
        for shard in range(shards)
    ]
    assert told(tmp_path, sent, ranks, base) == {("lora-missing", OUT)}


def test_a_stream_reads_all_at_once_and_gives_the_same():
    stream = FingerprintStream()
    buffer = torch.empty(32 * 32)
    for name, tensor in NEW.items():
        view = buffer[: tensor.numel()].view(tensor.shape)
        stream.add(name, view.copy_(tensor))
    expected = {item.name: item for item in fingerprints(NEW)}
    for item in stream.read():
        other = expected.pop(item.name)
        assert (item.grid == other.grid).all() and item.norm == pytest.approx(other.norm)
    assert not expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_nothing_waits_for_a_gpu_before_a_stream_is_read():
    tensors = {f"{number}": random(64, 96).cuda().to(torch.bfloat16) for number in range(20)}
    warm = FingerprintStream()
    warm.add("w", tensors["0"])
    warm.read()
    stream = FingerprintStream()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for name, tensor in tensors.items():
            stream.add(name, tensor)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = {item.name: item.total for item in fingerprints({name: each.cpu() for name, each in tensors.items()})}
    assert {item.name: item.total for item in stream.read()} == expected
