mkdir -p logs
nohup python -u train_grpo.py --lr 1e-6 > logs/out.log 2>&1 &
echo $! > logs/pid
wait
