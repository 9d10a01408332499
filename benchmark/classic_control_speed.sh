#!/usr/bin/env bash
# Training speed from vectors with logging and evaluations, one seed and five seeds, three rounds (docs/ppo_mlp.md,
# docs/pqn_mlp.md): CartPole-v1, 4 environments x 128 steps, 4 epochs x 4 minibatches. Run nothing else on the machine.
# Settings: see common.sh.
#   benchmark/classic_control_speed.sh
WITHOUT="ENVS SEEDS BUDGET TWINS"
source "$(dirname "$0")/common.sh"
flags="--env-id CartPole-v1 --num-envs 4 --num-steps 128 --num-minibatches 4 --update-epochs 4 --hidden-size 64"
flags="$flags --log-every 20000 --checkpoint-every 0 $(smoke_or 500000)"
log="$(mktemp)"
trap 'rm -f "$log"; report_failures $?' EXIT
for round in 1 2 3; do
    for count in 1 5; do
        for script in ppo_mlp pqn_mlp; do
            SECONDS=0
            run $script.py $flags --num-seeds $count --run-dir "$RUN_DIR" > "$log"
            if [ -n "$DRY_RUN" ]; then
                cat "$log"
            else
                echo "round $round  $script  seeds $count  $(grep '^speed' "$log")  process $SECONDS s"
            fi
        done
    done
done
