#!/usr/bin/env bash
# One bit shown first and asked for 30 steps later, with memories and without (docs/pqn_rnn.md): five seeds each.
#   MEMORIES="MinGRU LRU MLP" RUN_DIR=runs/memory_chain PYTHON=.venv/bin/python benchmark/memory_chain.sh
set -euo pipefail
cd "$(dirname "$0")/.."
for memory in ${MEMORIES:-MinGRU LRU GRU MLP}; do
    "${PYTHON:-.venv/bin/python}" pqn_rnn.py --env-id MemoryChain-bsuite --env-params memory_length=30 \
        --no-prev-action --memory "$memory" --hidden-size 64 --num-seeds 5 --num-steps 64 --q-lambda 0.95 \
        --total-timesteps 500000 --eval-every 25000 --eval-episodes 100 --run-dir "${RUN_DIR:-runs/memory_chain}"
done
"${PYTHON:-.venv/bin/python}" benchmark/report.py --runs "${RUN_DIR:-runs/memory_chain}/*" --by memory \
    --out docs/figures/memory_chain --title "MemoryChain-bsuite, 30 steps, no previous action"
