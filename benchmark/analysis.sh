#!/usr/bin/env bash
# The agents and pictures of the analysis pages (docs/evaluate.md, saliency.md, recall_density.md, contamination.md,
# gap_and_bias.md). Trainings first: some hours on two CPU cores.
#   RUN_DIR=runs/analysis OUT=analysis/pages PYTHON=.venv/bin/python benchmark/analysis.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
runs="${RUN_DIR:-runs/analysis}"
out="${OUT:-analysis/pages}"

# Skittles, half of whose blocks are hidden in each frame: with memory, without, and with memory where nothing is hidden
skittles="--env-id SkittlesEasy --start-e 0.2 --exploration-fraction 0.1 --end-e 0.02 --eval-every 100000"
skittles="$skittles --eval-episodes 64 --log-every 50000"
once="$skittles --run-dir $runs/skittles"
thrice="$skittles --run-dir $runs/skittles_seeds --num-seeds 3 --seed 1 --total-timesteps 1000000"
# shellcheck disable=SC2086
{
    "$python" pqn_rnn.py $once --partial-obs --memory GRU --hidden-size 128 --total-timesteps 3000000
    "$python" pqn_mlp.py $once --partial-obs --total-timesteps 3000000
    "$python" pqn_rnn.py $once --memory GRU --hidden-size 128 --total-timesteps 1000000
    # the first two over three seeds, trained together, at a third of the steps
    "$python" pqn_rnn.py $thrice --partial-obs --memory GRU --hidden-size 128
    "$python" pqn_mlp.py $thrice --partial-obs
}
"$python" evaluate.py --runs "$runs/skittles_seeds/*" --twin both --episodes 256 --seed 1 --out "$out/evaluate_seeds"
"$python" evaluate.py --runs "$runs/skittles/*" --twin both --episodes 256 --seed 1 --out "$out/evaluate"
"$python" saliency.py --runs "$runs/skittles/*rnn*" --twin both --out "$out/saliency"
"$python" saliency.py --runs "$runs/skittles/*pomdp*rnn*" --kind perturbation --lag 0 1 2 --at 30 --out "$out/perturbation"
"$python" recall_density.py --runs "$runs/skittles/*" --episodes 64 --out "$out/recall_density"
"$python" contamination.py --runs "$runs/skittles/*pomdp*" --episodes 64 --at 20 --first 20 --steps 25 --out "$out/contamination"

# CartPole, the pole hidden or not, three seeds together
cartpole="--env-id CartPoleEasy --num-seeds 3 --total-timesteps 100000 --eval-every 50000 --eval-episodes 64"
for twin in --partial-obs --no-partial-obs; do
    # shellcheck disable=SC2086
    "$python" pqn_mlp.py $cartpole $twin --run-dir "$runs/cartpole"
    for memory in MinGRU GRU MLP; do
        # shellcheck disable=SC2086
        "$python" pqn_rnn.py $cartpole $twin --memory "$memory" --hidden-size 128 --run-dir "$runs/cartpole"
    done
done
"$python" gap_and_bias.py --runs "$runs/cartpole/*" --out "$out/gap_and_bias"
