#!/usr/bin/env bash
# Trains only in a branch that its first argument chooses.
set -e
case "${1-}" in
  small) python3 -m verl.trainer.main_ppo trainer.experiment_name=small actor_rollout_ref.model.path=m ;;
  *) echo "usage: $0 small|large" ;;
esac
