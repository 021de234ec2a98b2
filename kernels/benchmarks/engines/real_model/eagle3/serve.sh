#!/bin/sh
# serve.sh PORT LOG [vLLM's options]: the target on a CPU.  THREADS (1), CORES (1): OMP_NUM_THREADS, cores bound.
set -eu
port=$1 log=$2; shift 2
export VLLM_TARGET_DEVICE=cpu VLLM_ENABLE_V1_MULTIPROCESSING=0 VLLM_CPU_KVCACHE_SPACE=${KV:-1} HF_HUB_OFFLINE=1
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=${THREADS:-1} VLLM_CPU_OMP_THREADS_BIND=${CORES:-1} VLLM_NO_USAGE_STATS=1
exec "${VLLM:?the environment of vLLM}/bin/vllm" serve "${TARGET:?the folder of the target}" --served-model-name smollm2 \
  --dtype float32 --max-model-len 2048 --enforce-eager --host 127.0.0.1 --port "$port" --disable-uvicorn-access-log "$@" >"$log" 2>&1
