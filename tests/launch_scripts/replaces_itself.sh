export OMP_NUM_THREADS=1
exec python -m verl.trainer.main_ppo actor_rollout_ref.model.path=m trainer.experiment_name=x "$@"
