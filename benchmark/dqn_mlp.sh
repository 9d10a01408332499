#!/usr/bin/env bash
# dqn_mlp.py on games, both twins (docs/dqn_mlp.md). The paper has no DQN, so BUDGET=paper is the same as gpu.
# Settings: see common.sh.
#   BUDGET=cpu benchmark/dqn_mlp.sh
ENVS="${ENVS:-CountRecallEasy MineSweeperEasy SkittlesEasy}"
STEPS="${STEPS:-500000}"
source "$(dirname "$0")/common.sh"
case "$BUDGET" in
    smoke) flags="--total-timesteps 1024 --num-envs 4 --buffer-size 512 --learning-starts 64 --eval-every 0 --eval-episodes 1 --hidden-size 16" ;;
    cpu) flags="$cpu_steps" ;;
    gpu | paper) flags="--total-timesteps 10000000 --eval-every 500000 --eval-episodes 128" ;;
esac
for env in $ENVS; do
    for twin in $TWINS; do
        train dqn_mlp.py --env-id "$env" "$(flag_of "$twin")" $flags $seeds
    done
done
report dqn_mlp "dqn_mlp.py" --by script --training
