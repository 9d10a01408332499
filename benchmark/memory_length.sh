#!/usr/bin/env bash
# How long each memory spans (docs/memories.md): something is shown first and asked for LENGTHS steps later, one bit in
# gymnax's MemoryChain, one of four cards in the pixel game DelayedRecall. A rollout is at least three times as long as an
# episode, so that most episodes lie within one, and gradients reach their first step. PARTS are chain and recall.
# Settings: see common.sh.
#   MEMORIES="MinGRU LRU" LENGTHS="10 20 40 80 160" PARTS=chain benchmark/memory_length.sh
WITHOUT="ENVS TWINS"
OWN_IDS=1
source "$(dirname "$0")/common.sh"
ENVS="" PARTS="${PARTS:-chain recall}"
case "$BUDGET" in
    smoke) LENGTHS="${LENGTHS:-3 6}" MEMORIES="${MEMORIES:-MinGRU MLP}" ;;
    cpu) LENGTHS="${LENGTHS:-10 20 40 80 160}" MEMORIES="${MEMORIES:-MinGRU GRU LSTM LRU FFM FART GDN Attention MLP}" ;;
    *) LENGTHS="${LENGTHS:-10 20 40 80 160 320 640}" ;;
esac
MEMORIES="${MEMORIES:-MinGRU NMax FART FWP DeltaNet DeltaProduct GDN FFM S6 PSpherical LRU LinearRNN Stack GRU Elman LSTM MGU MLP}"

each_length() { # id, flags: trains every memory on every length; a rollout has 4,096 steps
    local memory length steps
    for memory in $MEMORIES; do
        for length in $LENGTHS; do
            steps=32
            while [ $steps -lt $((3 * length)) ]; do steps=$((2 * steps)); done
            train pqn_rnn.py --env-id "$1" --env-params "memory_length=$length" --memory "$memory" --no-prev-action \
                --num-steps $steps --num-envs $((4096 / steps)) --num-minibatches $((steps > 512 ? 4096 / steps : 8)) "${@:2}" $seeds
        done
    done
}

for name in $PARTS; do
    case "$name" in
        chain) each_length MemoryChain-bsuite --eval-every 20000 --eval-episodes 32 $(smoke_or 500000) ;;
        recall)
            each_length popgym_arcade.environments.delayed_recall:DelayedRecall --partial-obs \
                --eval-every 20000 --eval-episodes 32 $(smoke_or 200000)
            ;;
        *) refuse "PARTS=$PARTS: use some of chain recall" ;;
    esac
done
report memory_length "How long a memory keeps what it has seen" --over memory_length --solved 0.9
