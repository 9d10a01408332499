#!/usr/bin/env bash
# ppo_rnn.py with memories on games, both twins (docs/ppo_rnn.md, docs/benchmark.md). Settings: see common.sh.
#   MEMORIES="MinGRU LRU GRU" BUDGET=cpu benchmark/ppo_rnn.sh
source "$(dirname "$0")/common.sh"
MEMORIES="${MEMORIES:-MinGRU}"
for env in $ENVS; do
    case "$BUDGET" in
        smoke) flags="$tiny" ;;
        cpu) flags="$cpu_steps" ;;
        gpu) flags="$gpu --hidden-size 512" ;;
        paper) flags="$(published ppo) --hidden-size 512 --total-timesteps $(published_steps "$env")" ;;
    esac
    for twin in $TWINS; do
        for memory in $MEMORIES; do
            train ppo_rnn.py --env-id "$env" "$(flag_of "$twin")" --memory "$memory" $flags $seeds
        done
    done
done
report ppo_rnn "ppo_rnn.py" --by memory --training
