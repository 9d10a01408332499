"""Two-player games behind the interface of `ParallelEnvs`: every seat of every game is a player.

Shapes: T steps, E games, P = 2 E players, A actions; player p sits in seat p % 2 of game p // 2. In an evaluation, one
player of each game is the agent, and the other its opponent: the agents sit in the first seat of every other game.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from popgym_arcade.baselines.environment import make_env
from popgym_arcade.environments.two_player import SEATS, TwoPlayerEnvironment, both_seats


@struct.dataclass
class View:
    """What players know before they act, [P, ...]."""

    seen: jax.Array  # the observation
    seat: jax.Array  # int32
    legal: jax.Array  # bool [P, A], the actions that they may choose


class OfPlayers:
    """A mixin for dataclasses with `players`, the Episode [P] of each; evaluations read the agents' episodes alone."""

    @property
    def episode(self) -> Any:
        """Of the agents, [E]."""
        return of_agents(self.players)


@struct.dataclass
class Rivals:
    """Other networks that take part: parameters [K, ...], each for n of the `players`, int32 [K, n]."""

    params: Any
    players: jax.Array


@dataclasses.dataclass(frozen=True)
class ParallelSeats:
    """E copies of a two-player game, each with its own key. Everything is pure."""

    env: TwoPlayerEnvironment
    env_params: Any

    @property
    def observation_space(self) -> Any:
        """Of one seat."""
        return self.env.observation_space(self.env_params)

    @property
    def num_actions(self) -> int:
        """Of one seat."""
        return self.env.action_space(self.env_params).n

    def reset(self, key: jax.Array, num_games: int) -> tuple[View, Any]:
        """The first views [P, ...], and states [E, ...]."""
        keys = jax.random.split(key, num_games)
        obs, state = jax.vmap(self.env.reset, in_axes=(0, None))(keys, self.env_params)
        return self.view(obs, state), state

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        """One step of each game, by the actions [P] of its players.

        Returns views, states [E, ...], and the reward, terminated, truncated and info of the players [P], as
        `ParallelEnvs.step` does.
        """
        num_games = len(action) // SEATS
        step = jax.vmap(self.env.step, in_axes=(0, 0, 0, None))
        actions = action.reshape(num_games, SEATS)
        obs, state, reward, terminated, truncated, info = step(
            jax.random.split(key, num_games), state, actions, self.env_params
        )
        truncated = truncated & ~terminated  # termination wins
        info = {"raw_reward": reward, "over": terminated | truncated} | info
        info["final_observation"] = self.view(info["final_observation"], state)
        info |= {"raw_reward": of_players(info["raw_reward"]), "over": jnp.repeat(info["over"], SEATS)}
        ends = jnp.repeat(terminated, SEATS), jnp.repeat(truncated, SEATS)
        return self.view(obs, state), state, of_players(reward), *ends, info

    def look(self, state: Any) -> View:
        """What the players see in states [E, ...]."""
        return self.view(jax.vmap(self.env.views)(state), state)

    def view(self, obs: jax.Array, state: Any) -> View:
        """The views of observations [E, 2, ...] of these states."""
        seat = jnp.arange(obs.shape[0] * SEATS) % SEATS
        return View(seen=of_players(obs), seat=seat, legal=of_players(jax.vmap(self.env.legal)(state)))

    def final_observation(self, info: dict) -> tuple[Any, Callable]:
        """As of `ParallelEnvs`."""
        if "final_state" in info:
            return info["final_state"], self.look
        return info["final_observation"], lambda view: view


def of_players(x: jax.Array) -> jax.Array:
    """An array [E, 2, ...] of seats as one of players, [P, ...]."""
    return x.reshape(-1, *x.shape[2:])


def agents(num_games: int) -> np.ndarray:
    """The players [E] that are agents in an evaluation."""
    game = np.arange(num_games)
    return SEATS * game + game % SEATS


def is_agent(num_players: int) -> np.ndarray:
    """Which players are agents, bool [P]."""
    return np.isin(np.arange(num_players), agents(num_players // SEATS))


def opponents(num_games: int) -> np.ndarray:
    """The players [E] that are not agents."""
    return np.setdiff1d(np.arange(SEATS * num_games), agents(num_games))


def results(returns: Any) -> np.ndarray:
    """Numbers of games won, drawn and lost [..., 3], from returns [..., E]. A sum of points may not be exactly 0."""
    sign = np.sign(np.round(returns, 3))
    return np.stack([(sign == value).sum(axis=-1) for value in (1, 0, -1)], axis=-1)


def side_by_side(seen: jax.Array, full: jax.Array | None = None) -> jax.Array:
    """Pictures [E, height, width, C]: what the agent sees of each game, what its opponent sees, and the full frame."""
    num_games = len(seen) // SEATS
    pictures = [seen[agents(num_games)], seen[opponents(num_games)], *([] if full is None else [full])]
    return jnp.concatenate(pictures, axis=2)


def in_time(tree: Any) -> Any:
    """Arrays [P, ...] as sequences of a single step, [1, P, ...]."""
    return jax.tree.map(lambda x: x[None], tree)


def of_agents(players: Any) -> Any:
    """From arrays [..., P] of players those of the agents, [..., E]."""
    return jax.tree.map(lambda x: x[..., agents(x.shape[-1] // SEATS)], players)


def among_legal(logits: jax.Array, legal: jax.Array) -> jax.Array:
    """The logits of a policy that never chooses an illegal action, from legal[..., A] bool."""
    return jnp.where(legal, logits, -1e9)


def seats_in_parallel(args: Any) -> ParallelSeats:
    """The two-player games of these arguments."""
    env, env_params = make_env(args)
    return ParallelSeats(both_seats(env), env_params)


def with_rivals(read: Callable, rivals: Rivals, found: Any, inputs: tuple) -> Any:
    """`found`, what read(params, *inputs) returned for all players, with what the rivals' own parameters return."""
    theirs = jax.tree.map(lambda x: x[rivals.players], inputs)  # [K, n, ...]
    by_rivals = jax.vmap(read)(rivals.params, *theirs)
    return jax.tree.map(lambda x, own: x.at[rivals.players].set(own), found, by_rivals)


def only(tree: Any, players: np.ndarray, axis: int = 1) -> Any:
    """From arrays with an axis of P players those of `players`. If these are all, nothing moves: each device keeps its
    own."""
    return jax.tree.map(lambda x: x if len(players) == x.shape[axis] else jnp.take(x, players, axis), tree)


def first_rivals(params: Any, players: np.ndarray) -> Rivals | None:
    """K rivals with the same parameters, for players [K, n]; None without players."""
    stacked = jax.tree.map(lambda x: jnp.stack([x] * len(players)), params)
    return Rivals(params=stacked, players=jnp.asarray(players)) if players.size else None


def with_snapshot(rivals: Rivals | None, params: Any, update: jax.Array, every: int) -> Rivals | None:
    """The rivals. In every `every`-th update, the oldest one gets `params`, the agent's latest parameters."""
    if rivals is None:
        return None
    oldest = update // every % len(rivals.players)
    store = lambda x, new: jnp.where(update % every == 0, x.at[oldest].set(new), x)
    return rivals.replace(params=jax.tree.map(store, rivals.params, params))
