"""Run by the tests in an environment that has the nex-weaver package and not rldbg: drives a service, prints JSON.

With a second argument it says "ready" once it has trained, waits for a line, and reports how the next request fails.
"""

import json
import os
import sys
import time

os.environ["WEAVER_OPERATION_POLL_INTERVAL"] = "0.02"
os.environ["WEAVER_OPERATION_POLL_TRANSIENT_RETRIES"] = "0"

import torch
from client_errors import error_of
from weaver import ServiceClient
from weaver.types import AdamParams, Datum, LoraConfig, ModelInput, SamplingParams

PROMPT, TOKENS = [5, 12, 6, 16], [5, 12, 6, 16, 11, 1]


def supervised():
    inputs = {"target_tokens": TOKENS[1:], "weights": [0.0, 0.0, 0.0, 1.0, 1.0]}
    return Datum(model_input=ModelInput.from_ints(TOKENS[:-1]), loss_fn_inputs=inputs)


def reinforced(sequence, advantage, run_id=0):
    tokens, blank = [*PROMPT, *sequence["tokens"]], [0.0] * (len(PROMPT) - 1)
    inputs = {
        "target_tokens": tokens[1:],
        "logprobs": blank + sequence["logprobs"],
        "advantages": blank + [advantage] * len(sequence["tokens"]),
        "loss_mask": blank + [1.0] * len(sequence["tokens"]),
    }
    metadata = {"group_id": "g7", "run_id": run_id}
    return Datum(model_input=ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs, metadata=metadata)


def train(client, steps=10):
    losses = []
    for _ in range(steps):
        forward_backward = client.forward_backward([supervised(), supervised()], "cross_entropy", wait=False)
        step = client.optim_step(AdamParams(learning_rate=0.01), wait=False)
        losses.append(forward_backward.result()["metrics"]["loss"])
        step.result()
    return losses


def connect(url, **settings):
    # The heartbeat thread sleeps through its interval before it ends, so a short one keeps closing short.
    service = ServiceClient(base_url=url, api_key="sk-local", heartbeat_interval=0.2, **settings)
    service.connect()
    return service


def custom_loss(_data, logprobs):
    return -(logprobs[0] * torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0])).sum(), {"custom": 1.0}


def main(url):
    service = connect(url)
    client = service.create_model(base_model="tiny")
    report = {"models": service.list_supported_models(), "losses": train(client)}
    report["decoded"] = client.tokenizer.decode(TOKENS[:-1])
    sampler = client.save_weights_and_get_sampling_client()
    params = SamplingParams(max_tokens=3, seed=7)
    prompt = ModelInput.from_ints(PROMPT)
    answer = sampler.sample(prompt=prompt, num_samples=4, sampling_params=params, include_prompt_logprobs=True)
    first = answer["sequences"][0]
    report["sampled"] = [sequence["tokens"] for sequence in answer["sequences"]]
    report["text"] = first["text"]
    report["sample_logprobs"] = first["logprobs"]
    report["scored_logprobs"] = sampler.compute_logprobs(prompt=ModelInput.from_ints([*PROMPT, *first["tokens"]]))
    for name in ("importance_sampling", "ppo"):
        result = client.forward_backward([reinforced(first, 1.0), reinforced(first, -0.5, 1)], name)
        report[name] = result["metrics"]
    report["outputs"] = len(result["loss_fn_outputs"])
    report["custom"] = float(client.forward_backward_custom([supervised()], custom_loss)["loss"])
    report["grad_norm"] = client.optim_step(AdamParams(learning_rate=0.0, weight_decay=0.0))["metrics"]["grad_norm"]

    checkpoint = client.save_state(name="kept", checkpoint_type="weight_and_optimizer")
    report["checkpoints"] = [item.path == checkpoint.path for item in client.list_checkpoints()]
    before = client.forward_backward([supervised()], "cross_entropy")["metrics"]["loss"]
    train(client, 2)
    client.load_state_with_optimizer(checkpoint)
    report["restored"] = [before, client.forward_backward([supervised()], "cross_entropy")["metrics"]["loss"]]

    binary = connect(url, tensor_transport="http-binary")
    other = binary.create_model(base_model="tiny")
    report["binary_losses"] = train(other)
    whole = binary.create_model(base_model="tiny", training_mode="full_ft")
    small = binary.create_model(base_model="tiny", training_mode="lora", lora_config=LoraConfig(rank=2, seed=3))
    report["whole_losses"], report["small_losses"] = train(whole), train(small)
    with whole.save_weights_and_get_sampling_client().paused():  # the client refuses this with adapters
        pass
    report["unknown_loss"] = error_of(lambda: client.forward_backward([supervised()], "nope"))
    report["no_snapshot"] = error_of(lambda: client.load_state("weaver://a/checkpoints/b"))
    report["after_errors"] = client.optim_step(AdamParams())["metrics"]["step"]
    service.close()
    binary.close()
    print(json.dumps(report))


def wait_for_death(url):
    service = connect(url)
    client = service.create_model(base_model="tiny")
    train(client, 1)
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.monotonic()
    error = error_of(lambda: client.forward_backward([supervised()], "cross_entropy"))
    print(json.dumps({"error": error, "seconds": time.monotonic() - started}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    wait_for_death(sys.argv[1]) if len(sys.argv) > 2 else main(sys.argv[1])
