#!/usr/bin/env bash
# Trains the agents of the analysis pages, a few hours on two CPU cores, and analyses them (docs/evaluate.md,
# recall_density.md, last_frames.md, contamination.md, gap_and_bias.md): MineSweeper with a memory and without, on both
# twins.
# With the RUN_DIR of pqn_rnn.sh, runs of that list are not repeated. Settings: see common.sh.
#   benchmark/analysis.sh
WITHOUT="ENVS BUDGET TWINS"
source "$(dirname "$0")/common.sh"
flags="$cpu_steps" at=10 steps=15
[ "$BUDGET" != smoke ] || flags="$tiny" at=3 steps=3 # episodes of an untrained agent are short
for twin in pomdp mdp; do
    for memory in GRU MLP; do
        train pqn_rnn.py --env-id MineSweeperEasy "$(flag_of "$twin")" --memory $memory $flags $seeds
    done
done
mapfile -t runs < <(runs_of "*__*")
analyse gap_and_bias.py gap_and_bias --runs "${runs[@]}" --baseline MLP
analyse evaluate.py evaluate --runs "${runs[@]}" --twin both --episodes 256 --seed 1
analyse recall_density.py recall_density --runs "${runs[@]}" --episodes 64
mapfile -t runs < <(runs_of "*__GRU__*")
analyse last_frames.py last_frames --runs "${runs[@]}" --episodes 64
mapfile -t runs < <(runs_of "*pomdp*")
analyse contamination.py contamination --runs "${runs[@]}" --episodes 64 --at $at --first $at --steps $steps
pages
