#!/usr/bin/env bash
# dqn_rnn.py with memories on games, both twins (docs/dqn_rnn.md). The paper has no DQN, so BUDGET=paper is the same as
# gpu. Settings: see common.sh.
#   MEMORIES="MinGRU LRU GRU" BUDGET=cpu benchmark/dqn_rnn.sh
ENVS="${ENVS:-CountRecallEasy MineSweeperEasy SkittlesEasy}"
STEPS="${STEPS:-500000}"
source "$(dirname "$0")/common.sh"
MEMORIES="${MEMORIES:-MinGRU}"
case "$BUDGET" in
    smoke) flags="--total-timesteps 2048 --num-envs 4 --buffer-size 1024 --learning-starts 256 --num-steps 32 --burn-in 16 --eval-every 0 --eval-episodes 1 --hidden-size 16" ;;
    cpu) flags="$cpu_steps" ;;
    gpu | paper) flags="--total-timesteps 10000000 --hidden-size 512 --eval-every 500000 --eval-episodes 128" ;;
esac
for env in $ENVS; do
    for twin in $TWINS; do
        for memory in $MEMORIES; do
            train dqn_rnn.py --env-id "$env" "$(flag_of "$twin")" --memory "$memory" $flags $seeds
        done
    done
done
report dqn_rnn "dqn_rnn.py" --by memory --training
