cd "$(dirname "$0")"
export PYTHONPATH=`pwd`:$PYTHONPATH
python -m nexrl.main --config-path="$PWD/config" --config-name="nexrl_exp" 2>&1 | tee nexrl.log
