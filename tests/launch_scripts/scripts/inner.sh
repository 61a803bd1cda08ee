set -e
cd "$(dirname "$0")/.."
python -m verl.trainer.main_ppo actor_rollout_ref.model.path=m trainer.experiment_name=$NAME "$@"
