#!/usr/bin/env bash
# Does it learn as it did? The same small trainings by the scripts of a commit and by those of the working tree, and the
# differences of their returns (CONTRIBUTING.md). Some ten minutes on two cores. Settings: see common.sh.
#   benchmark/regression.sh [COMMIT]          COMMIT: HEAD
SEEDS="${SEEDS:-0 1 2 3 4}"
commit="$(git -C "$(dirname "$0")/.." rev-parse --short "${1:-HEAD}^{commit}")" || exit 2
WITHOUT="ENVS BUDGET TWINS"
source "$(dirname "$0")/common.sh"
before="$RUN_DIR/scripts_$commit"
if [ -z "$DRY_RUN" ] && [ ! -d "$before" ]; then
    mkdir -p "$RUN_DIR"
    unpacked="$(mktemp -d "$RUN_DIR/unpacking_XXXXXX")"
    git archive "$commit" | tar -x -C "$unpacked"
    mv "$unpacked" "$before"
fi
vectors="--env-id CartPole-v1 --num-envs 4 --num-steps 128 --num-minibatches 4 --update-epochs 4 --hidden-size 64"
chain="--env-id MemoryChain-bsuite --env-params memory_length=10 --no-prev-action --hidden-size 64"
pole="--env-id CartPoleEasy --hidden-size 128"
replay="--env-id CartPole-v1 --num-envs 10 --train-frequency 10 --batch-size 128 --buffer-size 50000 --hidden-size 128"
replay="$replay --learning-rate 2.5e-4 --target-network-frequency 2000 --exploration-fraction 0.5 --max-grad-norm 10"
for when in before after; do
    if [ $when = before ]; then
        part="before_$commit" folder="$before/"
    else
        changed="$(git diff HEAD -- '*.py'; git ls-files -o --exclude-standard -z -- '*.py' | xargs -0r cat)"
        part="after_$(git rev-parse --short HEAD)_$(cksum <<< "$changed" | cut -d ' ' -f 1)" folder=""
    fi
    train "${folder}pqn_mlp.py" $vectors --q-lambda 0.9 --exploration-fraction 0.5 $(smoke_or 100000) $seeds
    train "${folder}ppo_mlp.py" $vectors $(smoke_or 100000) $seeds
    train "${folder}dqn_mlp.py" $replay $(smoke_or 100000 1024 --learning-starts 256) $seeds
    train "${folder}pqn_rnn.py" $chain --num-steps 32 --q-lambda 0.95 $(smoke_or 150000) $seeds
    train "${folder}ppo_rnn.py" $chain --num-envs 16 --num-steps 32 --num-minibatches 4 --learning-rate 1e-3 $(smoke_or 150000) $seeds
    train "${folder}pqn_rnn.py" $pole --partial-obs $(smoke_or 30000) $seeds
    train "${folder}ppo_continuous_action.py" --env-id Pendulum-v1 --num-envs 32 --num-steps 200 --num-minibatches 32 \
        --update-epochs 10 --gamma 0.95 --learning-rate 1e-3 $(smoke_or 200000) $seeds
    if [ $when = before ]; then mapfile -t earlier < <(runs_of "*__*"); fi
done
mapfile -t later < <(runs_of "*__*")
run benchmark/regression.py --before "${earlier[@]}" --after "${later[@]}"
