#!/usr/bin/env bash
# Searches hyper-parameters of pqn_mlp.py on five fully observable games with one seed (docs/tune.md). The other games,
# and the seeds of the pages, are held out. The same command resumes the search. Settings: see common.sh; TRIALS is
# their number.
#   TRIALS=16 benchmark/search.sh
WITHOUT="BUDGET ENVS SEEDS TWINS"
source "$(dirname "$0")/common.sh"
TRIALS="${TRIALS:-16}"
study="$RUN_DIR/pqn_mlp"
if [ -e "$study/args.json" ]; then
    run tune.py --study "$study" --trials "$TRIALS"
else
    run tune.py --study "$study" --trials "$TRIALS" --script pqn_mlp --startup-trials 4 --seed 1000 --num-seeds 1 \
        --env-ids MineSweeperEasy SkittlesEasy CountRecallEasy BreakoutEasy CartPoleEasy \
        --search learning_rate=4e-4..1.6e-3:log gamma=0.9,0.95,0.97 q_lambda=0.5..0.85 num_envs=32,64 \
        num_minibatches=16,32 update_epochs=2,3 exploration_fraction=0.1..0.3 \
        -- --total-timesteps 100000 --eval-every 33000 --eval-episodes 64 --checkpoint-every 0
fi
