# The program and a package are part of the script.
cat > tr.py <<'PY'
from trl import GRPOTrainer
PY
mkdir -p own && printf 'print(1)\n' > own/train.py
python tr.py --output_dir out --num_generations 8
python -m own.train --output_dir out
