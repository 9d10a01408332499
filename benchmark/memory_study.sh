#!/usr/bin/env bash
# Which memory, for which game, how far back (docs/study.md). Settings: see common.sh. PARTS, in this order, all of them
# by default:
#   pqn      pqn_rnn.py with MEMORIES, and MLP (no memory), on both twins of ENVS
#   ppo      ppo_rnn.py with PPO_MEMORIES, and MLP, on the partially observable twins of PPO_ENVS
#   length   how far back each memory reaches: benchmark/memory_length.sh with MEMORIES
#   analyse  gap and bias of part pqn, and the slower analyses of its DEEP_ENVS and DEEP_MEMORIES
#   PARTS=pqn MEMORIES="MinGRU LRU" benchmark/memory_study.sh
STEPS="${STEPS:-300000}"
if [ "${BUDGET:-cpu}" = smoke ]; then
    ENVS="${ENVS:-CartPoleEasy}" MEMORIES="${MEMORIES:-MinGRU}"
fi
DEEP_ENVS="${DEEP_ENVS:-${ENVS:-MineSweeperEasy CountRecallEasy NoisyCartPoleEasy}}"
DEEP_MEMORIES="${DEEP_MEMORIES:-${MEMORIES:-MinGRU GRU LRU FART}}"
PPO_ENVS="${PPO_ENVS:-${ENVS:-CountRecallEasy MineSweeperEasy NoisyCartPoleEasy}}"
PPO_MEMORIES="${PPO_MEMORIES:-${MEMORIES:-MinGRU GRU}}"
ENVS="${ENVS:-BreakoutEasy CartPoleEasy CountRecallEasy MineSweeperEasy NoisyCartPoleEasy SkittlesEasy NoisyCartPoleMedium SkittlesMedium}"
source "$(dirname "$0")/common.sh"
PARTS="${PARTS:-pqn ppo length analyse}"
MEMORIES="${MEMORIES:-MinGRU GRU LSTM LRU FFM FART GDN Attention}"
of_pqn=() deep=() shown=() # patterns of run folders: for gap and bias, the other analyses, saliency

flags_of() { # algorithm, id -> flags
    case "$BUDGET $1" in
        "smoke "*) echo "$tiny" ;;
        "cpu pqn") echo "$cpu_steps $(pqn_flags_of "$2")" ;;
        "cpu ppo") echo "$cpu_steps" ;;
        "gpu "*) echo "$gpu --hidden-size 512" ;;
        "paper "*) echo "$(published "$1") --hidden-size 512 --total-timesteps 100000000" ;;
    esac
}

among() { # word, list of words: whether it is one of them
    [[ " $2 " == *" $1 "* ]]
}

pqn_with() { # id, twin, memory -> script and flags
    echo pqn_rnn.py --env-id "$1" "$(flag_of "$2")" --memory "$3" $(flags_of pqn "$1") --log-churn $seeds
}

train_pqn() {
    local env twin memory runs compared=()
    for env in $ENVS; do
        for twin in $TWINS; do
            for memory in $MEMORIES MLP; do
                train $(pqn_with "$env" "$twin" "$memory")
                runs="${places[-1]}/*__*"
                of_pqn+=("$runs")
                if among "$env" "$DEEP_ENVS" && among "$memory" "$DEEP_MEMORIES"; then deep+=("$runs"); fi
                if [ "$env $memory" = "${DEEP_ENVS%% *} ${DEEP_MEMORIES%% *}" ]; then shown+=("$runs"); fi
            done
        done
    done
    if [[ $ENVS == *" "* ]]; then compared=(--against MLP); fi # over several ids together
    report memory_study "Memories on both twins" "${compared[@]}"
    run benchmark/churn.py --runs "${of_pqn[@]}" --out "$OUT/memory_study_churn"
}

train_ppo() { # and compares it with PQN, as far as that was trained, also in an earlier call
    local env memory pqn runs=()
    for env in $PPO_ENVS; do
        for memory in $PPO_MEMORIES MLP; do
            train ppo_rnn.py --env-id "$env" --partial-obs --memory "$memory" $(flags_of ppo "$env") $seeds
            runs+=("${places[-1]}/*__*")
            pqn="$(place_of $(pqn_with "$env" pomdp "$memory"))"
            if [ -e "$pqn/complete" ] || among "$pqn" "${places[*]}"; then runs+=("$pqn/*__*"); fi
        done
    done
    run benchmark/report.py --runs "${runs[@]}" --out "$OUT/memory_study_ppo" --title "PPO and PQN" --by script+memory
}

measure_lengths() {
    env -u ENVS -u TWINS -u STEPS -u PARTS MEMORIES="$MEMORIES MLP" RUN_DIR="$RUN_DIR/length" OUT="$OUT" \
        benchmark/memory_length.sh & # in the background, as in `call`
    child=$!
    wait "$child" || failed+=("exit $?: benchmark/memory_length.sh")
    child=""
}

analyse_pqn() {
    local episodes=64 traced=16 at=20 steps=25 step=12 # traced: episodes whose gradients are taken; step: explained
    [ "$BUDGET" != smoke ] || episodes=2 traced=2 at=3 steps=3 step=3
    [ ${#shown[@]} -gt 0 ] ||
        refuse "PARTS=$PARTS: analyse needs pqn, with the first of DEEP_ENVS and DEEP_MEMORIES among ENVS and MEMORIES"
    analyse gap_and_bias.py gap_and_bias --runs "${of_pqn[@]}" --baseline MLP --normalised
    analyse evaluate.py evaluate --runs "${deep[@]}" --twin both --episodes $episodes --seed 1
    analyse contamination.py contamination --runs "${deep[@]}" --episodes $episodes --at $at --first $at --steps $steps
    analyse recall_density.py recall_density --runs "${deep[@]}" --episodes $traced
    analyse last_frames.py last_frames --runs "${deep[@]}" --episodes $episodes --traced $traced
    analyse saliency.py saliency --runs "${shown[@]}" --seed "$((first_seed + 1))" --kind gradient perturbation \
        --at $step --lag 0 1 2
    pages
}

for name in $PARTS; do
    among "$name" "pqn ppo length analyse" || refuse "PARTS=$PARTS: use some of pqn ppo length analyse"
done
if among pqn "$PARTS"; then train_pqn; fi
if among ppo "$PARTS"; then train_ppo; fi
if among length "$PARTS"; then measure_lengths; fi
if among analyse "$PARTS"; then analyse_pqn; fi
