#!/usr/bin/env bash
# Classic control from vectors, five seeds trained together (docs/pqn_mlp.md, ppo_mlp.md, ppo_continuous_action.md):
# a few minutes on two CPU cores.
#   RUN_DIR=runs/classic_control PYTHON=.venv/bin/python benchmark/classic_control.sh
set -euo pipefail
cd "$(dirname "$0")/.."
runs="${RUN_DIR:-runs/classic_control}"
small="--num-envs 4 --num-steps 128 --num-minibatches 4 --update-epochs 4 --hidden-size 64"
ppo="ppo_mlp.py $small"
pqn="pqn_mlp.py $small --q-lambda 0.9 --exploration-fraction 0.5 --end-e 0.02"
mountain="ppo_mlp.py --num-envs 64 --num-steps 256 --num-minibatches 8 --update-epochs 8 --hidden-size 64 --gamma 0.995"
continuous="ppo_continuous_action.py --update-epochs 10"
train() { # script and flags, environment, steps
    # shellcheck disable=SC2086
    "${PYTHON:-.venv/bin/python}" $1 --env-id "$2" --total-timesteps "$3" --num-seeds 5 --run-dir "$runs/$2"
}
report() {
    "${PYTHON:-.venv/bin/python}" benchmark/report.py --runs "$runs/$1/*" --by script --training \
        --out "docs/figures/classic_control_$1" --title "$1"
}
for env in CartPole-v1 Acrobot-v1; do
    train "$ppo" "$env" 500000
    train "$pqn" "$env" 500000
    report "$env"
done
train "$mountain --learning-rate 1e-3" MountainCar-v0 1000000
report MountainCar-v0
train "$continuous --num-envs 32 --num-steps 200 --num-minibatches 32 --gamma 0.95 --learning-rate 1e-3" Pendulum-v1 1000000
report Pendulum-v1
train "$continuous --num-envs 16 --num-steps 256 --num-minibatches 16 --ent-coef 0.001" MountainCarContinuous-v0 500000
report MountainCarContinuous-v0
