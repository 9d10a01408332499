#!/usr/bin/env bash
# Learning from pixels on two CPU cores, three seeds one after the other (docs/pqn_mlp.md, ppo_mlp.md, pqn_rnn.md).
# benchmark/encoders.sh has more of pqn_rnn.py, ppo_memory.sh what ppo_rnn.py learns from pixels.
#   SEEDS="0 1 2" RUN_DIR=runs/pixels_cpu PYTHON=.venv/bin/python benchmark/pixels_cpu.sh
set -euo pipefail
cd "$(dirname "$0")/.."
runs="${RUN_DIR:-runs/pixels_cpu}"
train() { # environment, script and flags
    for seed in ${SEEDS:-0 1 2}; do
        # shellcheck disable=SC2086
        "${PYTHON:-.venv/bin/python}" $2 --env-id "$1" --seed "$seed" --checkpoint-every 0 --run-dir "$runs/$1"
    done
}
report() { # environment
    "${PYTHON:-.venv/bin/python}" benchmark/report.py --runs "$runs/$1/*" --by script --training \
        --out "docs/figures/pixels_cpu_$1" --title "$1"
}
train "CartPoleEasy" "pqn_mlp.py --total-timesteps 100000 --eval-every 10000"
train "CartPoleEasy" "ppo_mlp.py --total-timesteps 100000 --eval-every 10000"
report CartPoleEasy
train "BreakoutEasy" "pqn_mlp.py --total-timesteps 200000 --eval-every 20000"
train "BreakoutEasy" "pqn_rnn.py --total-timesteps 200000 --eval-every 20000 --hidden-size 128"
train "BreakoutEasy" "ppo_mlp.py --total-timesteps 350000 --eval-every 35000 --learning-rate 5e-4 --update-epochs 2 --gae-lambda 0.8"
report BreakoutEasy
