python -m verl.trainer.main_ppo actor_rollout_ref.model.path=m \
    trainer.experiment_name=b
    trainer.total_epochs=3 $@
