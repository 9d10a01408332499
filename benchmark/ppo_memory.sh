#!/usr/bin/env bash
# What a memory is worth to PPO, five seeds trained together (docs/ppo_rnn.md): a bit shown first and asked for 30 steps
# later, and from pixels a pole and its cart of which only the velocities are seen, without noise and with much of it.
#   RUN_DIR=runs/ppo_memory PYTHON=.venv/bin/python benchmark/ppo_memory.sh
set -euo pipefail
cd "$(dirname "$0")/.."
runs="${RUN_DIR:-runs/ppo_memory}"
chain="--env-id MemoryChain-bsuite --env-params memory_length=30 --total-timesteps 500000 --eval-every 25000 --eval-episodes 100"
chain="$chain --num-envs 16 --num-steps 64 --num-minibatches 4 --hidden-size 64 --learning-rate 1e-3"
pole="--partial-obs --hidden-size 128 --eval-every 8000"
train() { # folder, script and flags
    # shellcheck disable=SC2086
    "${PYTHON:-.venv/bin/python}" $2 --num-seeds 5 --run-dir "$runs/$1"
}
report() { # folder, title
    "${PYTHON:-.venv/bin/python}" benchmark/report.py --runs "$runs/$1/*" --training --out "docs/figures/ppo_$1" --title "$2"
}
for memory in LRU GRU MinGRU; do
    train memory_chain "ppo_rnn.py $chain --no-prev-action --memory $memory"
done
train memory_chain "ppo_mlp.py $chain"
report memory_chain "PPO, MemoryChain-bsuite, 30 steps, no previous action"
train velocities "ppo_rnn.py --env-id CartPoleEasy $pole --total-timesteps 80000"
train velocities "ppo_mlp.py --env-id CartPoleEasy $pole --total-timesteps 80000"
report velocities "PPO, CartPoleEasy, partially observable"
train noise "ppo_rnn.py --env-id NoisyCartPoleHard $pole --total-timesteps 60000"
train noise "ppo_mlp.py --env-id NoisyCartPoleHard $pole --total-timesteps 60000"
report noise "PPO, NoisyCartPoleHard, partially observable"
