"""Matches between the agents of two runs, in two-player games.

Each sees its own twin of the game through its own network and memory, from any seat. An agent that was trained against
the game's script can take part: both seats of an arcade game see themselves on the side where it was trained.

Shapes: E games, P = 2 E players, A actions; see `popgym_arcade.baselines.seats`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from popgym_arcade.analysis.agents import Agent, load_agent
from popgym_arcade.baselines import seats
from popgym_arcade.baselines.environment import make_env, spaces_of
from popgym_arcade.baselines.episode import Episode
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.scripts import script_of
from popgym_arcade.environments.two_player import has_two_seats


@struct.dataclass
class Side:
    """What one agent knows, as if it were all players, [P, ...]."""

    obs: seats.View
    carry: Any


@struct.dataclass
class Match(seats.OfPlayers):
    """The games [E, ...] and their players, [P, ...]."""

    env_state: Any
    sides: tuple[Side, Side]  # of the agent and of its rival
    prev_action: jax.Array
    start: jax.Array
    players: Episode  # after the last step
    key: jax.Array

    @property
    def obs(self) -> seats.View:
        """As the agent sees the games."""
        return self.sides[0].obs


@struct.dataclass
class Played:
    """A step, as evaluations read it."""

    episode: Episode


def load_rival(folder: str, agents: list[Agent]) -> Agent:
    """The agent of a run, as an opponent of these agents, on the twin it was trained on.

    Raises:
        UserError: if one of them plays another game, one that is not for two players, or one with other observations,
            or if their seeds cannot be paired
    """
    rival = load_agent(folder, two_player=True)
    if not has_two_seats(make_env(rival.args)[0]):
        raise UserError(f"--against {folder}: {rival.args.env_id} is not a two-player game")
    for agent in agents:
        if agent.args.env_id != rival.args.env_id:
            raise UserError(f"--against {folder} plays {rival.args.env_id}, but {agent.name} plays {agent.args.env_id}")
        if rival.args.num_seeds not in (1, agent.args.num_seeds):
            counts = f"{rival.args.num_seeds} seeds, but {agent.name} has {agent.args.num_seeds}"
            raise UserError(f"--against {folder} has {counts}")
        if spaces_of(in_games_of(agent.args, rival.args)) != spaces_of(rival.args):
            raise UserError(f"--against {folder}: with the --env-params of {agent.name}, it sees something else")
    return rival


def in_games_of(args: Any, rival_args: Any) -> Any:
    """The rival's arguments, with the parameters of the games that both play. It keeps its own twin."""
    return dataclasses.replace(rival_args, env_params=args.env_params, eval_env_params=())


class Player:
    """The network of one side, for any script."""

    def __init__(self, args: Any):
        self.args, self.script = args, script_of(args)
        self.games = seats.seats_in_parallel(args)
        self.network = self.script.make_actor(args)[0]

    def begin(self, view: seats.View) -> Side:
        """Before the first step of the games."""
        return Side(obs=view, carry=self.script.initial_carry(self.network, len(view.seat)))

    def read(
        self, params: Any, side: Side, prev_action: jax.Array, start: jax.Array
    ) -> tuple[Any, jax.Array, jax.Array]:
        """The next carry, the most valued actions [P], and the log-probabilities [P, A] to sample from."""
        obs = side.obs if self.args.TWO_PLAYER else side.obs.seen
        inputs = seats.in_time((obs, prev_action, start))
        carry, output = self.script.forward(self.network, params, side.carry, *inputs)
        if hasattr(output, "logits"):
            return carry, output.logits[0].argmax(axis=-1), jax.nn.log_softmax(output.logits[0])
        best = output.q[0].argmax(axis=-1)
        share = self.args.end_e / output.q.shape[-1]  # exploration as in the last steps of training
        return carry, best, jnp.log(share + (1 - self.args.end_e) * jax.nn.one_hot(best, output.q.shape[-1]))


def match_actor(args: Any, rival_args: Any) -> tuple[Callable, Callable]:
    """begin(key, num_games) -> Match and act(params of both, match, sample) -> (Match, Played, step's info).

    Both play greedily or, with `sample`, as they explored in training.
    """
    rival_args = in_games_of(args, rival_args)
    players = Player(args), Player(rival_args)
    games, same_twin = players[0].games, make_env(args)[0] is make_env(rival_args)[0]

    def views(obs: seats.View, env_state: Any) -> tuple[seats.View, seats.View]:
        """What the two networks read: states outside JAX have only the observations."""
        return obs, (obs if same_twin else players[1].games.look(env_state))

    def begin(key: jax.Array, num_games: int) -> Match:
        key, reset_key = jax.random.split(key)
        obs, env_state = games.reset(reset_key, num_games)
        num_players = seats.SEATS * num_games
        return Match(
            env_state=env_state,
            sides=tuple(player.begin(view) for player, view in zip(players, views(obs, env_state), strict=True)),
            prev_action=jnp.zeros(num_players, jnp.int32),
            start=jnp.ones(num_players, bool),
            players=Episode.begin(num_players),
            key=key,
        )

    def act(params, match: Match, sample) -> tuple[Match, Played, dict]:
        key, action_key, step_key = jax.random.split(match.key, 3)
        is_agent = seats.is_agent(len(match.start))
        (carry, best, log_probs), (rival_carry, rival_best, rival_log_probs) = (
            player.read(own, side, match.prev_action, match.start)
            for player, own, side in zip(players, params, match.sides, strict=True)
        )
        sampled = jax.random.categorical(action_key, jnp.where(is_agent[:, None], log_probs, rival_log_probs))
        action = jnp.where(sample, sampled, jnp.where(is_agent, best, rival_best)).astype(jnp.int32)
        obs, env_state, _, terminated, truncated, info = games.step(step_key, match.env_state, action)
        match = Match(
            env_state=env_state,
            sides=tuple(map(Side, views(obs, env_state), (carry, rival_carry))),
            prev_action=action,
            start=terminated | truncated,
            players=match.players.after(info),
            key=key,
        )
        return match, Played(match.episode), info

    return begin, act
