#!/bin/bash
set -eou pipefail
uv run coverage run -a --data-file=.coverage --source=nemo_rl \
    examples/run_dpo.py policy.model_name=m cluster.num_nodes=1 $@ 2>&1 | tee run.log
