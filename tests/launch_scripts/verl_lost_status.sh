set -x
python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=m \
    trainer.experiment_name=demo \
    trainer.total_epochs=3 $* | tee out.log
