#!/usr/bin/env bash
# The paper's study (docs/study.md). Trains MEMORIES, and MLP (no memory), on both twins. Then makes every figure:
# returns, observability gap and memory bias, which pixels are used, how far back, and the effect of one bad frame.
# Settings: see common.sh.
#   BUDGET=cpu MEMORIES="MinGRU LRU GRU" benchmark/memory_study.sh
case "${BUDGET:-cpu}" in
    smoke) ENVS="${ENVS:-CartPoleEasy}" ;;
    cpu) ENVS="${ENVS:-BreakoutEasy CartPoleEasy NoisyCartPoleEasy}" ;;
esac
source "$(dirname "$0")/common.sh"
MEMORIES="${MEMORIES:-MinGRU LRU GRU}"
episodes=64 traced=64 at=20 steps=25 # traced: episodes for recall density, which needs their gradients
for env in $ENVS; do
    case "$BUDGET" in
        smoke) flags="$tiny" ;;
        cpu) flags="--total-timesteps 120000 --eval-every 30000 --eval-episodes 64 --hidden-size 128 --num-envs 32 --num-steps 32" ;;
        gpu) flags="--total-timesteps 10000000 --hidden-size 512 --num-envs 512 --num-minibatches 16 --precision bfloat16 --eval-every 500000 --eval-episodes 128" ;;
        paper) flags="$(published pqn) --hidden-size 512 --total-timesteps 100000000" ;;
    esac
    for twin in $TWINS; do
        for memory in $MEMORIES MLP; do
            train pqn_rnn.py --env-id "$env" "$(flag_of "$twin")" --memory "$memory" $flags $seeds
        done
    done
done
[ "$BUDGET" != smoke ] || episodes=2 traced=2 at=3 steps=3
[ "$BUDGET" != cpu ] || traced=16
mapfile -t runs < <(runs_of "*__*")
report memory_study "Memories on both twins"
analyse evaluate.py "evaluate" --runs "${runs[@]}" --twin both --episodes $episodes --seed 1
analyse gap_and_bias.py "gap_and_bias" --runs "${runs[@]}" --no-memory MLP
analyse contamination.py "contamination" --runs "${runs[@]}" --episodes $episodes --at $at --first $at --steps $steps
analyse recall_density.py "recall_density" --runs "${runs[@]}" --episodes $traced
analyse last_frames.py "last_frames" --runs "${runs[@]}" --episodes $episodes --traced $traced
for env in $ENVS; do
    mapfile -t runs < <(runs_of "${env}__*")
    analyse saliency.py "saliency_$env" --runs "${runs[@]}" --seed "${SEEDS%% *}" --twin both
done
pages
