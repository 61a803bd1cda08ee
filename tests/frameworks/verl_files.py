"""What a small verl job reads: a model with a chat template, prompts as parquet, and a reward function."""

import json

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return float(sum(c.isdigit() for c in solution_str)) - 0.1 * len(solution_str)
"""


def write_files(folder, model):
    """Returns the files' folder; `model` becomes a chat model."""
    import pyarrow
    import pyarrow.parquet

    settings = model / "tokenizer_config.json"
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": template}))
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{a}+{b}="}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"index": 4 * a + b},
        }
        for a in range(4)
        for b in range(4)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "sums.parquet")
    (folder / "reward.py").write_text(REWARD)
    return folder


def options(folder, model, *, ranks=1, steps=2):
    """The options of the job itself, as for a machine with GPUs."""
    return [
        "algorithm.adv_estimator=grpo",
        f"data.train_files={folder}/sums.parquet",
        f"data.val_files={folder}/sums.parquet",
        "data.train_batch_size=4",
        "data.max_prompt_length=8",
        "data.max_response_length=6",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.actor.use_kl_loss=False",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        f"reward.custom_reward_function.path={folder}/reward.py",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        f"trainer.n_gpus_per_node={ranks}",
        "trainer.nnodes=1",
        "trainer.project_name=small",
        "trainer.experiment_name=sums",
        f"trainer.default_local_dir={folder}/checkpoints",
        f"trainer.total_training_steps={steps}",
    ]
