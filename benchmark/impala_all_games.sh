#!/usr/bin/env bash
# One agent with memory for all games of a twin: impala_popart.py with PopArt (docs/impala_popart.md,
# docs/benchmark.md). The steps of a single game are multiplied by the number of games. The paper has no such run,
# so BUDGET=paper is the same as gpu. Settings: see common.sh; MEMORY is a value of --memory.
#   BUDGET=cpu benchmark/impala_all_games.sh
source "$(dirname "$0")/common.sh"
count=$(wc -w <<< "$ENVS")
case "$BUDGET" in
    smoke) flags="--total-timesteps 1 --num-envs $((2 * count)) --num-steps 8 --num-minibatches 2 --eval-every 0 --eval-episodes 1 --hidden-size 16" ;;
    cpu) flags="--total-timesteps $((60000 * count)) --num-envs $((4 * count)) --eval-every $((12000 * count)) --eval-episodes 64 --hidden-size 128" ;;
    gpu | paper)
        flags="--total-timesteps $((10000000 * count)) --num-envs $((64 * count)) --num-minibatches 16 --precision bfloat16"
        flags="$flags --eval-every $((500000 * count)) --eval-episodes 128"
        ;;
esac
for twin in $TWINS; do
    train impala_popart.py --env-ids $ENVS "$(flag_of "$twin")" --memory "${MEMORY:-MinGRU}" --value-normalization popart $flags $seeds
done
report impala_all_games "impala_popart.py" --by script --training
