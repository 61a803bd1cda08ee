set -e
for stage in warmup main; do
  python -m verl.trainer.main_ppo actor_rollout_ref.model.path=m-$stage trainer.experiment_name=run-$stage
done
python -m verl.model_merger merge --local_dir ckpt
