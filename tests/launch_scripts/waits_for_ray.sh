if [ "${RANK:-0}" -eq 0 ]; then
  ray start --head --port 6379
  while true; do
    count=$(ray status | grep -c node_)
    if [ "$count" -ge "${NNODES:-1}" ]; then break; fi
    sleep 5
  done
fi
python -m verl.trainer.main_ppo actor_rollout_ref.model.path=m trainer.experiment_name=w
