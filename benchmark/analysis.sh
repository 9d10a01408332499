#!/usr/bin/env bash
# Trains the agents of the analysis pages, a few hours on two CPU cores, and analyses them (docs/evaluate.md,
# saliency.md, recall_density.md, contamination.md, gap_and_bias.md). Settings: see common.sh.
#   benchmark/analysis.sh
WITHOUT="ENVS SEEDS BUDGET"
source "$(dirname "$0")/common.sh"
at=20 steps=25 seen_at=30
[ "$BUDGET" != smoke ] || at=3 steps=3 seen_at=3 # an untrained agent survives about 15 steps
# Skittles: half of the balls are hidden in each frame; with memory, without, and with memory when nothing is hidden
skittles="--env-id SkittlesEasy --start-e 0.2 --exploration-fraction 0.1 --end-e 0.02 --eval-every 100000"
skittles="$skittles --eval-episodes 64 --log-every 50000"
part=skittles
train pqn_rnn.py $before_tuning $skittles --partial-obs --memory GRU --hidden-size 128 $(smoke_or 3000000)
train pqn_mlp.py $skittles --partial-obs $(smoke_or 3000000)
train pqn_rnn.py $before_tuning $skittles --memory GRU --hidden-size 128 $(smoke_or 1000000)
# the first two with three seeds and a third of the steps
part=skittles_seeds
train pqn_rnn.py $before_tuning $skittles --num-seeds 3 --seed 1 --partial-obs --memory GRU --hidden-size 128 $(smoke_or 1000000)
train pqn_mlp.py $skittles --num-seeds 3 --seed 1 --partial-obs $(smoke_or 1000000)
# CartPole: pole hidden or visible, three seeds
part=cartpole
cartpole="--env-id CartPoleEasy --num-seeds 3 $(smoke_or 100000) --eval-every 50000 --eval-episodes 64"
for twin in $TWINS; do
    train pqn_mlp.py $cartpole "$(flag_of "$twin")"
    for memory in MinGRU GRU MLP; do
        train pqn_rnn.py $before_tuning $cartpole "$(flag_of "$twin")" --memory $memory --hidden-size 128
    done
done
mapfile -t runs < <(runs_of "*__*")
analyse gap_and_bias.py gap_and_bias --runs "${runs[@]}"
part=skittles_seeds
mapfile -t runs < <(runs_of "*__*")
analyse evaluate.py evaluate_seeds --runs "${runs[@]}" --twin both --episodes 256 --seed 1
part=skittles
mapfile -t runs < <(runs_of "*__*")
analyse evaluate.py evaluate --runs "${runs[@]}" --twin both --episodes 256 --seed 1
analyse recall_density.py recall_density --runs "${runs[@]}" --episodes 64
mapfile -t runs < <(runs_of "*pomdp*")
analyse contamination.py contamination --runs "${runs[@]}" --episodes 64 --at $at --first $at --steps $steps
mapfile -t runs < <(runs_of "*rnn*")
analyse saliency.py saliency --runs "${runs[@]}" --twin both
mapfile -t runs < <(runs_of "*pomdp*rnn*")
analyse saliency.py perturbation --runs "${runs[@]}" --kind perturbation --lag 0 1 2 --at $seen_at
pages
