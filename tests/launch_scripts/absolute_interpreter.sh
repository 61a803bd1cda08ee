#!/bin/bash
ENV=/data/nobody/envs/train
exp_name='Single'
CUDA_VISIBLE_DEVICES=0,1 ${ENV}/bin/python -m dapo.main_dapo \
    trainer.experiment_name="${exp_name}" trainer.total_epochs=10 $@ 2>&1 | tee run_${exp_name}.log
