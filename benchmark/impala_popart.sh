#!/usr/bin/env bash
# Many games at once (docs/impala_popart.md): rewards that differ by a factor of 1000 with and without PopArt, five seeds
# trained together; four games alone, together, and together with PopArt, and the speed of these.
#   SEEDS="0 1 2" RUN_DIR=runs/impala_popart PYTHON=.venv/bin/python benchmark/impala_popart.sh
set -euo pipefail
cd "$(dirname "$0")/.."
runs="${RUN_DIR:-runs/impala_popart}"
python="${PYTHON:-.venv/bin/python}"
games="BreakoutEasy CartPoleEasy NoisyCartPoleEasy MineSweeperEasy"
scales="--env-ids CartPoleEasy BreakoutEasy --reward-scales 10 0.01 --popart-beta 0.01 --total-timesteps 350000"
scales="$scales --eval-every 25000 --eval-episodes 64 --num-seeds 5"
together="--env-ids $games --total-timesteps 600000 --eval-every 60000 --save-every 30000"
alone="--total-timesteps 150000 --eval-every 15000 --save-every 30000"
train() { # folder and flags
    # shellcheck disable=SC2086
    "$python" impala_popart.py $2 --run-dir "$runs/$1"
}
report() { # folder, title, what tells the groups apart
    "$python" benchmark/report.py --runs "$runs/$1/*" --by "$3" --training --out "docs/figures/impala_$1" --title "$2"
}
for normalization in none popart; do
    train scales "$scales --value-normalization $normalization"
done
report scales "Rewards times 10 and 0.01" value_normalization
for seed in ${SEEDS:-0 1 2}; do
    train games "$together --exp-name together --seed $seed"
    train games "$together --exp-name popart --value-normalization popart --popart-beta 0.01 --seed $seed"
    for game in $games; do
        train games "--env-ids $game $alone --exp-name alone --seed $seed"
    done
done
report games "Four games alone and together" exp_name
"$python" benchmark/multitask_speed.py --env-ids $games
