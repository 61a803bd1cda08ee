docker run --rm --gpus all -v $PWD:/w -w /w image:latest \
    python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=m trainer.experiment_name=d
