set -x

ray job submit --address="http://127.0.0.1:18265" \
   --runtime-env-json='{"working_dir": "/openrlhf"}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --ckpt.output_dir /ckpt/rlhf \
   --rollout.batch_size 1024 \
   --train.max_epochs 1 \
   --logger.wandb.key {wandb_token}
