#!/usr/bin/env bash
# What the fast patch encoder costs in learning: it is compared with the earlier default, which reads every pixel and is
# twice as wide (docs/pqn_mlp.md). The earlier encoder is a copy of pqn_mlp.py edited by sed. Settings: see common.sh.
#   OUT=docs/figures benchmark/encoder_size.sh
ENVS="${ENVS:-BreakoutEasy CartPoleEasy CountRecallEasy MineSweeperEasy NoisyCartPoleEasy}"
WITHOUT="BUDGET TWINS"
source "$(dirname "$0")/common.sh"
for env in $ENVS; do
    flags="--env-id $env --no-partial-obs $(smoke_or 100000) --eval-every 20000 --eval-episodes 64 --checkpoint-every 0 $seeds"
    train pqn_mlp.py --exp-name averages $flags
    variant pqn_mlp.py every_pixel 's/dense(16, \(.*\), pixels=4))/dense(32, \1))/' 's/dense(32)(merge/dense(64)(merge/' \
        's/dense(256)(x.reshape/dense(512)(x.reshape/'
done
report encoder_size "pqn_mlp.py, fully observable" --by exp_name
