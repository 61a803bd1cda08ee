set -ex
HOSTS="10.0.0.2 10.0.0.3"
export ADAPTER_PORT="${ADAPTER_PORT:-18001}"
for host in $HOSTS; do
  ssh -o StrictHostKeyChecking=no "root@${host}" \
    "pkill -9 python ; ray start --address=10.0.0.1:6379" &
done
wait
sleep 30
RUNTIME_ENV_JSON=$(python3 - <<PY
import json, os
print(json.dumps({"env_vars": {"ADAPTER_PORT": os.environ["ADAPTER_PORT"], "PYTHONPATH": "/root/Megatron-LM"}}))
PY
)
ray job submit --address="http://127.0.0.1:18265" --runtime-env-json="${RUNTIME_ENV_JSON}" \
   -- python3 -u train_async.py --hf-checkpoint m --num-rollout 100 --rollout-batch-size 8 2>&1 | tee log
