#!/usr/bin/env bash
# Why Navigator is hard: trains pqn_mlp.py on a map of the whole field, and on the same map centred on the player
# (benchmark/navigator_views.py, docs/pqn_mlp.md). Settings: see common.sh.
#   OUT=docs/figures benchmark/navigator.sh
WITHOUT="ENVS BUDGET TWINS"
source "$(dirname "$0")/common.sh"
for view in Fixed Centred; do
    train pqn_mlp.py --env-id "benchmark.navigator_views:$view" $(smoke_or 500000) --eval-every 50000 --eval-episodes 64 \
        --checkpoint-every 0 $seeds
done
report navigator "pqn_mlp.py, NavigatorEasy as a map" --by script
