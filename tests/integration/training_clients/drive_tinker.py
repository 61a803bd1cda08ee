"""Run by the tests in an environment that has the tinker package and not rldbg: drives a service, prints one JSON."""

import json
import os
import sys

import numpy as np
import tinker
from client_errors import error_of
from tinker import types

PROMPT, TOKENS = [5, 12, 6, 16], [5, 12, 6, 16, 11, 1]


def supervised(weights=(0.0, 0.0, 0.0, 1.0, 1.0)):
    inputs = {"target_tokens": TOKENS[1:], "weights": list(weights)}
    return types.Datum(model_input=types.ModelInput.from_ints(TOKENS[:-1]), loss_fn_inputs=inputs)


def reinforced(prompt, sequence, advantage):
    tokens = [*prompt, *sequence.tokens]
    blank = [0.0] * (len(prompt) - 1)
    inputs = {
        "target_tokens": tokens[1:],
        "logprobs": blank + list(sequence.logprobs),
        "advantages": blank + [advantage] * len(sequence.tokens),
    }
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def train(client):
    """Both requests are sent before either result is read, as the client's users do."""
    losses = []
    for _ in range(10):
        forward_backward = client.forward_backward([supervised(), supervised()], "cross_entropy")
        step = client.optim_step(types.AdamParams(learning_rate=0.01))
        losses.append(forward_backward.result().metrics["loss:sum"])
        step.result()
    return losses


def main(url):
    service = tinker.ServiceClient(base_url=url, api_key="tml-local")
    client = service.create_lora_training_client(base_model="tiny", rank=8, seed=1)
    rest = tinker.RestClient(base_url=url, api_key="tml-local")
    report = {"models": [item.model_name for item in rest.get_server_capabilities().result().supported_models]}
    report["losses"] = train(client)
    report["tokenized"] = client.get_tokenizer().encode("3+4=")

    sampler = client.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_ints(PROMPT)
    answer = sampler.sample(
        prompt, 4, types.SamplingParams(max_tokens=3, seed=7), include_prompt_logprobs=True, topk_sample_logprobs=2
    ).result()
    first = answer.sequences[0]
    report["sampled"] = [list(sequence.tokens) for sequence in answer.sequences]
    report["stop_reason"] = first.stop_reason
    report["sample_logprobs"] = list(first.logprobs)
    report["scored_logprobs"] = sampler.compute_logprobs(types.ModelInput.from_ints([*PROMPT, *first.tokens])).result()
    report["prompt_logprobs"] = answer.prompt_logprobs

    on_policy = client.forward_backward([reinforced(PROMPT, first, 1.0)], "importance_sampling").result()
    report["importance_sampling"] = on_policy.metrics
    report["returned_logprobs"] = on_policy.loss_fn_outputs[0]["logprobs"].data
    clipped = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
    for name, config in (("ppo", clipped), ("cispo", None), ("dro", None)):
        report[name] = client.forward_backward([reinforced(PROMPT, first, 1.0)], name, config).result().metrics
    sequence = reinforced(PROMPT, first, 1.0)
    marked = {"sequence_ratio_mask": [0.0] * (len(PROMPT) - 1) + [1.0] * len(first.tokens)}
    sequence = types.Datum(model_input=sequence.model_input, loss_fn_inputs=dict(sequence.loss_fn_inputs) | marked)
    report["gspo"] = client.forward_backward([sequence], "gspo", clipped).result().metrics
    report["grad_norm"] = client.optim_step(types.AdamParams(learning_rate=0.0)).result().metrics["grad_norm"]

    # More datums than one request holds: the client sends the later parts first.
    many = [supervised(np.asarray([0, 0, 0, 1, 1]) * (number + 1) / 3000) for number in range(3000)]
    report["many"] = client.forward_backward(many, "cross_entropy").result().metrics
    report["one"] = client.forward_backward([supervised()], "cross_entropy").result().metrics

    saved = client.save_state("kept").result()
    again = service.create_training_client_from_state_with_optimizer(saved.path)
    report["restored"] = again.forward_backward([supervised()], "cross_entropy").result().metrics
    named = client.save_weights_for_sampler("named").result()
    report["named"] = list(
        service.create_sampling_client(model_path=named.path)
        .sample(prompt, 1, types.SamplingParams(max_tokens=3, temperature=0))
        .result()
        .sequences[0]
        .tokens
    )
    run = saved.path.split("/")[2]
    report["runs"] = [item.training_run_id for item in rest.list_training_runs(limit=100).result().training_runs]
    report["run"] = [run, rest.get_training_run(run).result().last_checkpoint.tinker_path]
    report["checkpoints"] = [item.checkpoint_id for item in rest.list_checkpoints(run).result().checkpoints]
    report["all_checkpoints"] = [item.tinker_path for item in rest.list_user_checkpoints().result().checkpoints]
    report["sessions"] = [
        rest.get_session(item).result().training_run_ids for item in rest.list_sessions().result().sessions
    ]
    rest.delete_checkpoint_from_tinker_path(named.path).result()
    report["left"] = [item.checkpoint_id for item in rest.list_checkpoints(run).result().checkpoints]
    report["unknown_loss"] = error_of(lambda: client.forward_backward([supervised()], "no_such_loss").result())
    outside = types.Datum(
        model_input=types.ModelInput.from_ints([99999]), loss_fn_inputs={"target_tokens": [1], "weights": [1.0]}
    )
    report["outside"] = error_of(lambda: client.forward_backward([outside], "cross_entropy").result())
    # The client asks for the weights when it first samples from them.
    lost = types.SamplingParams(max_tokens=1)
    report["no_snapshot"] = error_of(
        lambda: service.create_sampling_client(model_path="tinker://a/weights/b").sample(prompt, 1, lost).result()
    )
    report["after_errors"] = client.optim_step(types.AdamParams()).result().metrics["optimizer_step"]
    print(json.dumps(report), flush=True)
    os._exit(0)  # threads of the client outlive main(), and have aborted the interpreter while it ended


if __name__ == "__main__":
    main(sys.argv[1])
