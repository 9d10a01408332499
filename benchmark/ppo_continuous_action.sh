#!/usr/bin/env bash
# ppo_continuous_action.py on the continuous tasks of classic_control.sh (docs/ppo_continuous_action.md).
# Settings: see common.sh.
ENVS="${ENVS:-Pendulum-v1 MountainCarContinuous-v0}" exec "$(dirname "$0")/classic_control.sh"
