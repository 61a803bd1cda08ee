#!/bin/bash
set -eu
NODES=2
SERVICE=${SERVICE:-/opt/service/start.sh}
LOGS=$PWD/service-logs
mkdir -p "$LOGS"
srun --container-image=service.sqsh --nodes="$NODES" --ntasks-per-node=1 bash -c '
  ('"$SERVICE"' --port 6000) &
  service=$!
  until (: > /dev/tcp/localhost/6000) 2>/dev/null; do
    kill -0 $service || exit 1
    sleep 1
  done
  touch '"$LOGS"'/ready-$(hostname)
  wait $service
' &
side=$!
srun --container-image=trainer.sqsh --nodes=1 bash -c '
  while (( $(ls '"$LOGS"'/ready-* 2>/dev/null | wc -l) < '"$NODES"' )); do sleep 1; done
  uv run examples/run_grpo.py --config c.yaml logger.wandb.name=side
' &
head=$!
while kill -0 $head 2>/dev/null; do
  kill -0 $side 2>/dev/null || { echo "the service has ended"; kill $head; exit 1; }
  sleep 2
done
