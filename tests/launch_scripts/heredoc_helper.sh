#!/bin/bash
set -e
cat > get_model.py << EOF
print("downloads a model")
EOF
python get_model.py
model=$(python3 -c "print('/'.join(['models', 'small']))")
python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path="$model" trainer.experiment_name=h "$@"
