"""Weights as slime and verl send them to SGLang: pickled, in flattened buckets, and broadcast through a group."""

import asyncio
import base64
import io
import json
import pickle
import socket
import sys
import threading
import types
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing
from torch.distributed import distributed_c10d

from rldbg.inference.application import build_application
from rldbg.inference.embedded.loading import load_backend
from rldbg.inference.request_error import RequestError
from rldbg.inference.serialized_tensors import named_tensors
from rldbg.trainer import tiny_folder
from served_application import client_of

NAME = "model.embed_tokens.weight"


@dataclass
class FlattenedTensorMetadata:
    name: str
    shape: torch.Size
    dtype: torch.dtype
    start_idx: int
    end_idx: int
    numel: int


@dataclass
class LocalSerializedTensor:
    values: list


@pytest.fixture
def sglang(monkeypatch):
    """The modules whose classes SGLang's clients pickle."""
    for name, kind in (
        ("weight_sync.tensor_bucket", FlattenedTensorMetadata),
        ("model_executor.model_runner", LocalSerializedTensor),
    ):
        path = f"sglang.srt.{name}"
        for end in [place for place, letter in enumerate(path) if letter == "."] + [len(path)]:
            monkeypatch.setitem(sys.modules, path[:end], types.ModuleType(path[:end]))
        setattr(sys.modules[path], kind.__name__, kind)
        monkeypatch.setattr(kind, "__module__", path)


@pytest.fixture(params=["bytes", "shared memory"])
def serialize(request):
    """By the two ways in which CPU tensors can be read in another process."""

    def written(content):
        buffer = io.BytesIO()
        (pickle.Pickler if request.param == "bytes" else ForkingPickler)(buffer).dump(content)
        return buffer.getvalue()

    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    yield written
    torch.multiprocessing.set_sharing_strategy(before)


def text(content):
    return base64.b64encode(content).decode()


def bucket(tensors):
    parts, start = [], 0
    for name, tensor in tensors:
        size = tensor.numel() * tensor.dtype.itemsize
        parts.append(FlattenedTensorMetadata(name, tensor.shape, tensor.dtype, start, start + size, size))
        start += size
    flat = [tensor.flatten().view(torch.uint8) for _, tensor in tensors]
    return {"flattened_tensor": torch.cat(flat) if flat else torch.empty(0, dtype=torch.uint8), "metadata": parts}


def test_buckets_of_several_dtypes_are_taken_apart(sglang, serialize):
    given = [("a", torch.arange(6.0).reshape(2, 3)), ("b", torch.ones(3, dtype=torch.bfloat16)), ("c", torch.tensor(7))]
    read = named_tensors([text(serialize(bucket(given)))], "flattened_bucket")
    assert list(read) == ["a", "b", "c"]
    for name, tensor in given:
        assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor)


def test_named_tensors_keep_shape_strides_and_values(sglang, serialize):
    turned = torch.arange(6.0).reshape(2, 3).t()
    wrapped = LocalSerializedTensor([serialize(torch.nn.Parameter(turned[1:]))])
    read = named_tensors([text(serialize([("a", turned), ("b", wrapped)]))], None)
    assert torch.equal(read["a"], turned) and torch.equal(read["b"], turned[1:])


class Evil:
    def __reduce__(self):
        return print, ("this must not run",)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (pickle.dumps([("a", Evil())]), "builtins.print"),
        (pickle.dumps([("a", torch.ones(2))])[:-20], "cannot be read"),
        (b"cos\nsystem\n(S'true'\ntR.", "os.system"),
        (b"ctorch\nload\n.", "torch.load"),
        (b"ctorch.multiprocessing.reductions\nrebuild_storage_filename\n(N(c__main__\nx\n", "__main__.x"),
        (pickle.dumps([("a", 1)]), "does not hold"),
        (pickle.dumps(5), "does not hold"),
    ],
)
def test_nothing_but_tensors_is_read(content, told, capsys):
    with pytest.raises(RequestError) as error:
        named_tensors([text(content)], None)
    assert told in error.value.message
    assert capsys.readouterr().out == ""


def call(function, *arguments):
    """A pickle that calls a function of torch with what is given."""
    name = "torch.multiprocessing.reductions\n" + function
    return f"c{name}\n".encode() + pickle.dumps(arguments, protocol=3)[2:-1] + b"R."


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (call("rebuild_cuda_tensor"), "CUDA memory of the sender"),
        (call("rebuild_storage_fd"), 'set_sharing_strategy("file_system")'),
        (call("rebuild_storage_filename", None, b"/tmp/x/manager.sock", b"/etc/passwd", 8), "not torch's"),
        (call("rebuild_storage_filename", None, b"/tmp/torch-shm-dir-x/other", b"/torch_1_2_3", 8), "not torch's"),
    ],
)
def test_memory_that_is_not_readable_here_is_an_exact_error(content, told):
    with pytest.raises(RequestError) as error:
        named_tensors([text(content)], None)
    assert told in error.value.message


def test_one_part_per_rank_of_a_larger_engine_is_refused():
    with pytest.raises(RequestError) as error:
        named_tensors(["", ""], None)
    assert "2 parts" in error.value.message and "one rank" in error.value.message


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


def served(model, scene):
    async def play():
        application = build_application(load_backend(model, name="tiny", device="cpu"))
        async with client_of(application) as client:
            return await scene(client)

    return asyncio.run(play())


async def weight(client, name):
    held = (await client.get("/weight_fingerprints")).json()["tensors"]
    return json.dumps(next(item for item in held if item["name"] == name), sort_keys=True)


async def token_versions(client):
    sampling = {"max_new_tokens": 2, "ignore_eos": True}
    answer = await client.post("/generate", json={"input_ids": [5, 6], "sampling_params": sampling})
    meta = answer.json()["meta_info"]
    return meta["weight_version"], meta["token_versions"]


def zeros(model):
    from safetensors.torch import load_file

    [file] = model.glob("*.safetensors")
    return torch.zeros_like(load_file(file)[NAME])


def test_slimes_update_from_tensors_changes_the_weights_and_the_version_of_each_token(model, sglang, serialize):
    async def scene(client):
        before = await weight(client, NAME)
        sent = {"load_format": "flattened_bucket", "flush_cache": False, "weight_version": "3"}
        for content in (bucket([(NAME, zeros(model))]), bucket([])):
            parts = [text(serialize(content))]
            answer = await client.post("/update_weights_from_tensor", json=sent | {"serialized_named_tensors": parts})
            assert answer.status_code == 200 and answer.json()["success"], answer.text
        assert await weight(client, NAME) != before
        label, versions = await token_versions(client)
        assert label == "3" and versions == [3, 3]
        wrong = [text(serialize(bucket([(NAME, torch.ones(2))])))]
        answer = await client.post("/update_weights_from_tensor", json=sent | {"serialized_named_tensors": wrong})
        assert answer.status_code == 400 and NAME in answer.text

    served(model, scene)


class Trainer(threading.Thread):
    """Rank 0 of a group that is made as slime's trainer makes it, broadcasting what it is told."""

    def __init__(self, port, name, tensors):
        super().__init__(daemon=True)
        self._place = (port, name)
        self._tensors = tensors

    def run(self):
        port, name = self._place
        wait = timedelta(seconds=120)
        store, rank, size = next(distributed_c10d.rendezvous(f"tcp://127.0.0.1:{port}", 0, 2, timeout=wait))
        store = distributed_c10d.PrefixStore(name, store)
        backend = distributed_c10d.Backend("gloo")
        group, _ = distributed_c10d._new_process_group_helper(
            size, rank, [], backend, store, group_name=name, backend_options=None, timeout=wait
        )
        for tensor in self._tensors:
            group.broadcast(tensor, 0).wait()


@pytest.mark.parametrize("in_one_bucket", [False, True])
def test_slimes_broadcast_through_a_group_changes_the_weights(model, in_one_bucket):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    name, new = f"slime-pp_{in_one_bucket}", zeros(model)
    trainer = Trainer(port, name, [new.flatten().view(torch.uint8) if in_one_bucket else new])

    async def scene(client):
        before = await weight(client, NAME)
        trainer.start()
        joined = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2}
        answer = await client.post("/init_weights_update_group", json=joined | {"group_name": name, "backend": "gloo"})
        assert answer.status_code == 200, answer.text
        sent = {"names": [NAME], "dtypes": ["float32"], "shapes": [list(new.shape)], "group_name": name}
        sent |= {"flush_cache": False, "weight_version": "4"}
        sent |= {"load_format": "flattened_bucket"} if in_one_bucket else {}
        answer = await client.post("/update_weights_from_distributed", json=sent)
        assert answer.status_code == 200 and answer.json()["success"], answer.text
        assert await weight(client, NAME) != before
        assert await token_versions(client) == ("4", [4, 4])
        left = await client.post("/destroy_weights_update_group", json={"group_name": name})
        assert left.json() == {"success": True, "message": "left the group"}
        answer = await client.post("/update_weights_from_distributed", json=sent)
        assert answer.status_code == 400 and "POST /init_weights_update_group first" in answer.text

    try:
        served(model, scene)
    finally:
        trainer.join(60)


def test_what_cannot_be_done_says_what_to_do(model):
    group = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2, "backend": "nccl"}

    async def scene(client):
        for path, body, told in (
            ("/init_weights_update_group", group, "gloo groups only"),
            ("/init_weights_update_group", group | {"backend": "gloo", "rank_offset": 2}, "rank_offset is 2"),
            ("/collective_rpc", {"method": "update_weights_from_ipc"}, "POST the weights as a safetensors body"),
            ("/update_weights_from_ipc", {"zmq_handles": {}}, "/update_weights_from_disk"),
            ("/load_lora_adapter_from_tensors", {"lora_name": "x"}, "merge them"),
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == 400 and told in answer.text, (path, answer.text)

    served(model, scene)
