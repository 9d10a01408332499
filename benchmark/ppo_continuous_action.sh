#!/usr/bin/env bash
# ppo_continuous_action.py (docs/ppo_continuous_action.md): the continuous tasks of classic_control.sh. Settings: see common.sh.
ENVS="${ENVS:-Pendulum-v1 MountainCarContinuous-v0}" exec "$(dirname "$0")/classic_control.sh"
