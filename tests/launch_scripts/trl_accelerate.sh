accelerate launch --config_file config/zero3.yaml --num_processes 4 \
    examples/scripts/grpo_math.py \
    --model_name_or_path Qwen/Tiny --output_dir out/grpo --run_name grpo-math --num_train_epochs 3
