set -euo pipefail
strategy=${STRATEGY:-fsdp}
common=(trainer.project_name=p trainer.experiment_name=e actor_rollout_ref.rollout.n=8)
if [ "$strategy" == "fsdp" ]; then
    python3 -m verl.experimental.fully_async_policy.fully_async_main "${common[@]}" \
        rollout.total_epochs=10 actor_rollout_ref.actor.strategy=fsdp $@
else
    python3 -m verl.experimental.fully_async_policy.fully_async_main "${common[@]}" \
        actor_rollout_ref.actor.strategy=megatron $@
fi
