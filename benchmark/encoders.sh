#!/usr/bin/env bash
# The patch encoder against the paper's: CartPoleEasy, partially observable, 100,000 steps, three seeds (docs/pqn_rnn.md).
# On two CPU cores the paper's convolutions take about eight minutes a seed, the patches one.
#   SEEDS="0 1 2" RUN_DIR=runs/encoders PYTHON=.venv/bin/python benchmark/encoders.sh
set -euo pipefail
cd "$(dirname "$0")/.."
for seed in ${SEEDS:-0 1 2}; do
    for encoder in ${ENCODERS:-patch paper}; do
        "${PYTHON:-.venv/bin/python}" pqn_rnn.py --env-id CartPoleEasy --partial-obs --hidden-size 128 \
            --total-timesteps 100000 --eval-every 10000 --encoder "$encoder" --seed "$seed" \
            --run-dir "${RUN_DIR:-runs/encoders}"
    done
done
"${PYTHON:-.venv/bin/python}" benchmark/report.py --runs "${RUN_DIR:-runs/encoders}/*" --by encoder \
    --out docs/figures/encoders --title "CartPoleEasy, partially observable"
