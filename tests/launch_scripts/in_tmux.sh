#!/bin/bash
tmux kill-session -t train
tmux new-session -d -s train "python3 -m verl.trainer.main_ppo trainer.experiment_name=t"
