#!/bin/bash
# What a program of the script would make is missing in a dry run: not a reason to stop.
set -euo pipefail
DATA=data/made
mkdir -p $DATA
python make_data.py --rows 512 --out $DATA/train.jsonl
grep -v '^$' $DATA/train.jsonl > $DATA/clean.jsonl
python -m verl.trainer.main_ppo trainer.experiment_name=made data.train_files=$DATA/clean.jsonl
