#!/usr/bin/env bash
# Frames per second of every environment (docs/throughput.md): all variants and gymnax's own with 64 environments (on a
# GPU 1024), all variants at 256 px, and the Easy ids over the number of environments; of ENVS alone where that is set.
# About half an hour on two CPU cores; leave the machine alone meanwhile. Settings: see common.sh; only at BUDGET=cpu, and
# without ENVS, OUT is the folder that the page reads.
#   benchmark/throughput.sh
[ "${BUDGET:-cpu}" != cpu ] || [ -n "${ENVS:-}" ] || OUT="${OUT:-docs/figures}"
WITHOUT="SEEDS TWINS"
given="${ENVS:-}"
source "$(dirname "$0")/common.sh"
some="${given:+--env-ids $given}"
case "$BUDGET" in
    smoke)
        run benchmark/throughput.py --env-ids $ENVS --steps 64 --out "$OUT/throughput"
        exit
        ;;
    cpu) many=64 sizes="1 4 16 64 256 1024 4096" ;;
    gpu | paper) many=1024 sizes="1 16 64 256 1024 4096 16384" ;; # the paper tells no sizes
esac
run benchmark/throughput.py ${some:---others} --num-envs $many --out "$OUT/throughput"
run benchmark/throughput.py $some --obs-size 256 --num-envs $many --out "$OUT/throughput_256"
run benchmark/throughput.py --env-ids $ENVS --num-envs $sizes --steps 1024 --out "$OUT/throughput_envs"
