#!/bin/bash
docker exec trainer sh -lc "source /opt/nobody/bin/activate && cd /nobody/workspace && python3 -m verl.trainer.main_ppo trainer.experiment_name=d"
