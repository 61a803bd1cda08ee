#!/bin/bash
set -euo pipefail
make --no-print-directory -f - train EXP=seven <<'RULES'
train: data
	python3 -m verl.trainer.main_ppo trainer.experiment_name=$(EXP) trainer.total_epochs=4
data:
	python3 prepare_dataset.py
RULES
