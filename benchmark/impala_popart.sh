#!/usr/bin/env bash
# Many games at once (docs/impala_popart.md): rewards that differ by a factor of 1000 with and without PopArt, five seeds
# trained together; four games alone, together, and together with PopArt, the speed of these, and what the trained
# networks look at (docs/filter_comparison.md). Settings: see common.sh; ENVS are the games.
#   OUT=docs/figures benchmark/impala_popart.sh
ENVS="${ENVS:-BreakoutEasy CartPoleEasy NoisyCartPoleEasy MineSweeperEasy}"
WITHOUT="BUDGET TWINS"
source "$(dirname "$0")/common.sh"
scales="--env-ids CartPoleEasy BreakoutEasy --popart-beta 0.01 --update-epochs 4 $(smoke_or 250000) --num-seeds 5"
scales="$scales --eval-every 50000 --eval-episodes 64"
count=$(wc -w <<< "$ENVS")
together="--env-ids $ENVS $(smoke_or $((150000 * count))) --eval-every $((15000 * count)) --save-every 30000 --checkpoint-every 30000"
alone="$(smoke_or 150000) --eval-every 15000 --save-every 30000 --checkpoint-every 30000"
part=scales
for normalization in none popart; do
    train impala_popart.py $scales --reward-scales 10 0.01 --value-normalization $normalization
done
report impala_scales "Rewards times 10 and 0.01" --by value_normalization --training
part=games
for seed in $SEEDS; do
    train impala_popart.py $together --exp-name together --seed "$seed"
    train impala_popart.py $together --exp-name popart --value-normalization popart --popart-beta 0.01 --seed "$seed"
    for game in $ENVS; do
        train impala_popart.py --env-ids "$game" $alone --exp-name alone --seed "$seed"
    done
done
report impala_games "Games alone and together" --by exp_name --training
[ "$BUDGET" = smoke ] || run benchmark/multitask_speed.py --env-ids $ENVS
mapfile -t runs < <(runs_of "*__*")
analyse filter_comparison.py filters --runs "${runs[@]}" --by exp_name --pairs same-seed
for name in together popart; do
    mapfile -t runs < <(runs_of "*__${name}__none__${SEEDS%% *}__*")
    analyse saliency.py "saliency_$name" --runs "${runs[@]}" --kind perturbation \
        --at 10 --steps 20
done
