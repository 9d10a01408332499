#!/usr/bin/env bash
# Classic control from vectors, five seeds (docs/pqn_mlp.md, ppo_mlp.md, ppo_continuous_action.md): a few minutes on two
# CPU cores. dqn.sh does the same with DQN. Settings: see common.sh.
#   OUT=docs/figures benchmark/classic_control.sh
KNOWN="CartPole-v1 Acrobot-v1 MountainCar-v0 Pendulum-v1 MountainCarContinuous-v0"
ENVS="${ENVS:-$KNOWN}"
SEEDS="${SEEDS:-0 1 2 3 4}"
WITHOUT="BUDGET TWINS"
OWN_IDS=1
source "$(dirname "$0")/common.sh"
small="--num-envs 4 --num-steps 128 --num-minibatches 4 --update-epochs 4 --hidden-size 64"
for env in $ENVS; do
    [[ " $KNOWN " == *" $env "* ]] || refuse "ENVS=$ENVS: no settings for $env, use some of $KNOWN"
done
for env in $ENVS; do
    part="$env"
    case "$env" in
        CartPole-v1 | Acrobot-v1)
            train ppo_mlp.py --env-id "$env" $small $ppo_before_tuning $(smoke_or 500000) $seeds
            train pqn_mlp.py --env-id "$env" $small --learning-rate 5e-4 --gamma 0.99 --q-lambda 0.9 --exploration-fraction 0.5 \
                --end-e 0.02 $(smoke_or 500000) $seeds
            ;;
        MountainCar-v0)
            train ppo_mlp.py --env-id "$env" --num-envs 64 --num-steps 256 --num-minibatches 8 --update-epochs 8 --hidden-size 64 \
                --gamma 0.995 --gae-lambda 0.95 --learning-rate 1e-3 $(smoke_or 1000000) $seeds
            ;;
        Pendulum-v1)
            train ppo_continuous_action.py --env-id "$env" --update-epochs 10 --num-envs 32 --num-steps 200 --num-minibatches 32 \
                --gamma 0.95 --learning-rate 1e-3 $(smoke_or 1000000) $seeds
            ;;
        MountainCarContinuous-v0)
            train ppo_continuous_action.py --env-id "$env" --update-epochs 10 --num-envs 16 --num-steps 256 --num-minibatches 16 \
                --ent-coef 0.001 $(smoke_or 500000) $seeds
            ;;
    esac
    report "classic_control_$env" "$env" --by script --training
done
