#!/usr/bin/env bash
set -xeuo pipefail
WORKING_DIR=${WORKING_DIR:-"$(cd "$(dirname "$0")" && pwd)"}
RUNTIME_ENV=${RUNTIME_ENV:-"${WORKING_DIR}/config/runtime_env.yaml"}
ray job submit --no-wait --runtime-env="${RUNTIME_ENV}" \
    --working-dir "${WORKING_DIR}" \
    --address "${RAY_ADDRESS:-http://localhost:18265}" \
    -- python3 -m recipe.dapo.main_dapo \
    actor_rollout_ref.nccl_timeout=7200 \
    trainer.experiment_name=dapo \
    trainer.total_epochs=1
