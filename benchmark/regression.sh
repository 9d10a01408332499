#!/usr/bin/env bash
# Checks that the working tree learns as well as a commit: trains the same small tasks with both versions of the
# scripts and compares the returns. A script that got worse is trained again with as many new seeds (CONTRIBUTING.md).
# Settings: see common.sh.
#   benchmark/regression.sh [COMMIT]          (default: HEAD)
SEEDS="${SEEDS:-0 1 2 3 4}"
commit="$(git -C "$(dirname "$0")/.." rev-parse --short "${1:-HEAD}^{commit}")" || exit 2
WITHOUT="ENVS BUDGET TWINS"
source "$(dirname "$0")/common.sh"
[ $num_seeds -gt 1 ] || refuse "SEEDS=$SEEDS: one seed says nothing about a difference, use two or more"
changed="$(git diff HEAD -- '*.py'; git ls-files -o --exclude-standard -z -- '*.py' | xargs -0r cat)"
now="$(git rev-parse --short HEAD)_$(cksum <<< "$changed" | cut -d ' ' -f 1)"
# copies, so that the working tree can be edited meanwhile
before="$RUN_DIR/scripts_$commit" after="$RUN_DIR/scripts_$now"

copy() { # folder: unpacks a tar archive from standard input into it, unless it exists
    local unpacked
    if [ -d "$1" ]; then cat > /dev/null && return; fi
    unpacked="$(mktemp -d "$RUN_DIR/unpacking_XXXXXX")"
    tar -x -C "$unpacked"
    mv -T "$unpacked" "$1"
}
if [ -z "$DRY_RUN" ]; then
    mkdir -p "$RUN_DIR"
    git archive "$commit" | copy "$before"
    git ls-files -co --exclude-standard -z -- '*.py' popgym_arcade | { xargs -0 ls -d 2> /dev/null || true; } | tar -c -T - | copy "$after"
fi
vectors="--env-id CartPole-v1 --num-envs 4 --num-steps 128 --num-minibatches 4 --update-epochs 4 --hidden-size 64"
chain="--env-id MemoryChain-bsuite --env-params memory_length=10 --no-prev-action --hidden-size 64 --gamma 0.99"
replay="--env-id CartPole-v1 --num-envs 10 --train-frequency 10 --batch-size 128 --buffer-size 50000 --hidden-size 128"
replay="$replay --learning-rate 2.5e-4 --target-network-frequency 2000 --exploration-fraction 0.5 --max-grad-norm 10 --gamma 0.99"
sequences="--num-envs 16 --num-steps 32 --burn-in 16 --train-frequency 64 --learning-rate 1e-3 --max-grad-norm 10"
sequences="$sequences --target-network-frequency 2000 --buffer-size 50000"
two_scales="--env-ids CartPole-v1 CartPole-v1 --reward-scales 1 100 --value-normalization popart --memory MinGRU --hidden-size 64"
continuous="--env-id Pendulum-v1 --num-envs 32 --num-steps 200 --num-minibatches 32 --update-epochs 10 --gamma 0.95"

steps() { # steps, evaluations, then as for smoke_or -> flags
    smoke_or "$1 --eval-every $(($1 / $2))" "${@:3}"
}

train_one() { # script, flags: trains the script of $folder with $seeds; skips scripts that $only leaves out
    [[ -z "$only" || " $only " == *" ${1%.py} "* ]] || return 0
    train "$folder/$1" "${@:2}" $seeds
}

train_both() { # runs everything with both versions
    local folder
    for folder in "$before" "$after"; do
        part="${folder##*/scripts_}"
        train_one pqn_mlp.py $vectors --learning-rate 5e-4 --gamma 0.99 --q-lambda 0.9 --exploration-fraction 0.5 \
            $(steps 100000 10)
        train_one ppo_mlp.py $vectors $ppo_before_tuning $(steps 100000 10)
        train_one dqn_mlp.py $replay $(steps 100000 10 1024 --learning-starts 256)
        train_one pqn_rnn.py $chain --num-envs 32 --num-steps 32 --q-lambda 0.95 --learning-rate 1e-3 $(steps 150000 10)
        train_one ppo_rnn.py $chain --num-envs 16 --num-steps 32 --num-minibatches 4 --update-epochs 4 \
            --gae-lambda 0.95 --learning-rate 1e-3 $(steps 150000 10)
        train_one dqn_rnn.py $chain $sequences $(steps 100000 10 1024 --learning-starts 256)
        train_one impala_popart.py $two_scales $(steps 200000 10)
        train_one pqn_rnn.py --env-id CartPoleEasy --partial-obs --hidden-size 128 --num-envs 32 --num-steps 32 \
            --gamma 0.99 $(steps 30000 3)
        train_one ppo_continuous_action.py $continuous --learning-rate 1e-3 $(steps 200000 10)
        mapfile -t found < <(runs_of "*__*")
        [ "$folder" != "$before" ] || earlier=("${found[@]}")
    done
    places=()
}

only="" # scripts to train again, separated by spaces; empty: all
train_both
comparison=(benchmark/regression.py --before "${earlier[@]}" --after "${found[@]}")
if [ -n "$DRY_RUN" ]; then
    print_command "${comparison[@]}"
    exit
fi
code=0
call "${comparison[@]}" > "$RUN_DIR/comparison" || code=$?
cat "$RUN_DIR/comparison"
if [ $code -eq 3 ] && [ ${#failed[@]} -eq 0 ]; then
    only="$(sed -n 's/^worse or missing: //p' "$RUN_DIR/comparison" | tr , '\n' | awk '{ print $1 }' | sort -u | xargs)"
    echo "training these again with new seeds to confirm"
    seeds="--seed $((first_seed + num_seeds)) --num-seeds $num_seeds"
    train_both
    comparison+=(--again-before "${earlier[@]}" --again-after "${found[@]}")
    code=0
    call "${comparison[@]}" || code=$?
    [ $code -ne 3 ] || [ ${#failed[@]} -gt 0 ] || exit 1 # the table shows which
fi
[ $code -eq 0 ] || failed+=("exit $code: ${comparison[*]}")
