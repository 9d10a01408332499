#!/usr/bin/env bash
# Learning from pixels on two CPU cores, one seed after the other (docs/pqn_mlp.md, ppo_mlp.md, pqn_rnn.md). encoders.sh
# trains pqn_rnn.py on CartPoleEasy, ppo_memory.sh trains ppo_rnn.py from pixels. Settings: see common.sh.
#   OUT=docs/figures benchmark/pixels_cpu.sh
WITHOUT="ENVS BUDGET TWINS"
source "$(dirname "$0")/common.sh"
each_seed() { # script, flags
    for seed in $SEEDS; do train "$@" --env-id "$part" --seed "$seed" --checkpoint-every 0; done
}
part=CartPoleEasy
each_seed pqn_mlp.py $(smoke_or 100000) --eval-every 10000
each_seed ppo_mlp.py $(smoke_or 100000) --eval-every 10000
report pixels_cpu_CartPoleEasy CartPoleEasy --by script --training
part=BreakoutEasy
each_seed pqn_mlp.py $(smoke_or 200000) --eval-every 20000
each_seed pqn_rnn.py $(smoke_or 200000) --eval-every 20000 --hidden-size 128 --num-envs 32 --num-steps 32
each_seed ppo_mlp.py $(smoke_or 350000) --eval-every 35000
report pixels_cpu_BreakoutEasy BreakoutEasy --by script --training
