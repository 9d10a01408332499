"""The games in stable-baselines3: both environment checkers, or PPO or sb3-contrib's RecurrentPPO on one game.

    pip install stable-baselines3 sb3-contrib          # installs PyTorch, which no other script needs
    python benchmark/sb3.py --check                    # gymnasium's checker and stable-baselines3's, every family
    python benchmark/sb3.py --env-id CartPoleEasy --algorithm ppo --total-timesteps 100000
    python benchmark/sb3.py --env-id CartPoleEasy --partial-obs --algorithm recurrent_ppo --total-timesteps 100000

For training, `in_sb3` makes a stable-baselines3 vector environment that steps all environments in one compiled call.
Prints the mean return of the random policy, and then that of the agent as it learns.
"""

import importlib.util
import time
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import popgym_arcade
from popgym_arcade.analysis.command_line import launch
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, NonNegativeInt, check_limits


@dataclass(frozen=True)
class Args:
    env_id: str = "CartPoleEasy"
    """popgym_arcade id to train on"""
    partial_obs: bool = False
    """train on the partially observable twin"""
    algorithm: Literal["ppo", "recurrent_ppo"] = "ppo"
    """PPO of stable-baselines3, or RecurrentPPO (LSTM) of sb3-contrib; both with their policy for images"""
    num_envs: Count = 16
    """environments stepped together"""
    num_steps: Count = 64
    """steps of each environment between updates"""
    total_timesteps: Count = 20_000
    """steps, all environments together"""
    seed: NonNegativeInt = 0
    """seed of the environments and of the agent"""
    check: bool = False
    """run the checkers instead of training"""


def in_sb3(env_id: str, num_envs: int, **options: Any) -> Any:
    """A stable-baselines3 vector environment with the returns and lengths of episodes in its infos.

    `options` go to `gymnasium.make_vec`. When an episode ends, stable-baselines3 expects the first observation of the
    next one, and the last observation in `info`: mode SAME_STEP. (Its DummyVecEnv would step one environment at a
    time.)
    """
    from stable_baselines3.common.vec_env import VecEnv, VecMonitor

    class ArcadeVecEnv(VecEnv):
        def __init__(self):
            name = f"popgym_arcade/{env_id}-v0"
            mode = AutoresetMode.SAME_STEP
            self.envs = gymnasium.make_vec(name, num_envs=num_envs, autoreset_mode=mode, **options)
            super().__init__(num_envs, self.envs.single_observation_space, self.envs.single_action_space)

        def reset(self):
            seeds = None if None in self._seeds else self._seeds
            self._reset_seeds()
            return self.envs.reset(seed=seeds)[0]

        def step_async(self, actions):
            self._actions = actions

        def step_wait(self):
            obs, rewards, terminated, truncated, info = self.envs.step(self._actions)
            infos: list[dict] = [{} for _ in range(num_envs)]
            for i in np.flatnonzero(terminated | truncated):
                infos[i] = {
                    "terminal_observation": info["final_obs"][i],
                    "TimeLimit.truncated": bool(truncated[i]),
                }
            return obs, rewards.astype(np.float32), terminated | truncated, infos

        def close(self):
            self.envs.close()

        def get_attr(self, attr_name, indices=None):
            return [getattr(self.envs, attr_name)] * len(list(self._get_indices(indices)))

        def set_attr(self, attr_name, value, indices=None):
            raise NotImplementedError("all environments are one object: set attributes when you make it")

        def env_method(self, method_name, *method_args, indices=None, **method_kwargs):
            raise NotImplementedError("all environments are one object: it has no methods for one of them")

        def env_is_wrapped(self, wrapper_class, indices=None):
            return [False] * len(list(self._get_indices(indices)))

        def get_images(self):
            return self.envs.render() or [None] * num_envs

    return VecMonitor(ArcadeVecEnv())


def check_all() -> None:
    """Runs both checkers on both twins of one game per family. Prints the number of warnings, which should be 0."""
    from stable_baselines3.common.env_checker import check_env as check_env_of_sb3

    for env_id in popgym_arcade.REGISTERED_ENVIRONMENTS[::3]:
        for partial_obs in (False, True):
            env = gymnasium.make(f"popgym_arcade/{env_id}-v0", partial_obs=partial_obs, render_mode="rgb_array")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                check_env(env.unwrapped)
                check_env_of_sb3(env, warn=True, skip_render_check=False)
            twin = "pomdp" if partial_obs else "mdp"
            print(f"{env_id:20} {twin:6} both checkers pass, {len(caught)} warnings", flush=True)
            for warning in caught:
                print("   ", warning.message)


def random_return(envs: Any, steps: int) -> float:
    """Mean return of the episodes that end within `steps` random actions; NaN if none ends."""
    envs.reset()
    returns = []
    for _ in range(steps):
        actions = np.array([envs.action_space.sample() for _ in range(envs.num_envs)])
        *_, infos = envs.step(actions)
        returns += [info["episode"]["r"] for info in infos if "episode" in info]
    return float(np.mean(returns)) if returns else float("nan")


def train(args: Args) -> Any:
    """Trains, prints the mean return of the last 100 episodes after every tenth of the steps, and returns the model."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3 import PPO

    envs = in_sb3(args.env_id, args.num_envs, partial_obs=args.partial_obs)
    envs.seed(args.seed)
    print(f"random policy: mean return {random_return(envs, 500):.3f}", flush=True)
    algorithm, policy = {"ppo": (PPO, "CnnPolicy"), "recurrent_ppo": (RecurrentPPO, "CnnLstmPolicy")}[args.algorithm]
    model = algorithm(policy, envs, n_steps=args.num_steps, batch_size=256, n_epochs=4, seed=args.seed, ent_coef=0.01)
    start = time.time()
    for tenth in range(10):
        model.learn(args.total_timesteps // 10, reset_num_timesteps=tenth == 0)
        returns = [episode["r"] for episode in model.ep_info_buffer]
        rate = model.num_timesteps / (time.time() - start)
        mean = np.mean(returns) if returns else float("nan")
        print(f"{model.num_timesteps:8} steps  mean return {mean:.3f}  {rate:.0f} steps/s", flush=True)
    return model


def main(args: Args) -> None:
    """Runs the checkers or trains. Raises UserError for an unknown id, or if stable-baselines3 is not installed."""
    if args.env_id not in popgym_arcade.REGISTERED_ENVIRONMENTS:
        raise UserError(f"--env-id {args.env_id}: use an id of popgym_arcade")
    check_limits(args)
    for library in ("stable_baselines3", "sb3_contrib"):
        if importlib.util.find_spec(library) is None:
            raise UserError(f"{library} is not installed: pip install stable-baselines3 sb3-contrib")
    if args.check:
        check_all()
    else:
        train(args)


if __name__ == "__main__":
    launch(main, Args)
