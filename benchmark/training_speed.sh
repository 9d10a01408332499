#!/usr/bin/env bash
# Speed, parts, arithmetic, memory and compile times of the training scripts (docs/performance.md). Less than an hour on
# a CPU, half an hour on a GPU; run nothing else on the machine. Settings: see common.sh.
#   OUT=benchmark/results/training_speed benchmark/training_speed.sh
#   BUDGET=gpu OUT=benchmark/results/training_speed/gpu benchmark/training_speed.sh
WITHOUT="ENVS SEEDS TWINS"
source "$(dirname "$0")/common.sh"
case "$BUDGET" in
    smoke) run benchmark/training_speed.py --studies memories --memories MinGRU --hidden-sizes 16 --out "$OUT" ;;
    cpu)
        run benchmark/training_speed.py --studies scripts memories compile --out "$OUT"
        run benchmark/training_speed.py --studies parts arithmetic memory --settings mlp patch paper \
            --num-envs 16 64 256 --out "$OUT"
        ;;
    gpu | paper)
        run benchmark/training_speed.py --studies num_envs parts arithmetic memory target --settings published fastest \
            --num-envs 16 64 256 1024 4096 --precisions float32 bfloat16 --device gpu --out "$OUT"
        ;;
esac
