#!/usr/bin/env bash
# pqn_mlp.py on games, both twins (docs/pqn_mlp.md, docs/benchmark.md). Settings: see common.sh.
#   BUDGET=cpu benchmark/pqn_mlp.sh
source "$(dirname "$0")/common.sh"
for env in $ENVS; do
    case "$BUDGET" in
        smoke) flags="$tiny" ;;
        cpu) flags="$cpu_steps $(pqn_flags_of "$env")" ;;
        gpu) flags="$gpu" ;;
        paper) flags="$(published pqn) --total-timesteps $(published_steps "$env")" ;;
    esac
    for twin in $TWINS; do
        train pqn_mlp.py --env-id "$env" "$(flag_of "$twin")" $flags $seeds
    done
done
report pqn_mlp "pqn_mlp.py" --by script --training
