#!/usr/bin/env bash
# pqn_rnn.py with memories on games, both twins (docs/pqn_rnn.md, docs/benchmark.md). Settings: see common.sh.
#   MEMORIES="MinGRU LRU GRU" BUDGET=cpu benchmark/pqn_rnn.sh
source "$(dirname "$0")/common.sh"
MEMORIES="${MEMORIES:-MinGRU}"
for env in $ENVS; do
    case "$BUDGET" in
        smoke) flags="$tiny" ;;
        cpu) flags="$cpu_steps $(pqn_flags_of "$env")" ;;
        gpu) flags="$gpu --hidden-size 512" ;;
        paper) flags="$(published pqn) --hidden-size 512 --total-timesteps $(published_steps "$env")" ;;
    esac
    for twin in $TWINS; do
        for memory in $MEMORIES; do
            train pqn_rnn.py --env-id "$env" "$(flag_of "$twin")" --memory "$memory" $flags $seeds
        done
    done
done
report pqn_rnn "pqn_rnn.py" --by memory --training
