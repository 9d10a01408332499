#!/usr/bin/env bash
# Speed from vectors with logging and evaluations on, one seed and five together, three times over (docs/ppo_mlp.md,
# docs/pqn_mlp.md): CartPole-v1, 4 environments x 128 steps, 4 epochs x 4 minibatches. Leave the machine alone meanwhile.
#   PYTHON=.venv/bin/python benchmark/classic_control_speed.sh
set -euo pipefail
cd "$(dirname "$0")/.."
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
flags="--env-id CartPole-v1 --num-envs 4 --num-steps 128 --num-minibatches 4 --update-epochs 4 --hidden-size 64 --log-every 20000"
for round in 1 2 3; do
    for seeds in 1 5; do
        for script in ppo_mlp pqn_mlp; do
            SECONDS=0
            # shellcheck disable=SC2086
            "${PYTHON:-.venv/bin/python}" "$script.py" $flags --total-timesteps 500000 --num-seeds "$seeds" \
                --checkpoint-every 0 --run-dir "$folder" > "$folder/log"
            echo "round $round  $script  seeds $seeds  $(grep '^speed' "$folder/log")  process $SECONDS s"
        done
    done
done
