source /opt/nowhere/miniconda3/etc/profile.d/conda.sh
conda activate train
export WANDB_API_KEY=none
pip install -e .
python main_ppo.py actor_rollout_ref.model.path=m trainer.experiment_name=conda "$@"
