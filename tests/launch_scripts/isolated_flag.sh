python3 -I main_ppo.py actor_rollout_ref.model.path=m trainer.experiment_name=i "$@"
