#!/usr/bin/env bash
# Frames per second of every environment (docs/throughput.md): all ids, and gymnax's own, with 64 environments (1024 on
# a GPU); all ids at 256 px; and the Easy ids by number of environments. ENVS restricts all three. About half an hour on
# two CPU cores; run nothing else on the machine. Settings: see common.sh.
#   OUT=docs/figures benchmark/throughput.sh
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
    gpu | paper) many=1024 sizes="1 16 64 256 1024 4096 16384" ;; # the paper does not give its sizes
esac
run benchmark/throughput.py ${some:---others} --num-envs $many --out "$OUT/throughput"
run benchmark/throughput.py $some --obs-size 256 --num-envs $many --out "$OUT/throughput_256"
run benchmark/throughput.py --env-ids $ENVS --num-envs $sizes --steps 1024 --out "$OUT/throughput_envs"
