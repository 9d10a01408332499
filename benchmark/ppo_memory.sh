#!/usr/bin/env bash
# What memory is worth to PPO (docs/ppo_rnn.md): one bit that is shown first and asked for 30 steps later, and the
# partially observable twins of CartPoleEasy and NoisyCartPoleHard, which show only velocities. For the bit, also
# measures which share of the gradient falls on it (docs/recall_density.md; written to RUN_DIR/report). Settings: see
# common.sh.
#   OUT=docs/figures benchmark/ppo_memory.sh
SEEDS="${SEEDS:-0 1 2 3 4}"
WITHOUT="ENVS BUDGET TWINS"
source "$(dirname "$0")/common.sh"
chain="--env-id MemoryChain-bsuite --env-params memory_length=30 $(smoke_or 500000) --eval-every 25000 --eval-episodes 100"
chain="$chain --num-envs 16 --num-steps 64 --num-minibatches 4 --hidden-size 64 --learning-rate 1e-3"
chain="$chain --update-epochs 4 --gamma 0.99 --gae-lambda 0.95"
pole="--partial-obs --hidden-size 128 --eval-every 8000"
part=memory_chain
for memory in LRU GRU MinGRU; do
    train ppo_rnn.py $chain --no-prev-action --memory $memory $seeds
done
train ppo_mlp.py $chain $seeds
report ppo_memory_chain "PPO, MemoryChain-bsuite, 30 steps, no previous action" --training
mapfile -t runs < <(runs_of "*__*")
for task in "velocities CartPoleEasy 80000" "noise NoisyCartPoleHard 60000"; do
    read -r part env steps <<< "$task"
    for script in ppo_rnn.py ppo_mlp.py; do
        train $script --env-id "$env" $pole $(smoke_or "$steps") $seeds
    done
    report "ppo_$part" "PPO, $env, partially observable" --training
done
OUT="$RUN_DIR/report"
analyse recall_density.py recall_density_chain --runs "${runs[@]}" --episodes 64
pages
