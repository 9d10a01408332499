"""Atari 2600 games of the Arcade Learning Environment (ale-py, GPL-2.0), `atari/Pong-v5`.

Bellemare et al. 2013, https://doi.org/10.1613/jair.3912. Preprocessing is that of CleanRL's Atari scripts: up to 30
no-ops and FIRE at the start, each action repeated for 4 frames, the maximum of the last two, grayscale, 84 x 84 pixels.
The learner sees rewards clipped to -1, 0 or 1, and a termination with every lost life. Episodes last until the end of
the game, and reported returns are in its own units. Frames are not stacked: use frame_stack=4 for an agent without
memory.
"""

import functools

import jax.numpy as jnp
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import EnvParams

from popgym_arcade.worlds.host import HostEnvironment, PoolStep

STATIC = {"pytree_node": False}
MAX_FRAMES = 108_000  # of an episode: half an hour
MAX_INT = 2**31 - 1


@struct.dataclass
class AtariParams(EnvParams):
    """Known when a program is traced.

    max_steps_in_episode: the time limit, in steps of the agent.
    frame_skip: frames for which an action is repeated.
    frame_stack: latest frames in an observation, as channels.
    full_action_space: all 18 actions of the joystick instead of those the game distinguishes.
    repeat_action_probability: the chance that a frame repeats the previous action instead ("sticky actions").
    life_loss: whether a lost life terminates for the learner.
    clip_reward: whether the learner sees the sign of each reward.
    """

    max_steps_in_episode: int = struct.field(default=MAX_FRAMES // 4, **STATIC)
    frame_skip: int = struct.field(default=4, **STATIC)
    frame_stack: int = struct.field(default=1, **STATIC)
    full_action_space: bool = struct.field(default=False, **STATIC)
    repeat_action_probability: float = struct.field(default=0.0, **STATIC)
    life_loss: bool = struct.field(default=True, **STATIC)
    clip_reward: bool = struct.field(default=True, **STATIC)


TWO_PLAYER = {"combat", "joust", "maze_craze", "warlords"}  # the emulator cannot start them with one player
ROMS = {
    f"{''.join(word.capitalize() for word in rom.split('_'))}-v5": rom
    for rom in roms.get_all_rom_ids()
    if rom not in TWO_PLAYER
}


def ids() -> list[str]:
    """Every game for one player that comes with ale-py, e.g. "SpaceInvaders-v5"."""
    return list(ROMS)


class AtariPool:
    """See `host.Pool`."""

    def __init__(self, game: str, num_envs: int, params: AtariParams):
        self.num_envs, self.params = num_envs, params
        self.envs = AtariVectorEnv(
            game,
            num_envs,
            max_num_frames_per_episode=min(params.max_steps_in_episode * params.frame_skip, MAX_INT),
            repeat_action_probability=params.repeat_action_probability,
            full_action_space=params.full_action_space,
            autoreset_mode="SameStep",
            stack_num=params.frame_stack,
            frameskip=params.frame_skip,
            reward_clipping=False,
        )

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        obs, info = self.envs.reset(seed=seeds)
        self.lives = info["lives"]
        return obs.transpose(0, 2, 3, 1)

    def step(self, action: np.ndarray) -> PoolStep:
        obs, reward, terminated, truncated, info = self.envs.step(action.astype(np.int32))
        over = terminated | truncated
        lost_life = (info["lives"] < self.lives) & ~over
        self.lives = info["lives"]
        final_obs = np.where(over[:, None, None, None], info["final_obs"], obs) if over.any() else obs
        return PoolStep(
            obs=obs.transpose(0, 2, 3, 1),
            final_obs=final_obs.transpose(0, 2, 3, 1),
            reward=np.sign(reward) if self.params.clip_reward else reward,
            raw_reward=reward,
            terminated=terminated | (lost_life & self.params.life_loss),
            truncated=truncated,
            over=over,
        )


class Atari(HostEnvironment):
    """A game. Observations are uint8 [84, 84, frame_stack]."""

    def __init__(self, game: str):
        self.game = game

    @property
    def default_params(self) -> AtariParams:
        return AtariParams()

    def make_pool(self, num_envs: int, params: AtariParams) -> AtariPool:
        return AtariPool(self.game, num_envs, params)

    def observation_space(self, params: AtariParams) -> spaces.Box:
        return spaces.Box(0, 255, (84, 84, params.frame_stack), jnp.uint8)

    def action_space(self, params: AtariParams) -> spaces.Discrete:
        return spaces.Discrete(18 if params.full_action_space else number_of_actions(self.game))


@functools.cache
def number_of_actions(game: str) -> int:
    """How many actions a game distinguishes."""
    return int(AtariVectorEnv(game, 1).single_action_space.n)


def make(name: str) -> Atari:
    return Atari(ROMS[name])
