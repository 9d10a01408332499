#!/usr/bin/env bash
# Other libraries' environments (docs/other-environments-results.md). Each part can be trained alone: PARTS="mujoco procgen".
# Environments outside JAX train one seed after the other; memory always trains five seeds, popart one. Settings: see
# common.sh.
#   OUT=docs/figures benchmark/worlds.sh
WITHOUT="ENVS BUDGET TWINS STEPS"
source "$(dirname "$0")/common.sh"
PARTS="${PARTS:-mujoco device memory procgen pong popart}"

each_seed() { # script, flags: a training for each seed
    local seed
    for seed in $SEEDS; do train "$@" --seed "$seed"; done
}

for part in $PARTS; do
    case "$part" in
        mujoco) # CleanRL's hyper-parameters, but 8 environments x 256 steps instead of 1 x 2,048
            ppo="--num-envs 8 --num-steps 256 --num-minibatches 32 --update-epochs 10 --eval-every 100000 --eval-episodes 16"
            for id in InvertedPendulum-v4 Hopper-v4 HalfCheetah-v4 CartpoleBalance-v1; do
                each_seed ppo_continuous_action.py --env-id "envpool/$id" $ppo $(smoke_or 1000000)
            done
            report worlds_mujoco "ppo_continuous_action.py, MuJoCo" --by script --training
            ;;
        device)
            train ppo_continuous_action.py --env-id brax/inverted_pendulum $(smoke_or 300000) --eval-every 50000 $seeds
            train ppo_continuous_action.py --env-id playground/CartpoleBalance $(smoke_or 1000000) --eval-every 100000 $seeds
            report worlds_device "ppo_continuous_action.py, on the device" --by script --training
            ;;
        memory)
            ppo="--num-envs 128 --num-steps 64 --update-epochs 4 --learning-rate 5e-4 --gae-lambda 0.95 --gamma 0.99 --ent-coef 0.05"
            for memory in GRU MLP; do
                train ppo_rnn.py --env-id xminigrid/MiniGrid-MemoryS8 --memory "$memory" $ppo $(smoke_or 6000000) \
                    --eval-every 500000 --eval-episodes 64 --seed "$first_seed" --num-seeds 5
            done
            report worlds_memory "ppo_rnn.py, xminigrid/MiniGrid-MemoryS8" --by memory --training
            ;;
        procgen) # training levels, then the same agent on levels it has not seen
            for levels in 5 50 500; do
                each_seed ppo_mlp.py --env-id envpool/CoinrunEasy-v0 --env-params "num_levels=$levels" --gamma 0.99 \
                    --exp-name "levels_$levels" $(smoke_or 1000000) --eval-every 100000 --eval-episodes 64
            done
            report worlds_procgen "ppo_mlp.py, CoinrunEasy" --by exp_name --training
            mapfile -t runs < <(runs_of "*__*")
            analyse evaluate.py worlds_procgen_unseen --runs "${runs[@]}" --env-params num_levels=0 --episodes 256
            ;;
        pong)
            pong="--env-id atari/Pong-v5 --gamma 0.99 --eval-every 100000 --eval-episodes 8 --eval-env-params max_steps_in_episode=5000"
            each_seed pqn_mlp.py $pong --env-params frame_stack=4 $(smoke_or 2000000)
            each_seed pqn_rnn.py $pong --memory GRU $(smoke_or 2000000)
            report worlds_pong "Pong" --by script --training
            ;;
        popart) # the six games of TorchBeast's PopArt extension, in one program
            games="AirRaid Carnival DemonAttack NameThisGame Pong SpaceInvaders"
            # shellcheck disable=SC2086
            train impala_popart.py --env-ids $(printf 'atari/%s-v5 ' $games) --value-normalization popart \
                --env-params full_action_space=True clip_reward=False frame_stack=4 --num-envs 48 $(smoke_or 6000000) \
                --eval-every 500000 --eval-episodes 4 --eval-env-params max_steps_in_episode=3000 --seed "$first_seed"
            report worlds_popart "impala_popart.py, six Atari games" --by value_normalization --training
            ;;
        *) refuse "PARTS=$PARTS: use some of mujoco device memory procgen pong popart" ;;
    esac
    places=()
done
