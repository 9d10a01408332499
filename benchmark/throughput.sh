#!/usr/bin/env bash
# Frames per second of every environment (docs/throughput.md): all variants and gymnax's own with 64 environments, all
# variants at 256 px, and the Easy ids from 1 to 4096 environments; of ENVS alone where that is set. About half an hour;
# leave the machine alone meanwhile.
# Settings: see common.sh.
#   benchmark/throughput.sh
[ "${BUDGET:-cpu}" = smoke ] || [ -n "${ENVS:-}" ] || OUT="${OUT:-docs/figures}"
WITHOUT="BUDGET SEEDS TWINS"
given="${ENVS:-}"
source "$(dirname "$0")/common.sh"
if [ "$BUDGET" = smoke ]; then
    run benchmark/throughput.py --env-ids $ENVS --steps 64 --out "$OUT/throughput"
else
    some="${given:+--env-ids $given}"
    run benchmark/throughput.py ${some:---others} --out "$OUT/throughput"
    run benchmark/throughput.py $some --obs-size 256 --out "$OUT/throughput_256"
    run benchmark/throughput.py --env-ids $ENVS --num-envs 1 4 16 64 256 1024 4096 --steps 1024 --out "$OUT/throughput_envs"
fi
