set -x
: "${DATA_DIR:="$HOME/data/gsm8k"}"
: "${NUM_GPUS:=4}"
uv run --isolated --extra fsdp -m skyrl.train.entrypoints.main_base \
  data.train_data="['$DATA_DIR/train.parquet']" \
  trainer.placement.policy_num_gpus_per_node=$NUM_GPUS \
  trainer.epochs=20 \
  trainer.run_name="gsm8k_test" \
  trainer.ckpt_path="$HOME/ckpts/gsm8k" \
  $@
