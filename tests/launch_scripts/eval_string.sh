cmd="python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path='my model' trainer.experiment_name=e"
echo "$cmd"
eval $cmd
