set -x

read -r -d '' training_commands <<EOF
openrlhf.cli.train_sft \
   --data.max_len 2048 \
   --train.batch_size 256 \
   --ckpt.output_dir ./ckpt/sft \
   --train.max_epochs 3
EOF

if [[ ${1} != "slurm" ]]; then
    deepspeed --module $training_commands
fi
