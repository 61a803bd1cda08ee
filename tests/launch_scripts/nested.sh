export NAME=nested
bash "$(dirname "$0")/scripts/inner.sh" data.seed=1 "$@"
