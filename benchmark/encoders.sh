#!/usr/bin/env bash
# The patch encoder against the paper's: CartPoleEasy, partially observable, 100,000 steps, one seed after the other
# (docs/pqn_rnn.md). On two CPU cores, the paper's encoder takes about eight minutes per seed, the patch encoder one.
# Settings: see common.sh; ENCODERS has values of --encoder.
#   OUT=docs/figures benchmark/encoders.sh
WITHOUT="ENVS BUDGET TWINS"
source "$(dirname "$0")/common.sh"
for seed in $SEEDS; do
    for encoder in ${ENCODERS:-patch paper}; do
        train pqn_rnn.py --env-id CartPoleEasy --partial-obs --hidden-size 128 $(smoke_or 100000) --eval-every 10000 \
            --encoder "$encoder" --seed "$seed" $before_tuning
    done
done
report encoders "CartPoleEasy, partially observable" --by encoder
