#!/usr/bin/env bash
# The search for the defaults of a script: five families, full twins, one seed (docs/tune.md). The other five families, and all
# seeds that the pages report, are held out. Continues where it stopped.
#   SCRIPT=pqn_mlp TRIALS=16 benchmark/search.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SCRIPT="${SCRIPT:-pqn_mlp}"
STUDY="${STUDY:-runs/search_$SCRIPT}"
TRIALS="${TRIALS:-16}"
PYTHON="${PYTHON:-.venv/bin/python}"
if [ -e "$STUDY/args.json" ]; then exec "$PYTHON" tune.py --study "$STUDY" --trials "$TRIALS"; fi
exec "$PYTHON" tune.py --study "$STUDY" --trials "$TRIALS" --script "$SCRIPT" --startup-trials 4 --seed 1000 --num-seeds 1 \
    --env-ids MineSweeperEasy SkittlesEasy CountRecallEasy BreakoutEasy CartPoleEasy \
    --search learning_rate=4e-4..1.6e-3:log gamma=0.9,0.95,0.97 q_lambda=0.5..0.85 num_envs=32,64 num_minibatches=16,32 \
    update_epochs=2,3 exploration_fraction=0.1..0.3 \
    -- --total-timesteps 100000 --eval-every 33000 --eval-episodes 64 --checkpoint-every 0
