#!/bin/bash
ray job submit --address=http://127.0.0.1:8265 -- python3 -m openrlhf.cli.train_ppo_ray \
   --actor_num_nodes 1 --num_episodes 20 --max_epochs 1 --rollout_batch_size 128 --wandb_run_name old --save_path ckpt/old
