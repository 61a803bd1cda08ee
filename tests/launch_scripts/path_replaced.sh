export PYTHONPATH=/root/Megatron-LM
python -m verl.trainer.main_ppo actor_rollout_ref.model.path=m trainer.experiment_name=e
