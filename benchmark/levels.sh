#!/usr/bin/env bash
# The gap between training levels and unseen levels, by number of training levels (docs/levels.md).
# Settings: see common.sh; LEVELS has numbers of levels, 0 for all.
#   LEVELS="1 10 100 1000 0" benchmark/levels.sh
WITHOUT="TWINS"
ENVS="${ENVS:-MineSweeperEasy CountRecallEasy}"
source "$(dirname "$0")/common.sh"
case "$BUDGET" in
    smoke) LEVELS="${LEVELS:-1 0}" ;;
    cpu) LEVELS="${LEVELS:-1 10 100 0}" ;;
    *) LEVELS="${LEVELS:-1 10 100 1000 10000 0}" ;;
esac
steps=200000 episodes=512
[ "$BUDGET" = cpu ] || steps=10000000
[ "$BUDGET" != smoke ] || episodes=8
for env in $ENVS; do
    for levels in $LEVELS; do
        train pqn_mlp.py --env-id "$env" --no-partial-obs --env-params "num_levels=$levels" --gamma 0.9 --num-envs 128 \
            --num-steps 32 --num-minibatches 16 --learning-rate 5e-4 --exploration-fraction 0.1 --eval-every 50000 \
            $(smoke_or $steps) $seeds
    done
done
mapfile -t runs < <(runs_of "*__*")
analyse benchmark/levels.py levels --runs "${runs[@]}" --episodes $episodes
