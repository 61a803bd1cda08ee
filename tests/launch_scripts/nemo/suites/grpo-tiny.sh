#!/bin/bash
SCRIPT_DIR=$( cd -- "$( dirname -- "${BASH_SOURCE[0]}" )" &> /dev/null && pwd)
source $SCRIPT_DIR/common.env
MAX_STEPS=30
cd $SCRIPT_DIR/../..
uv run examples/run_grpo.py \
    --config $CONFIG_PATH \
    grpo.max_num_steps=$MAX_STEPS \
    logger.log_dir=$LOG_DIR \
    logger.wandb.name=$EXP_NAME \
    checkpointing.checkpoint_dir=$EXP_DIR/ckpts \
    $@ \
    2>&1 | tee $EXP_DIR/run.log
uv run tests/json_dump_tb_logs.py $LOG_DIR --output_path metrics.json
uv run tests/check_metrics.py metrics.json 'data["train/loss"] < 1'
rm -rf "$EXP_DIR/ckpts"
