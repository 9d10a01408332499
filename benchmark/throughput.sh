#!/usr/bin/env bash
# Frames per second of every environment (docs/throughput.md): all variants and gymnax's own with 64 environments, all
# variants at 256 px, and the Easy ids from 1 to 4096 environments. About half an hour; leave the machine alone meanwhile.
#   OUT=benchmark/results PYTHON=.venv/bin/python benchmark/throughput.sh
set -euo pipefail
cd "$(dirname "$0")/.."
measure() { "${PYTHON:-.venv/bin/python}" benchmark/throughput.py "$@"; }
out="${OUT:-benchmark/results}"
easy="AutoEncodeEasy BattleShipEasy BreakoutEasy CartPoleEasy CountRecallEasy MineSweeperEasy NavigatorEasy \
NoisyCartPoleEasy SkittlesEasy TetrisEasy"

measure --others --out "$out/throughput"
measure --obs-size 256 --out "$out/throughput_256"
# shellcheck disable=SC2086
measure --env-ids $easy --num-envs 1 4 16 64 256 1024 4096 --steps 1024 --out "$out/throughput_envs"
