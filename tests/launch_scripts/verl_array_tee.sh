#!/usr/bin/env bash
set -xeuo pipefail
cd "$(dirname "$0")"
project=math
exp_name="${project}-7B-grpo"
python3 prepare_dataset.py --out data.parquet
ARGS=(
    data.train_files=data.parquet   # prepared above
    # data.train_batch_size=32
    trainer.experiment_name="${exp_name}"
    trainer.default_local_dir=ckpt/${project}/${exp_name}
    trainer.total_epochs=15
)
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    actor_rollout_ref.model.path=model \
    "${ARGS[@]}" $@ 2>&1 | tee train.log
