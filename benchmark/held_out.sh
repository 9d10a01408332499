#!/usr/bin/env bash
# What a search of tune.py found for pqn_rnn.py, beside the defaults before it, with seeds that the search did not have
# (docs/tune.md); the search is the page's command. Settings: see common.sh.
#   OUT=docs/figures benchmark/held_out.sh
SEEDS="${SEEDS:-100 101 102 103 104}"
WITHOUT="BUDGET TWINS"
ENVS="${ENVS:-CartPoleEasy MineSweeperEasy SkittlesEasy}"
source "$(dirname "$0")/common.sh"
found="--learning-rate 0.001410690937355148 --q-lambda 0.8655078963604323 --exploration-fraction 0.589309171116382"
variants=("$before_tuning --num-steps 32" "$found --num-minibatches 8 --num-steps 16" "$found --num-minibatches 16 --num-steps 32")
parts=("$before_tuning --num-steps 16" "$found --num-minibatches 8 --num-steps 32") # one change without the other
common="--checkpoint-every 0 --eval-every 10000 --eval-episodes 64 $(smoke_or 60000)"
pole="--env-id CartPoleEasy --partial-obs --hidden-size 128"
part=games
for env in $ENVS; do
    for flags in "${variants[@]}"; do
        train pqn_rnn.py --env-id "$env" --partial-obs --hidden-size 128 $common $seeds $flags
    done
done
for flags in "${parts[@]}"; do train pqn_rnn.py $pole $common $seeds $flags; done
report held_out "pqn_rnn.py, partially observable" --by learning_rate+num_steps+num_minibatches
part=lru # with another memory, rounded, three seeds
for flags in "$before_tuning" "--learning-rate 1.4e-3 --q-lambda 0.87 --exploration-fraction 0.6 --num-minibatches 16"; do
    train pqn_rnn.py $pole $common --seed $first_seed --num-seeds 3 $flags --memory LRU
done
report held_out_lru "CartPoleEasy, partially observable, LRU" --by learning_rate+num_steps+num_minibatches
chain="--env-id MemoryChain-bsuite --env-params memory_length=20 --no-prev-action --hidden-size 64 --checkpoint-every 0"
chain="$chain --eval-every 50000 $(smoke_or 500000)"
part=chain # what rollouts of 16 steps cost
for flags in "${variants[@]:1}"; do train pqn_rnn.py $chain $seeds $flags; done
report held_out_chain "MemoryChain-bsuite, 20 steps" --by num_steps+num_minibatches
part=fresh # the defaults, with seeds that nothing was chosen by
fresh="--seed $((first_seed + 100)) --num-seeds $num_seeds"
for flags in "$before_tuning" ""; do
    train pqn_rnn.py $pole $common $fresh $flags
    train pqn_rnn.py $chain $fresh $flags
done
report held_out_fresh "Defaults before the search and after it" --by learning_rate
