#! /bin/bash
export EMBODIED_PATH="$( cd "$(dirname "${BASH_SOURCE[0]}" )" && pwd )"
if [ -z "$1" ]; then CONFIG_NAME="rlinf_exp"; else CONFIG_NAME=$1; fi
LOG_DIR="${EMBODIED_PATH}/logs/$(date +'%Y%m%d-%H:%M:%S')-${CONFIG_NAME}"
mkdir -p "${LOG_DIR}"
CMD="python ${EMBODIED_PATH}/train_embodied_agent.py --config-path ${EMBODIED_PATH}/config/ --config-name ${CONFIG_NAME} runner.logger.log_path=${LOG_DIR}"
echo ${CMD} > ${LOG_DIR}/run.log
${CMD} 2>&1 | tee -a ${LOG_DIR}/run.log
