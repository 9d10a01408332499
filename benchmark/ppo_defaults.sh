#!/usr/bin/env bash
# Which of PPO's defaults matter, and why PPO used to settle for safe behaviour: trains ppo_mlp.py with one default
# changed at a time, and with all earlier defaults (docs/tune.md). Settings: see common.sh.
#   OUT=docs/figures benchmark/ppo_defaults.sh
ENVS="${ENVS:-MineSweeperEasy SkittlesEasy}"
WITHOUT="BUDGET TWINS"
source "$(dirname "$0")/common.sh"
for env in $ENVS; do
    flags="--env-id $env --no-partial-obs $(smoke_or 100000) --eval-every 20000 --eval-episodes 64 --checkpoint-every 0 $seeds"
    train ppo_mlp.py --exp-name defaults $flags
    train ppo_mlp.py --exp-name gamma_0.99 $flags --gamma 0.99
    train ppo_mlp.py --exp-name lambda_0.95 $flags --gae-lambda 0.95
    train ppo_mlp.py --exp-name no_entropy $flags --ent-coef 0
    train ppo_mlp.py --exp-name entropy_0.05 $flags --ent-coef 0.05
    train ppo_mlp.py --exp-name four_epochs $flags --update-epochs 4
    train ppo_mlp.py --exp-name rollouts_of_128 $flags --num-steps 128
    train ppo_mlp.py --exp-name raw_rewards $flags --no-norm-reward
    train ppo_mlp.py --exp-name earlier_defaults $flags --num-steps 128 --update-epochs 4 $ppo_before_tuning
done
report ppo_defaults "ppo_mlp.py, fully observable" --by exp_name
