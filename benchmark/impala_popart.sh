#!/usr/bin/env bash
# Many games at once (docs/impala_popart.md). First rewards that differ by a factor of 1000, with and without PopArt, by
# default with five seeds. Then four games (ENVS) alone, together, and together with PopArt; the speed of these; and
# what the trained networks look at (docs/filter_comparison.md). Settings: see common.sh.
#   OUT=docs/figures benchmark/impala_popart.sh
ENVS="${ENVS:-BreakoutEasy CartPoleEasy NoisyCartPoleEasy MineSweeperEasy}"
WITHOUT="TWINS"
seeds_of_scales="${SEEDS:+given}"
source "$(dirname "$0")/common.sh"
[ -n "$seeds_of_scales" ] && seeds_of_scales="$seeds" || seeds_of_scales="--num-seeds 5"
count=$(wc -w <<< "$ENVS")
of_scales=250000 of_game=150000 large="" of_games=""
case "$BUDGET" in
    gpu | paper) # the paper has no such run
        of_scales=20000000 of_game=10000000 large="--num-minibatches 16 --precision bfloat16 --num-envs"
        of_games="$large $((64 * count))"
        ;;
esac
scales="--env-ids CartPoleEasy BreakoutEasy --popart-beta 0.01 --update-epochs 4 $(smoke_or $of_scales) $seeds_of_scales"
scales="$scales --eval-every $((of_scales / 5)) --eval-episodes 64 ${large:+$large 128}"
saved="--save-every $((of_game / 5)) --checkpoint-every $((of_game / 5))"
together="--env-ids $ENVS $(smoke_or $((of_game * count))) --eval-every $((of_game / 10 * count)) $saved $of_games"
alone="$(smoke_or $of_game) --eval-every $((of_game / 10)) $saved ${large:+$large 64}"
at=10 steps=20
[ "$BUDGET" != smoke ] || at=2 steps=3 # an untrained agent survives about eight steps
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
[ "$BUDGET" = smoke ] || run benchmark/multitask_speed.py --env-ids $ENVS --out "$OUT/multitask_speed.csv"
mapfile -t runs < <(runs_of "*__*")
analyse filter_comparison.py filters --runs "${runs[@]}" --by exp_name --pairs same-seed
for name in together popart; do
    mapfile -t runs < <(runs_of "*__${name}__none__${SEEDS%% *}__*")
    analyse saliency.py "saliency_$name" --runs "${runs[@]}" --kind perturbation \
        --at $at --steps $steps
done
pages
