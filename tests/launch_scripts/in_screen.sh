#!/bin/bash
screen -dmS train bash -c "python3 -m verl.trainer.main_ppo trainer.experiment_name=s trainer.total_epochs=4 2>&1 | tee out.log"
