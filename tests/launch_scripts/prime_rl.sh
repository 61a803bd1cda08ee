uv run rl @ configs/rl.toml --wandb.name reverse --output-dir outputs
