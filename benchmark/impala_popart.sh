#!/usr/bin/env bash
# Many games at once (docs/impala_popart.md): rewards that differ by a factor of 1000 with and without PopArt, five seeds
# trained together; four games alone, together, and together with PopArt, the speed of these, and what the trained
# networks look at (docs/filter_comparison.md).
#   SEEDS="0 1 2" RUN_DIR=runs/impala_popart OUT=analysis/impala_popart PYTHON=.venv/bin/python benchmark/impala_popart.sh
set -euo pipefail
cd "$(dirname "$0")/.."
runs="${RUN_DIR:-runs/impala_popart}"
out="${OUT:-analysis/impala_popart}"
python="${PYTHON:-.venv/bin/python}"
seeds="${SEEDS:-0 1 2}"
games="BreakoutEasy CartPoleEasy NoisyCartPoleEasy MineSweeperEasy"
scales="--env-ids CartPoleEasy BreakoutEasy --popart-beta 0.01 --update-epochs 4 --total-timesteps 250000 --num-seeds 5"
scales="$scales --eval-every 50000 --eval-episodes 64"
together="--env-ids $games --total-timesteps 600000 --eval-every 60000 --save-every 30000 --checkpoint-every 30000"
alone="--total-timesteps 150000 --eval-every 15000 --save-every 30000 --checkpoint-every 30000"
train() { # folder and flags
    # shellcheck disable=SC2086
    "$python" impala_popart.py $2 --run-dir "$runs/$1"
}
report() { # folder, title, what tells the groups apart
    "$python" benchmark/report.py --runs "$runs/$1/*" --by "$3" --training --out "docs/figures/impala_$1" --title "$2"
}
for normalization in none popart; do
    train scales "$scales --reward-scales 10 0.01 --value-normalization $normalization"
done
report scales "Rewards times 10 and 0.01" value_normalization
for seed in $seeds; do
    train games "$together --exp-name together --seed $seed"
    train games "$together --exp-name popart --value-normalization popart --popart-beta 0.01 --seed $seed"
    for game in $games; do
        train games "--env-ids $game $alone --exp-name alone --seed $seed"
    done
done
report games "Four games alone and together" exp_name
# shellcheck disable=SC2086
"$python" benchmark/multitask_speed.py --env-ids $games
"$python" filter_comparison.py --runs "$runs/games/*" --by exp_name --pairs same-seed --out "$out/filters"
for name in together popart; do
    "$python" saliency.py --runs "$runs/games/*__${name}__none__${seeds%% *}__*" --kind perturbation --at 10 --steps 20 \
        --out "$out/saliency_$name"
done
