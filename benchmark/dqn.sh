#!/usr/bin/env bash
# The DQN scripts (docs/dqn_mlp.md, docs/dqn_rnn.md): classic control from vectors and one bit to be remembered for 30 steps,
# five seeds trained together; from pixels both twins of a pole, three seeds one after the other.
#   RUN_DIR=runs/dqn PYTHON=.venv/bin/python benchmark/dqn.sh
set -euo pipefail
cd "$(dirname "$0")/.."
runs="${RUN_DIR:-runs/dqn}"
vectors="--num-envs 10 --train-frequency 10 --batch-size 128 --buffer-size 100000 --hidden-size 128"
vectors="$vectors --learning-rate 2.5e-4 --target-network-frequency 2000 --exploration-fraction 0.5 --max-grad-norm 10"
vectors="$vectors --total-timesteps 500000 --num-seeds 5"
chain="--env-id MemoryChain-bsuite --env-params memory_length=30 --total-timesteps 300000 --eval-every 25000"
chain="$chain --eval-episodes 100 --num-envs 16 --hidden-size 64 --learning-rate 1e-3 --target-network-frequency 5000"
chain="$chain --max-grad-norm 10 --num-seeds 5"
pole="--env-id CartPoleEasy --total-timesteps 150000 --eval-every 10000"
train() { # folder, script and flags
    # shellcheck disable=SC2086
    "${PYTHON:-.venv/bin/python}" $2 --run-dir "$runs/$1"
}
report() { # folder, title, what tells the groups apart
    "${PYTHON:-.venv/bin/python}" benchmark/report.py --runs "$runs/$1/*" --by "${3:-script}" --training \
        --out "docs/figures/dqn_$1" --title "$2"
}
for env in CartPole-v1 Acrobot-v1; do
    train "$env" "dqn_mlp.py --env-id $env $vectors"
    report "$env" "$env"
done
train memory_chain "dqn_rnn.py $chain --num-steps 64 --burn-in 32 --train-frequency 64 --no-prev-action"
train memory_chain "dqn_mlp.py $chain"
report memory_chain "MemoryChain-bsuite, 30 steps, no previous action"
for seed in 0 1 2; do
    train pomdp "dqn_rnn.py $pole --partial-obs --hidden-size 128 --seed $seed"
    train mdp "dqn_mlp.py $pole --seed $seed"
    train mdp "dqn_mlp.py $pole --seed $seed --prioritized"
done
report pomdp "dqn_rnn.py, CartPoleEasy, partially observable"
report mdp "dqn_mlp.py, CartPoleEasy, fully observable" prioritized
