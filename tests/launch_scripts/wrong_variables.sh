export RAY_DEBUG=0
export RAY_DEBUG_POSTMORTEM=1
python -m verl.trainer.main_ppo actor_rollout_ref.model.path=m trainer.experiment_name=x
