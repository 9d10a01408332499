#!/usr/bin/env bash
# Which memory, for which game, how far back (docs/study.md). Settings: see common.sh. PARTS, all of them by default:
#   pqn      pqn_rnn.py with MEMORIES, and MLP (no memory), on both twins of ENVS
#   ppo      ppo_rnn.py with PPO_MEMORIES, and MLP, on the partially observable twins of PPO_ENVS
#   analyse  the analyses of the agents of part pqn
#   PARTS=pqn MEMORIES="MinGRU LRU" benchmark/memory_study.sh
STEPS="${STEPS:-300000}"
case "${BUDGET:-cpu}" in
    smoke)
        ENVS="${ENVS:-CartPoleEasy}" MEMORIES="${MEMORIES:-MinGRU}"
        DEEP_ENVS="${DEEP_ENVS:-$ENVS}" DEEP_MEMORIES="${DEEP_MEMORIES:-$MEMORIES}" PPO_ENVS="${PPO_ENVS:-$ENVS}" PPO_MEMORIES="${PPO_MEMORIES:-MinGRU}"
        ;;
    *) ENVS="${ENVS:-BreakoutEasy CartPoleEasy CountRecallEasy MineSweeperEasy NoisyCartPoleEasy SkittlesEasy \
NoisyCartPoleMedium SkittlesMedium}" ;;
esac
source "$(dirname "$0")/common.sh"
PARTS="${PARTS:-pqn ppo analyse}"
MEMORIES="${MEMORIES:-MinGRU GRU LSTM LRU FFM FART GDN Attention}"
DEEP_ENVS="${DEEP_ENVS:-CountRecallEasy MineSweeperEasy NoisyCartPoleEasy}" # for all analyses but gap and bias
DEEP_MEMORIES="${DEEP_MEMORIES:-MinGRU GRU LRU FART}"
PPO_ENVS="${PPO_ENVS:-CountRecallEasy MineSweeperEasy NoisyCartPoleEasy}"
PPO_MEMORIES="${PPO_MEMORIES:-MinGRU GRU}"

flags_of() { # algorithm, id -> flags
    case "$BUDGET $1" in
        "smoke "*) echo "$tiny" ;;
        "cpu pqn") echo "$cpu_steps $(pqn_flags_of "$2")" ;;
        "cpu ppo") echo "$cpu_steps" ;;
        "gpu "*) echo "--total-timesteps 10000000 --hidden-size 512 --num-envs 512 --num-minibatches 16 --precision bfloat16 --eval-every 500000 --eval-episodes 128" ;;
        "paper "*) echo "$(published "$1") --hidden-size 512 --total-timesteps 100000000" ;;
    esac
}

train_pqn() {
    local env twin memory
    for env in $ENVS; do
        for twin in $TWINS; do
            for memory in $MEMORIES MLP; do
                train pqn_rnn.py --env-id "$env" "$(flag_of "$twin")" --memory "$memory" $(flags_of pqn "$env") --log-churn $seeds
            done
        done
    done
}

train_ppo() {
    local env memory
    for env in $PPO_ENVS; do
        for memory in $PPO_MEMORIES MLP; do
            train ppo_rnn.py --env-id "$env" --partial-obs --memory "$memory" $(flags_of ppo "$env") $seeds
        done
    done
}

analyse_all() {
    local env memory episodes=64 traced=16 at=20 steps=25 runs deep=() # traced: episodes whose gradients are taken
    [ "$BUDGET" != smoke ] || episodes=2 traced=2 at=3 steps=3
    mapfile -t runs < <(runs_of "*__pqn_rnn__*")
    analyse gap_and_bias.py gap_and_bias --runs "${runs[@]}" --no-memory MLP
    for env in $DEEP_ENVS; do
        for memory in $DEEP_MEMORIES; do
            mapfile -t -O ${#deep[@]} deep < <(runs_of "${env}__*__pqn_rnn__${memory}__*")
        done
    done
    analyse evaluate.py evaluate --runs "${deep[@]}" --twin both --episodes $episodes --seed 1
    analyse contamination.py contamination --runs "${deep[@]}" --episodes $episodes --at $at --first $at --steps $steps
    analyse recall_density.py recall_density --runs "${deep[@]}" --episodes $traced
    analyse last_frames.py last_frames --runs "${deep[@]}" --episodes $episodes --traced $traced
    mapfile -t runs < <(runs_of "${DEEP_ENVS%% *}__*__pqn_rnn__${DEEP_MEMORIES%% *}__*")
    analyse saliency.py saliency --runs "${runs[@]}" --seed "$first_seed" --twin both --kind gradient perturbation
    pages
}

compare_ppo() { # PPO next to PQN with the same memories
    local env memory runs=()
    for env in $PPO_ENVS; do
        for memory in $PPO_MEMORIES MLP; do
            mapfile -t -O ${#runs[@]} runs < <(runs_of "${env}__pomdp__*__${memory}__*")
        done
    done
    run benchmark/report.py --runs "${runs[@]}" --out "$OUT/memory_study_ppo" --title "PPO and PQN" --by script+memory
}

for name in $PARTS; do
    case "$name" in
        pqn)
            train_pqn
            report memory_study "Memories on both twins"
            mapfile -t runs < <(runs_of "*__*")
            run benchmark/churn.py --runs "${runs[@]}" --out "$OUT/memory_study_churn"
            ;;
        ppo)
            train_ppo
            compare_ppo
            ;;
        analyse) analyse_all ;;
        *) refuse "PARTS=$PARTS: use some of pqn ppo analyse" ;;
    esac
done
