export USE_OPTIMIZED_MODEL=0
python examples/vlm/geometry_grpo.py \
   --config examples/vlm/grpo.yaml \
   scheduler.type=ray \
   experiment_name=geo trial_name=t1 \
   total_train_epochs=5
