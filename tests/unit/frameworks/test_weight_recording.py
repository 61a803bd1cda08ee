"""Weights on both sides by stubs of the shape of verl 0.9.1, TRL 1.16.0, vLLM 0.32.0 and SGLang 0.5.23."""

import asyncio
import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

from rldbg.frameworks import plan_for, recorded
from rldbg.frameworks.engine_weights import held_pieces
from rldbg.frameworks.weight_recording import SentWeights
from rldbg.recording import open as open_recording
from rldbg.weights import faults_of, fingerprints, fingerprints_of_pieces, snapshot_fields, snapshots_of

torch = pytest.importorskip("torch")
HEADS, KV_HEADS, WIDE, HIDDEN, INNER, VOCAB = 4, 2, 8, 32, 64, 50


class QKVParallelLinear(torch.nn.Module):
    def __init__(self, rank, shards):
        super().__init__()
        self.tp_rank, self.tp_size, self.head_size = rank, shards, WIDE
        self.total_num_heads, self.total_num_kv_heads = HEADS, KV_HEADS
        self.num_heads, self.num_kv_heads = HEADS // shards, max(1, KV_HEADS // shards)
        self.num_kv_head_replicas = max(1, shards // KV_HEADS)
        self.weight = torch.nn.Parameter(torch.zeros((self.num_heads + 2 * self.num_kv_heads) * WIDE, HIDDEN))


class MergedColumnParallelLinear(torch.nn.Module):
    def __init__(self, rank, shards):
        super().__init__()
        self.tp_rank, self.tp_size, self.output_sizes = rank, shards, [INNER, INNER]
        self.weight = torch.nn.Parameter(torch.zeros(2 * INNER // shards, HIDDEN))


class RowParallelLinear(torch.nn.Module):
    def __init__(self, rank, shards):
        super().__init__()
        self.tp_rank, self.tp_size = rank, shards
        self.weight = torch.nn.Parameter(torch.zeros(HIDDEN, INNER // shards))


class VocabParallelEmbedding(torch.nn.Module):
    def __init__(self, rank, shards):
        super().__init__()
        padded = 64 // shards
        self.org_vocab_size = VOCAB
        first, last = (min(VOCAB, edge) for edge in (rank * padded, (rank + 1) * padded))
        self.shard_indices = SimpleNamespace(org_vocab_start_index=first, org_vocab_end_index=last)
        self.weight = torch.nn.Parameter(torch.zeros(padded, HIDDEN))


class EngineModel(torch.nn.Module):
    packed_modules_mapping: ClassVar = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}

    def __init__(self, rank=0, shards=1):
        super().__init__()
        self.tp = rank, shards
        self.embed_tokens = VocabParallelEmbedding(rank, shards)
        self.layer = torch.nn.Module()
        self.layer.qkv_proj = QKVParallelLinear(rank, shards)
        self.layer.gate_up_proj = MergedColumnParallelLinear(rank, shards)
        self.layer.down_proj = RowParallelLinear(rank, shards)
        self.norm = torch.nn.LayerNorm(HIDDEN, bias=False)

    def load(self, sent):
        """As weight loaders do it: each rank copies its part of each tensor."""
        rank, shards = self.tp
        qkv = self.layer.qkv_proj
        own, kv_rank = qkv.num_kv_heads * WIDE, rank // qkv.num_kv_head_replicas
        q = sent["layer.q_proj.weight"].chunk(shards)[rank]
        k, v = (sent[f"layer.{name}_proj.weight"][kv_rank * own : (kv_rank + 1) * own] for name in "kv")
        gate, up = (sent[f"layer.{name}_proj.weight"].chunk(shards)[rank] for name in ("gate", "up"))
        first, last = vars(self.embed_tokens.shard_indices).values()
        with torch.no_grad():
            qkv.weight.copy_(torch.cat([q, k, v]))
            self.layer.gate_up_proj.weight.copy_(torch.cat([gate, up]))
            self.layer.down_proj.weight.copy_(sent["layer.down_proj.weight"].chunk(shards, 1)[rank])
            self.embed_tokens.weight[: last - first] = sent["embed_tokens.weight"][first:last]
            self.norm.weight.copy_(sent["norm.weight"])


def trainer_weights(seed=0):
    torch.manual_seed(seed)
    shapes = {
        "embed_tokens.weight": (VOCAB, HIDDEN), "layer.q_proj.weight": (HEADS * WIDE, HIDDEN),
        "layer.k_proj.weight": (KV_HEADS * WIDE, HIDDEN), "layer.v_proj.weight": (KV_HEADS * WIDE, HIDDEN),
        "layer.gate_proj.weight": (INNER, HIDDEN), "layer.up_proj.weight": (INNER, HIDDEN),
        "layer.down_proj.weight": (HIDDEN, INNER), "norm.weight": (HIDDEN,),
    }  # fmt: skip
    return {name: torch.randn(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_the_pieces_of_all_shards_add_up_to_what_was_sent(shards):
    sent = trainer_weights()
    totals = {}
    for rank in range(shards):
        model = EngineModel(rank, shards)
        model.load(sent)
        for item in fingerprints_of_pieces(held_pieces(model)):
            totals.setdefault(item.name, {})[item.box] = item.total
    wrapped = {name: sum(boxes.values()) % 2**64 for name, boxes in totals.items()}
    assert wrapped == {item.name: item.total % 2**64 for item in fingerprints(sent)}


def test_experts_have_the_names_of_the_trainer():
    module = torch.nn.Module()
    module.moe_parallel_config = SimpleNamespace(tp_rank=1, tp_size=2, ep_rank=1)
    module.w13_weight = torch.nn.Parameter(torch.randn(2, 8, 4))
    module.w2_weight = torch.nn.Parameter(torch.randn(2, 4, 4))
    model = torch.nn.ModuleDict({"experts": module})
    found = {name: (tuple(piece.shape), box.offset, box.global_shape) for name, piece, box in held_pieces(model)}
    assert found["experts.3.up_proj.weight"] == ((4, 4), (4, 0), (8, 4))
    assert found["experts.2.down_proj.weight"] == ((4, 4), (0, 4), (4, 8))


def hooked(folder, name, **members):
    module = ModuleType(name)
    vars(module).update(members)
    hooks = recorded.ProcessHooks(plan_for(folder))
    hooks.hook(module)
    return hooks


@pytest.mark.parametrize("engine_on", ["cpu", "gpu", "server"])
def test_verl_passes_the_same_tensors_on_and_records_them(tmp_path, monkeypatch, engine_on):
    """On an accelerator verl sends what it has in the engine's dtype; `--laptop` asks its server for that."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: engine_on == "gpu")
    if engine_on == "server":
        rollout = ModuleType("rldbg.frameworks.verl.cpu_rollout")  # imports verl
        rollout.post = lambda address, path, body: {"here:1/server_info": {"dtype": "float64"}}[address + path]
        monkeypatch.setitem(sys.modules, rollout.__name__, rollout)
        monkeypatch.setenv("RLDBG_LAPTOP_SERVER", "here:1")

    class FSDPEngine:
        weights = trainer_weights()

        def get_per_tensor_param(self, layered_summon=False, base_sync_done=False):
            return ((name, tensor) for name, tensor in self.weights.items()), None

    class ActorRolloutRefWorker:
        config = SimpleNamespace(rollout={"dtype": "bfloat16"})

        async def update_weights(self, global_steps=None, mode="auto"):
            pairs, _ = FSDPEngine().get_per_tensor_param(base_sync_done=True)
            return dict(pairs)

    hooks = recorded.ProcessHooks(plan_for(tmp_path))
    engine = ModuleType("verl.workers.engine.fsdp.transformer_impl")
    workers = ModuleType("verl.workers.engine_workers")
    engine.FSDPEngine, workers.ActorRolloutRefWorker = FSDPEngine, ActorRolloutRefWorker
    hooks.hook(engine)
    hooks.hook(workers)
    got = asyncio.run(ActorRolloutRefWorker().update_weights(global_steps=7))
    assert all(got[name] is FSDPEngine.weights[name] for name in FSDPEngine.weights)
    hooks.recorded.recorder().close()
    (sent,) = snapshots_of(open_recording(tmp_path))
    assert (sent.side, sent.version) == ("sent", 7)
    dtype = {"cpu": torch.float32, "gpu": torch.bfloat16, "server": torch.float64}[engine_on]
    expected = fingerprints({name: tensor.to(dtype) for name, tensor in FSDPEngine.weights.items()})
    assert {item.name: item.total for item in sent.tensors} == {item.name: item.total for item in expected}


class Generation:
    """TRL's VLLMGeneration in server mode: the first sync walks over the parameters twice."""

    accelerator = SimpleNamespace(is_main_process=True)

    def __init__(self, weights, engine):
        self.weights, self.engine, self.known = weights, engine, None

    def _iter_named_params(self):
        yield from self.weights.items()

    def sync_weights(self):
        self.known = self.known or [name for name, _ in self._iter_named_params()]
        self.engine.receive(self._iter_named_params())


class AutoWeightsLoader:
    def __init__(self, model):
        self.model = model

    def load_weights(self, weights, *, mapper=None):
        self.model.load(dict(weights))


class Worker:
    """vLLM's: one tensor may come at a time, a batch runs when all have."""

    def __init__(self):
        self.model_runner = SimpleNamespace(get_model=lambda: self.model)

    def load_model(self):
        self.model = EngineModel()
        AutoWeightsLoader(self.model).load_weights(trainer_weights(9))

    def receive(self, pairs):
        AutoWeightsLoader(self.model).load_weights(pairs)

    def execute_model(self, scheduler_output):
        return "batch"


def synced(folder, spoil=None, kinds=()):
    """TRL sends twice to a vLLM in the same process, which generates after each; returns the recording."""
    hooks = recorded.ProcessHooks(plan_for(folder, kinds))
    copies = {each.__name__: type(each.__name__, (), dict(each.__dict__)) for each in (Generation, Worker)}
    for name, member in (
        ("trl.generation.vllm_generation", ("VLLMGeneration", copies["Generation"])),
        ("vllm.v1.worker.gpu_worker", ("Worker", copies["Worker"])),
        ("vllm.model_executor.models.utils", ("AutoWeightsLoader", AutoWeightsLoader)),
    ):
        module = ModuleType(name)
        setattr(module, *member)
        hooks.hook(module)
    worker = copies["Worker"]()
    worker.load_model()
    worker.execute_model("warm up")
    for seed in range(2):
        generation = copies["Generation"](trainer_weights(seed), worker)
        generation.sync_weights()
        if spoil is not None and seed:
            spoil(worker.model)
        assert worker.execute_model("batch") == worker.execute_model("batch") == "batch"
        hooks._handlers["trl"]._version += 1
    hooks.recorded.recorder().close()
    return open_recording(folder)


@pytest.fixture(autouse=True)
def unhooked():
    original = AutoWeightsLoader.load_weights
    yield
    AutoWeightsLoader.load_weights = original


def test_what_vllm_holds_is_compared_with_what_trl_sent(tmp_path):
    snapshots = list(snapshots_of(synced(tmp_path)))
    assert [(item.side, item.version) for item in snapshots] == [("sent", 0), ("sent", 1), ("held", 0), ("held", 1)]
    assert list(faults_of(snapshots)) == []


def test_a_tensor_that_was_spoiled_on_the_way_is_named(tmp_path):
    def spoil(model):
        with torch.no_grad():
            model.layer.gate_up_proj.weight[INNER:] = 0

    (fault,) = faults_of(snapshots_of(synced(tmp_path, spoil)))
    assert (fault.version, fault.name, fault.how) == (1, "layer.up_proj.weight", "zero")


def test_sglang_is_looked_at_when_all_buckets_have_come(tmp_path):
    model = EngineModel()

    class WeightUpdater:
        def get_model_runner(self):
            return SimpleNamespace(model=model, is_draft_worker=False)

        def update_weights_from_tensor(self, named_tensors, load_format=None):
            model.load(trainer_weights())
            return True, "Success"

    class Scheduler:
        def run_batch(self, batch):
            return batch

    name = "sglang.srt.model_executor.model_runner_components.weight_updater"
    hooks = hooked(tmp_path, name, WeightUpdater=WeightUpdater)
    scheduler = ModuleType("sglang.srt.managers.scheduler")
    scheduler.Scheduler = Scheduler
    hooks.hook(scheduler)
    Scheduler().run_batch(0)
    for _ in range(3):
        assert WeightUpdater().update_weights_from_tensor([]) == (True, "Success")
    assert [Scheduler().run_batch(number) for number in (1, 2)] == [1, 2]
    hooks.recorded.recorder().close()
    (held,) = open_recording(tmp_path).records("weights")
    assert held.fields["side"] == "held"
    assert "layer.k_proj.weight" in held.fields["names"]


def test_a_tensor_that_cannot_be_looked_at_changes_nothing(tmp_path):
    class FSDPEngine:
        def get_per_tensor_param(self):
            return iter([("odd", object())]), None

    hooks = hooked(tmp_path, "verl.workers.engine.fsdp.transformer_impl", FSDPEngine=FSDPEngine)
    handlers = hooks._handlers["verl"]
    handlers._sent = SentWeights(hooks.recorded, 0)
    pairs, _ = FSDPEngine().get_per_tensor_param()
    assert [name for name, _ in pairs] == ["odd"]
    with pytest.raises(ValueError, match="odd"):
        handlers._sent.record()
    hooks.recorded.recorder().close()


def test_values_are_recorded_where_they_are_named_and_say_what_differs(tmp_path):
    def spoil(model):
        with torch.no_grad():
            model.layer.down_proj.weight[3, 5] += 0.25

    recording = synced(tmp_path / "named", spoil, ("weights", "weight_values"))
    (fault,) = faults_of(snapshots_of(recording))
    assert (fault.version, fault.name, fault.how) == (1, "layer.down_proj.weight", "partial")
    assert f"(1 of {HIDDEN * INNER} elements differ, by up to 0.25)" in fault.text
    assert recording.verify() == []
    for kinds in ((), ("weights",)):
        unnamed = synced(tmp_path / f"{len(kinds)}", spoil, kinds)
        assert "weight_values" not in unnamed.kinds()


class LoraLinear(torch.nn.Module):
    """As peft 0.21.2's."""

    active_adapters: ClassVar = ["default"]

    def __init__(self, weight):
        super().__init__()
        self.base_layer = torch.nn.Linear(*reversed(weight.shape), bias=False)
        self.base_layer.weight.data = weight.clone()
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(weight.shape[1], 2, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(2, weight.shape[0], bias=False)})

    def get_delta_weight(self, adapter):
        return self.lora_B[adapter].weight @ self.lora_A[adapter].weight * 2


@pytest.mark.parametrize("is_merged", [True, False])
def test_weights_without_the_delta_of_an_adapter_are_told(tmp_path, is_merged):
    """An engine that holds the base, and a trainer that sends it."""
    plain = trainer_weights()
    name = "layer.down_proj.weight"
    model = torch.nn.Module()
    model.peft_config = {"default": None}
    model.base_model = torch.nn.Module()
    model.base_model.model = torch.nn.Module()
    model.base_model.model.layer = torch.nn.Module()
    model.base_model.model.layer.down_proj = adapted = LoraLinear(plain[name])
    hooks = recorded.ProcessHooks(plan_for(tmp_path))
    sent = SentWeights(hooks.recorded, 0)
    sent.adapted(model)
    delta = adapted.get_delta_weight("default").detach() if is_merged else 0
    merged = plain | {name: plain[name] + delta}
    assert [pair[0] for pair in sent.passing(merged.items())] == list(merged)
    sent.record()
    held = snapshot_fields("held", fingerprints(plain))
    hooks.recorded.recorder().record("weights", step=0, micro=1, **held)
    hooks.recorded.recorder().close()
    (fault,) = faults_of(snapshots_of(open_recording(tmp_path)))
    assert (fault.how, fault.name) == ("lora-missing", name)
    assert ("not merged" in fault.text) == (not is_merged)
