"""Runs in the cookbook's environment: its `rl/train`, unchanged, as its recipes configure it, in its three modes; and a
loss of the user's own by the client's handle.

Arguments: a folder for its logs, the model's name.
"""

import asyncio
import sys

import tinker
from tinker_cookbook import model_info
from tinker_cookbook.recipes.math_rl.math_env import Gsm8kDatasetBuilder
from tinker_cookbook.rl import train

GROUPS = 4


def configuration(folder, model, **settings):
    renderer = model_info.get_recommended_renderer_name(model)
    builder = Gsm8kDatasetBuilder(
        batch_size=GROUPS, group_size=8, renderer_name=renderer, model_name_for_tokenizer=model
    )
    return train.Config(
        model_name=model,
        recipe_name="rl_basic",
        renderer_name=renderer,
        dataset_builder=builder,
        log_path=folder,
        learning_rate=1e-3,
        max_tokens=20,
        max_steps=3,
        lora_rank=8,
        **settings,
    )


def negative_log_likelihood(logprobs, weights):
    loss = -(logprobs * weights).sum()
    return loss, {"custom/nll:sum": loss}


def own_loss(model):
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model=model, rank=4)
    handle = service.create_custom_loss(negative_log_likelihood, input_ranks={"logprobs": 1, "weights": 1}).result()
    inputs = {"target_tokens": [2, 3, 4], "weights": [0.0, 1.0, 1.0]}
    datum = tinker.Datum(model_input=tinker.ModelInput.from_ints([1, 2, 3]), loss_fn_inputs=inputs)
    own = client.forward_backward_custom([datum], handle).result().metrics["custom/nll:sum"]
    ours = client.forward_backward([datum], "cross_entropy").result().metrics["loss:sum"]
    print("custom loss agrees" if abs(own - ours) < 1e-4 else f"custom loss {own}, cross_entropy {ours}")


def main(folder, model):
    synchronous = configuration(
        f"{folder}/synchronous",
        model,
        eval_every=2,
        save_every=2,
        loss_fn="ppo",
        loss_fn_config={"clip_low_threshold": 0.9, "clip_high_threshold": 1.1},
        num_substeps=2,
        kl_penalty_coef=0.05,
        kl_reference_config=train.KLReferenceConfig(base_model=model),
        compute_post_kl=True,
    )
    off_policy = configuration(
        f"{folder}/off_policy",
        model,
        eval_every=0,
        async_config=train.AsyncConfig(max_steps_off_policy=2, groups_per_batch=GROUPS),
    )
    streaming = configuration(
        f"{folder}/streaming",
        model,
        eval_every=0,
        loss_fn="cispo",
        stream_minibatch_config=train.StreamMinibatchConfig(groups_per_batch=GROUPS, num_minibatches=2),
    )
    own_loss(model)
    for mode in (synchronous, off_policy, streaming):
        asyncio.run(train.main(mode))


if __name__ == "__main__":
    main(*sys.argv[1:])
