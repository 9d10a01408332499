#!/usr/bin/env bash
# What makes pqn_mlp.py insensitive to the size of rewards (docs/pqn_mlp.md). The last layer starts at zero or at
# random; rewards are divided by the running standard deviation of their discounted sums or not, and multiplied by 0.01,
# 1 or 30. The variants are copies of the script edited by sed. Settings: see common.sh.
#   OUT=docs/figures benchmark/value_scale.sh
ENVS="${ENVS:-BreakoutEasy CountRecallEasy MineSweeperEasy SkittlesEasy}"
WITHOUT="BUDGET TWINS"
source "$(dirname "$0")/common.sh"
random_head='s/, kernel_init=nn.initializers.zeros)  # values start at 0/)/'
for env in $ENVS; do
    common="--env-id $env --no-partial-obs $(smoke_or 100000) --eval-every 20000 --eval-episodes 64 --checkpoint-every 0 $seeds"
    flags="$common --no-norm-reward"
    for size in 0.01 1 30; do
        variant pqn_mlp.py "random_head_x$size" "$random_head" "s/ reward=reward,/ reward=$size * reward,/"
        variant pqn_mlp.py "zero_head_x$size" "s/ reward=reward,/ reward=$size * reward,/"
    done
    flags="$common"
    variant pqn_mlp.py random_head_normalised "$random_head"
    train pqn_mlp.py --exp-name zero_head_normalised $common
done
report value_scale "pqn_mlp.py, fully observable" --by exp_name
