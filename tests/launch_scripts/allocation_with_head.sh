#!/bin/bash
# The driver runs inside the head's step, once all nodes of the allocation have joined; processes beside it watch for the end.
read -r -d '' COMMAND <<'END' || true
uv run examples/run_grpo.py --config c.yaml grpo.max_num_steps=5 logger.wandb.name=allocated
END
export COMMAND
cat > cluster.sub <<'EOF'
#!/bin/bash
set -eou pipefail
LOGS=$SLURM_SUBMIT_DIR/$SLURM_JOB_ID-logs
mkdir -p "$LOGS"
NUM_ACTORS=$((8 * SLURM_JOB_NUM_NODES))
printf '%s\n' "$COMMAND" > "$LOGS/driver.sh"
head_cmd=$(cat <<HEAD
(while true; do sleep 60; if [[ -f $LOGS/ENDED ]]; then exit; fi; done) &
for name in \$(env | awk -F= '/^SLURM_/{print \$1}'); do unset "\$name"; done
cat <<START | bash
ray start --head --resources='{"worker_units": 8}'
START
touch $LOGS/STARTED_RAY_HEAD
while [[ \$(ray status | grep worker_units | awk -F'[/. ]' '{print \$4}') -ne $NUM_ACTORS ]]; do sleep 5; done
bash $LOGS/driver.sh > $LOGS/driver.log 2>&1
HEAD
)
srun --nodes=1 bash -x -c "$head_cmd" &
head=$!
srun --nodes=1 bash -c 'ray start --address=head:6379 --block' &
worker=$!
while ! test -f "$LOGS/STARTED_RAY_HEAD"; do
  kill -0 $worker || exit 1
  sleep 2
done
wait $head
EOF
sbatch --nodes=2 cluster.sub
