cat > job.sbatch <<'EOF'
#!/bin/bash
#SBATCH -N 1
python -m verl.trainer.main_ppo actor_rollout_ref.model.path=m trainer.experiment_name=batched
EOF
sbatch --parsable -N 1 job.sbatch
