#!/usr/bin/env bash
# How long each memory spans: one bit is shown first and asked for LENGTHS steps later (docs/memories.md). Rollouts are
# longer than an episode, so that gradients reach its first step. Settings: see common.sh.
#   MEMORIES="MinGRU LRU" LENGTHS="10 20 40 80 160" benchmark/memory_length.sh
SEEDS="${SEEDS:-0 1 2 3 4}"
WITHOUT="ENVS TWINS"
OWN_IDS=1
source "$(dirname "$0")/common.sh"
ENVS="MemoryChain-bsuite"
case "$BUDGET" in
    smoke) LENGTHS="${LENGTHS:-3 6}" MEMORIES="${MEMORIES:-MinGRU MLP}" ;;
    cpu) LENGTHS="${LENGTHS:-10 20 40 80 160}" MEMORIES="${MEMORIES:-MinGRU LRU GRU LSTM FFM FART DeltaNet MLP}" ;;
    *) LENGTHS="${LENGTHS:-10 20 40 80 160 320 640 1280}" ;;
esac
MEMORIES="${MEMORIES:-MinGRU NMax FART FWP DeltaNet DeltaProduct GDN FFM S6 PSpherical LRU LinearRNN Stack GRU Elman LSTM MGU MLP}"
for memory in $MEMORIES; do
    for length in $LENGTHS; do
        steps=16
        while [ $steps -le "$length" ]; do steps=$((2 * steps)); done
        train pqn_rnn.py --env-id "$ENVS" --env-params "memory_length=$length" --no-prev-action --memory "$memory" \
            --hidden-size 64 --num-envs 32 --num-steps $steps --q-lambda 0.95 --gamma 0.99 $(smoke_or 500000 1 --num-envs 8 --num-minibatches 2) $seeds
    done
done
report memory_length "One bit to remember" --over memory_length
