#!/usr/bin/env bash
# One bit is shown first and asked for 30 steps later, with and without memory (docs/pqn_rnn.md). memory_length.sh has
# other lengths. Settings: see common.sh.
#   OUT=docs/figures MEMORIES="MinGRU LRU MLP" benchmark/memory_chain.sh
SEEDS="${SEEDS:-0 1 2 3 4}"
WITHOUT="ENVS BUDGET TWINS"
source "$(dirname "$0")/common.sh"
for memory in ${MEMORIES:-MinGRU LRU GRU MLP}; do
    train pqn_rnn.py --env-id MemoryChain-bsuite --env-params memory_length=30 --no-prev-action --memory "$memory" \
        --hidden-size 64 --num-envs 32 --num-steps 64 --q-lambda 0.95 --gamma 0.99 $(smoke_or 500000) --eval-every 25000 --eval-episodes 100 $seeds
done
report memory_chain "MemoryChain-bsuite, 30 steps, no previous action"
