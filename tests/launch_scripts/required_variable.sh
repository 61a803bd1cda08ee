set -euo pipefail
: "${MODEL_PATH:?set MODEL_PATH to the checkpoint}"
if [[ ! -d "$MODEL_PATH" ]]; then echo "no such checkpoint" >&2; exit 2; fi
python -m verl.trainer.main_ppo actor_rollout_ref.model.path="$MODEL_PATH" trainer.experiment_name=v
