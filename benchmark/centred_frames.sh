#!/usr/bin/env bash
# What it is worth to subtract the mean of the first frames: trains scripts, and copies that do not subtract it, with
# memory on partially observable twins and without on fully observable ones (docs/ppo_rnn.md). Settings: see common.sh.
#   OUT=docs/figures benchmark/centred_frames.sh
ENVS="${ENVS:-BattleShipEasy BreakoutEasy CountRecallEasy MineSweeperEasy NoisyCartPoleEasy}"
WITHOUT="BUDGET TWINS"
source "$(dirname "$0")/common.sh"
for env in $ENVS; do
    common="--env-id $env $(smoke_or 100000) --eval-every 50000 --eval-episodes 64 --checkpoint-every 0 $seeds"
    for script in ppo_rnn pqn_rnn ppo_mlp pqn_mlp; do
        case $script in
            *_rnn) flags="--partial-obs --memory GRU $common" ;;
            *_mlp) flags="--no-partial-obs $common" ;;
        esac
        train $script.py --exp-name centred $flags
        variant $script.py not_centred 's/Centred(\(dense([^)]*)\))/\1/'
    done
done
report centred_frames "Frames relative to the first ones" --by script+exp_name
