#!/usr/bin/env bash
# Waits until all GPUs have joined, asked for in Python, and takes the head's rank from its arguments.
set -ex
NODE_RANK=${1:-0}
if [ "$NODE_RANK" -eq 0 ]; then
  ray start --head --num-gpus 8
  while true; do
    FOUND=$(python3 -c "import ray; ray.init(address='auto'); print(int(ray.cluster_resources().get('GPU', 0)))" 2>/dev/null || echo 0)
    if [ "$FOUND" -ge 64 ]; then break; fi
    sleep 5
  done
  ray job submit --address=http://127.0.0.1:8265 -- python3 train.py --hf-checkpoint m --num-rollout 300 --rollout-batch-size 8
fi
