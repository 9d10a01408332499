"""Agents on either twin of their environment, or in another environment."""

import dataclasses
from typing import Any

from popgym_arcade.analysis.agents import Agent, load_agents
from popgym_arcade.analysis.command_line import PlayArgs
from popgym_arcade.baselines.environment import is_arcade, spaces_of
from popgym_arcade.baselines.errors import UserError


def load_in_twins(args: PlayArgs, two_player: bool = False) -> list[Agent]:
    """The agents of `--runs`, each on every twin asked for. Raises UserError for the first that cannot play there, and
    unless `two_player` for one that plays both seats of a game."""
    agents = load_agents(args.runs, args.step, two_player)
    return [twin for agent in agents for twin in in_twins(agent, args.twin, args.env_id)]


def in_twins(agent: Agent, twin: str, env_id: str = "") -> list[Agent]:
    """The agent on one twin (own, mdp, pomdp) or on both, in its own environment or in `env_id`, with the parameters of
    its evaluations.

    Raises:
        UserError: if there are no twins, or if the observations or actions there differ from those in training
    """
    saved = agent.saved
    args = in_environment(saved, env_id) if env_id else saved
    if twin != "own" and not is_arcade(args):
        raise UserError(f"--twin {twin}: {args.env_id} has no twins, use own")
    (shape, *rest), (other_shape, *other_rest) = spaces_of(saved), spaces_of(args)
    if shape != other_shape:
        raise UserError(f"--env-id {env_id} has observations of shape {other_shape}, but {agent.name} reads {shape}")
    if rest != other_rest:
        raise UserError(f"--env-id {env_id}: {agent.name} was trained on different observations or actions")
    args = args.in_evaluation()
    if not is_arcade(args):
        return [dataclasses.replace(agent, args=args)]
    partial = {"own": [getattr(saved, "partial_obs", False)], "mdp": [False], "pomdp": [True], "both": [False, True]}
    return [dataclasses.replace(agent, args=dataclasses.replace(args, partial_obs=value)) for value in partial[twin]]


def in_environment(args: Any, env_id: str) -> Any:
    """The arguments with another environment, with `partial_obs` False if that has no twins."""
    changes = {"env_ids": (env_id,)} if hasattr(args, "env_ids") else {"env_id": env_id}
    args = dataclasses.replace(args, **changes)
    if hasattr(args, "partial_obs") and not is_arcade(args):
        return dataclasses.replace(args, partial_obs=False)
    return args
