#!/usr/bin/env bash
# ppo_mlp.py on games, both twins (docs/ppo_mlp.md, docs/benchmark.md). Settings: see common.sh.
#   BUDGET=cpu benchmark/ppo_mlp.sh
source "$(dirname "$0")/common.sh"
for env in $ENVS; do
    case "$BUDGET" in
        smoke) flags="$tiny" ;;
        cpu) flags="$cpu_steps" ;;
        gpu) flags="$gpu" ;;
        paper) flags="$(published ppo) --total-timesteps $(published_steps "$env")" ;;
    esac
    for twin in $TWINS; do
        train ppo_mlp.py --env-id "$env" "$(flag_of "$twin")" $flags $seeds
    done
done
report ppo_mlp "ppo_mlp.py" --by script --training
