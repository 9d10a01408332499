#!/usr/bin/env bash
# The ten games (docs/benchmark.md): pqn_mlp.py on the fully observable twins, and pqn_rnn.py on the partially observable
# ones, with MEMORIES and without memory (MLP). The runs are those of pqn_mlp.sh and pqn_rnn.sh: with the same
# RUN_DIR, none is repeated. Settings: see common.sh.
#   MEMORIES="GRU LRU" benchmark/ten_games.sh
WITHOUT="BUDGET TWINS"
source "$(dirname "$0")/common.sh"
MEMORIES="${MEMORIES:-GRU MinGRU}"
for env in $ENVS; do
    case "$BUDGET" in
        smoke) flags="$tiny" ;;
        *) flags="$cpu_steps $(pqn_flags_of "$env")" ;;
    esac
    train pqn_mlp.py --env-id "$env" --no-partial-obs $flags $seeds
    for memory in $MEMORIES MLP; do
        train pqn_rnn.py --env-id "$env" --partial-obs --memory "$memory" $flags $seeds
    done
done
report benchmark "Ten games" --by script+memory --training
