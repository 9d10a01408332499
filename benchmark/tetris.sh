#!/usr/bin/env bash
# How much pqn_mlp.py learns in easier kinds of Tetris (benchmark/tetris_narrow.py, docs/pqn_mlp.md). Settings: see
# common.sh.
#   OUT=docs/figures benchmark/tetris.sh
WITHOUT="ENVS BUDGET TWINS"
source "$(dirname "$0")/common.sh"
for kind in Squares Narrow; do
    train pqn_mlp.py --env-id "benchmark.tetris_narrow:$kind" $(smoke_or 300000) --eval-every 50000 --eval-episodes 64 \
        --checkpoint-every 0 $seeds
done
report tetris "pqn_mlp.py, easier kinds of Tetris" --by script
