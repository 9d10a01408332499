"""dm_control's suite in MuJoCo Playground (Apache-2.0), simulated by MJX, `playground/CheetahRun`.

Zakka et al. 2025, arXiv:2502.08844. Playground's locomotion and manipulation download their robots, and are not here.
"""

from mujoco_playground import dm_control_suite

from popgym_arcade.worlds.brax import Robot


def ids() -> list[str]:
    return list(dm_control_suite.ALL_ENVS)


def make(name: str) -> Robot:
    return Robot(dm_control_suite.load(name, config_overrides={"impl": "jax"}))
