ROOT=<PATH_TO_YOUR_CHECKOUT>
srun bash -c "python3 -m openrlhf.cli.train_ppo_ray"
