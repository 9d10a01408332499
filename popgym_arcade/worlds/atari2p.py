"""Atari Pong for two through multi-agent-ale-py (GPL), with the ROM of ale-py: `atari2p/Pong-v5`.

Terry, Black & Santos 2020, https://arxiv.org/abs/2009.09341. For `ppo_selfplay.py`. Frames are as in `atari`: every
action is repeated for four frames, and an observation is the maximum of the last two, gray, 84 x 84 pixels. The
emulator's player 0 has the right paddle and is seat 1 here; seat 0 sees the frame mirrored, so that both see
themselves on the right.

The game is not quite symmetric: the first ball always flies to the left, and whoever wins a point serves the next. It
is not quite zero-sum either: whoever does not serve within two seconds loses a point that nobody gets.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ale_py
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import EnvParams
from multi_agent_ale_py import ALEInterface
from PIL import Image

from popgym_arcade.environments.two_player import SEATS
from popgym_arcade.worlds.host import HostSeats, PoolStep

STATIC = {"pytree_node": False}
ACTIONS = np.array([0, 1, 3, 4, 11, 12], np.intc)  # as of atari/Pong-v5: nothing, fire, up, down, and both with fire
MAX_NOOPS = 30  # a game begins with fewer idle frames than this, at random: the emulator itself is deterministic
SIDE = 84
ALEInterface.setLoggerMode("error")


@struct.dataclass
class Atari2pParams(EnvParams):
    """Known when a program is traced.

    max_steps_in_episode: the time limit, in steps of the agents.
    frame_skip: frames for which the actions are repeated.
    frame_stack: latest frames in an observation, as channels.
    mode: the emulator's variant of the game; 3 is two paddles and a ball.
    """

    max_steps_in_episode: int = struct.field(default=27_000, **STATIC)
    frame_skip: int = struct.field(default=4, **STATIC)
    frame_stack: int = struct.field(default=1, **STATIC)
    mode: int = struct.field(default=3, **STATIC)


class Game:
    """One emulator."""

    def __init__(self, params: Atari2pParams):
        self.params = params
        self.emulator = ALEInterface()
        self.emulator.setFloat("repeat_action_probability", 0.0)
        self.emulator.loadROM(str(Path(ale_py.__file__).parent / "roms" / "pong.bin"))
        self.emulator.setMode(params.mode)

    def reset(self, random: np.random.Generator) -> None:
        """Begins a game."""
        self.random, self.steps = random, 0
        self.emulator.reset_game()
        self.frames = np.zeros((SIDE, SIDE, self.params.frame_stack), np.uint8)
        nothing = np.zeros(SEATS, np.intc)
        for _ in range(random.integers(MAX_NOOPS)):
            self.emulator.act(nothing)
        self.advance(nothing)

    def advance(self, actions: np.ndarray) -> np.ndarray:
        """Repeats actions [2] for `frame_skip` frames: the rewards [2]; both in the emulator's order of the players."""
        reward, screens = np.zeros(SEATS, np.float32), []
        for left in reversed(range(self.params.frame_skip)):
            reward += self.emulator.act(actions)
            if left < 2:
                screens.append(self.emulator.getScreenGrayscale()[..., 0])
        frame = Image.fromarray(np.max(screens, axis=0)).resize((SIDE, SIDE), Image.Resampling.BOX)
        self.frames = np.concatenate([self.frames[..., 1:], np.asarray(frame)[..., None]], axis=-1)
        return reward

    def views(self) -> np.ndarray:
        """What both seats see, [2, 84, 84, stack]."""
        return np.stack([self.frames[:, ::-1], self.frames])

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool, bool]:
        """One step by the seats' actions [2]: views after and before any reset, rewards [2], terminated, truncated."""
        reward = self.advance(ACTIONS[actions[::-1]])[::-1]
        self.steps += 1
        final, terminated = self.views(), self.emulator.game_over()
        truncated = self.steps >= self.params.max_steps_in_episode and not terminated
        if terminated or truncated:
            self.reset(self.random)
        return self.views(), final, reward, terminated, truncated


class Atari2pPool:
    """See `host.Pool`; the emulators run in threads."""

    def __init__(self, num_envs: int, params: Atari2pParams):
        self.num_envs = num_envs
        self.games = [Game(params) for _ in range(num_envs)]
        self.threads = ThreadPoolExecutor()

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        for game, seed in zip(self.games, seeds, strict=True):
            game.reset(np.random.default_rng(seed))
        return np.stack([game.views() for game in self.games])

    def step(self, action: np.ndarray) -> PoolStep:
        found = self.threads.map(lambda game, actions: game.step(actions), self.games, action)
        obs, final_obs, reward, terminated, truncated = map(np.stack, zip(*found, strict=True))
        return PoolStep(
            obs=obs,
            final_obs=final_obs,
            reward=reward,
            raw_reward=reward,
            terminated=terminated,
            truncated=truncated,
            over=terminated | truncated,
        )


class Atari2p(HostSeats):
    """Pong. Observations are uint8 [84, 84, frame_stack]."""

    @property
    def default_params(self) -> Atari2pParams:
        return Atari2pParams()

    def make_pool(self, num_envs: int, params: Atari2pParams) -> Atari2pPool:
        return Atari2pPool(num_envs, params)

    def observation_space(self, params: Atari2pParams) -> spaces.Box:
        return spaces.Box(0, 255, (SIDE, SIDE, params.frame_stack), jnp.uint8)

    def action_space(self, params: Atari2pParams) -> spaces.Discrete:
        return spaces.Discrete(len(ACTIONS))


def ids() -> list[str]:
    return ["Pong-v5"]


def make(name: str) -> Atari2p:
    return Atari2p()
