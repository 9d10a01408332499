#!/usr/bin/env bash
# The DQN scripts (docs/dqn_mlp.md, docs/dqn_rnn.md). From vectors: classic control, and one bit to remember for 30
# steps, five seeds. From pixels: both twins of CartPoleEasy, three seeds, one after the other. Settings: see common.sh;
# PIXEL_SEEDS has the seeds of the runs from pixels.
#   OUT=docs/figures benchmark/dqn.sh
SEEDS="${SEEDS:-0 1 2 3 4}"
WITHOUT="ENVS BUDGET TWINS"
source "$(dirname "$0")/common.sh"
vectors="--num-envs 10 --train-frequency 10 --batch-size 128 --buffer-size 100000 --hidden-size 128"
vectors="$vectors --learning-rate 2.5e-4 --target-network-frequency 2000 --exploration-fraction 0.5 --max-grad-norm 10 --gamma 0.99"
chain="--env-id MemoryChain-bsuite --env-params memory_length=30 $(smoke_or 300000 4096 --learning-starts 1024) --eval-every 25000"
chain="$chain --eval-episodes 100 --num-envs 16 --hidden-size 64 --learning-rate 1e-3 --target-network-frequency 5000"
chain="$chain --max-grad-norm 10 --gamma 0.99"
pole="--env-id CartPoleEasy --gamma 0.99 --eval-every 10000 $(smoke_or 150000 4096 --buffer-size 4096 --learning-starts 2048)"
for part in CartPole-v1 Acrobot-v1; do
    train dqn_mlp.py --env-id $part $vectors $(smoke_or 500000 1024 --learning-starts 256) $seeds
    report "dqn_$part" $part --by script --training
done
part=memory_chain
train dqn_rnn.py $chain --num-steps 64 --burn-in 32 --train-frequency 64 --no-prev-action $seeds
train dqn_mlp.py $chain $seeds
report dqn_memory_chain "MemoryChain-bsuite, 30 steps, no previous action" --by script --training
for seed in ${PIXEL_SEEDS:-0 1 2}; do
    part=pomdp
    train dqn_rnn.py $pole --partial-obs --learning-rate 2e-4 --seed "$seed"
    part=mdp
    train dqn_mlp.py $pole --learning-rate 1e-4 --seed "$seed"
    train dqn_mlp.py $pole --learning-rate 1e-4 --seed "$seed" --prioritized
done
part=pomdp
report dqn_pomdp "dqn_rnn.py, CartPoleEasy, partially observable" --by script --training
part=mdp
report dqn_mdp "dqn_mlp.py, CartPoleEasy, fully observable" --by prioritized --training
