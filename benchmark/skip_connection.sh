#!/usr/bin/env bash
# What the skip connection around pqn_rnn.py's memory is worth: trains the script and a copy without that line
# (docs/pqn_rnn.md). Settings: see common.sh.
#   OUT=docs/figures benchmark/skip_connection.sh
ENVS="${ENVS:-CountRecallEasy MineSweeperEasy SkittlesEasy}"
WITHOUT="BUDGET TWINS"
source "$(dirname "$0")/common.sh"
for env in $ENVS; do
    flags="--env-id $env --partial-obs $(smoke_or 150000) --eval-every 50000 --eval-episodes 64 --checkpoint-every 0 $seeds"
    train pqn_rnn.py --exp-name with_skip $flags
    variant pqn_rnn.py without_skip '/x += features/d'
done
report skip_connection "pqn_rnn.py, partially observable" --by exp_name
