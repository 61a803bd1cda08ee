"""A server tells what it holds, in the form a trainer records beside what it sent."""

import asyncio
import json

import torch
from safetensors.torch import save

from characters import Characters
from rldbg.inference.application import Service, build_application
from rldbg.inference.embedded.loading import embed
from rldbg.trainer import CharacterTokenizer, ModelSettings, build_model
from rldbg.weights import Fingerprint, WeightSnapshot, faults_of, fingerprints
from served_application import client_of

NAME = "model.layers.1.mlp.up_proj.weight"


def test_what_was_sent_is_what_the_server_holds_until_a_tensor_changes_on_the_way():
    torch.set_num_threads(1)
    model = build_model(ModelSettings(), vocabulary_size=CharacterTokenizer.vocabulary_size, seed=0).to_transformers()
    sent = {name: tensor * 1.01 for name, tensor in model.state_dict().items()}

    async def held_after(client, weights, version):
        headers = {"Content-Type": "application/octet-stream"}
        path = f"/update_weights_from_tensor?weight_version={version}"
        answer = await client.post(path, content=save(weights), headers=headers)
        assert answer.status_code == 200, answer.text
        told = json.loads((await client.get("/weight_fingerprints")).content)
        assert told["version"] == str(version)
        return [Fingerprint.from_dict(item) for item in told["tensors"]]

    async def play():
        backend = embed(model, text=Characters(), name="tiny", device="cpu")
        async with client_of(build_application(backend, Service(replicas=list))) as client:
            return await held_after(client, sent, 1), await held_after(client, sent | {NAME: sent[NAME] * 0}, 2)

    right, wrong = asyncio.run(play())
    sides = [WeightSnapshot("sent", version, 0, fingerprints(sent), {}) for version in (1, 2)]
    sides += [WeightSnapshot("held", 1, 0, right, {}), WeightSnapshot("held", 2, 0, wrong, {})]
    (fault,) = faults_of(sides)
    assert (fault.version, fault.name, fault.how) == (2, NAME, "zero")
