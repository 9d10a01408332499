"""Agents that differ only in their seed, as one group in tables and pictures."""

import dataclasses
import re
from typing import Any

from popgym_arcade.analysis.agents import Agent, describe, each_seed, twin_name
from popgym_arcade.analysis.command_line import PlayArgs
from popgym_arcade.analysis.tables import MEMORIES_IN_WORDS, TWINS_IN_WORDS
from popgym_arcade.analysis.twins import load_in_twins
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.running.command_line import MAY_DIFFER

GROUP = ("group", "script", "memory", "trained_env_id", "trained_partial_obs", "env_id", "partial_obs", "twin")
WITHIN_A_GROUP = {*MAY_DIFFER, "seed", "num_seeds", "eval_episodes", "save_every", "target_return"}


def load_all(args: PlayArgs) -> list[Agent]:
    """Every seed of the agents of `--runs` on every twin asked for. Prints a line about groups of unequal steps.

    Raises:
        UserError: for an agent that cannot play there, and if a group has the same seed twice
    """
    agents = [seed for agent in load_in_twins(args) for seed in each_seed(agent)]
    print("".join(f"{line}\n" for line in unequal_steps(agents)), end="")
    return agents


def unequal_steps(agents: list[Agent]) -> list[str]:
    """A line for each group whose agents were trained for different numbers of steps, after an interruption perhaps."""
    lines = []
    for name, positions in groups_of(agents).items():
        steps = sorted({agents[position].step for position in positions})
        if len(steps) > 1:
            lines.append(f"{name}: these agents were trained for different numbers of steps, {steps[0]} to {steps[-1]}")
    return lines


def groups_of(agents: list[Agent]) -> dict[str, list[int]]:
    """Positions of the agents in their list, by group, under a unique label; sorted by environment and twin.

    Raises:
        UserError: if a group has the same seed twice
    """
    groups: dict[tuple, list[int]] = {}
    for position, agent in enumerate(agents):
        groups.setdefault(setting(agent), []).append(position)
    labels: dict[str, list[int]] = {}
    by_environment = sorted(groups.values(), key=lambda at: (agents[at[0]].args.env_id, agents[at[0]].twin))
    for positions in by_environment:
        check_seeds([agents[position] for position in positions])
        first = agents[positions[0]]
        name = label(first)
        labels[f"{name} ({first.name})" if name in labels else name] = positions
    return labels


def setting(agent: Agent) -> tuple:
    """What the agents of a group share: script, all arguments that affect what is learned, and what they play."""
    saved = {name: value for name, value in dataclasses.asdict(agent.saved).items() if name not in WITHIN_A_GROUP}
    return agent.script, *saved.items(), agent.args.env_id, agent.twin


def check_seeds(agents: list[Agent]) -> None:
    """Raises UserError for two agents of one group that have the same seed."""
    seeds: dict[int, Agent] = {}
    for agent in agents:
        if seeds.setdefault(agent.args.seed, agent) is not agent:
            both = f"{seeds[agent.args.seed].folder} and {agent.folder}"
            raise UserError(f"seed {agent.args.seed} of one group appears twice, in {both}: leave one out")


def title_of(agent: Agent) -> str:
    """A title for pictures of one agent: what is played, and by which agent."""
    saved = agent.saved
    memory = getattr(saved, "memory", "none")
    in_words = MEMORIES_IN_WORDS.get(memory, memory)
    about = saved.env_id, TWINS_IN_WORDS[twin_name(saved)], saved.exp_name, in_words
    played = "" if agent.args.env_id == saved.env_id else f"{agent.args.env_id}, by "
    return played + " · ".join(filter(None, [*about, f"seed {agent.args.seed}"]))


def label(agent: Agent) -> str:
    """A group in a few words: environment, experiment, memory, the twin it plays, and what it was trained on."""
    memory, trained = getattr(agent.saved, "memory", "no memory"), twin_name(agent.saved)
    words = f"{agent.args.env_id}, {agent.saved.exp_name}, {memory}, {agent.twin}"
    elsewhere = (agent.saved.env_id, trained) != (agent.args.env_id, agent.twin)
    return words + (f" (trained on {agent.saved.env_id} {trained})" if elsewhere else "")


def title_of_panel(row: dict[str, Any]) -> str:
    """A title for a panel of the groups that play one environment, from the row of one of them."""
    return ", ".join(filter(None, [row["env_id"], TWINS_IN_WORDS[row["twin"]]]))


def in_panel(row: dict[str, Any]) -> str:
    """A group's label in such a panel: without the environment and the twin that it plays."""
    words = row["group"].removeprefix(f"{row['env_id']}, ").replace(f", {row['twin']}", "", 1)
    words = words.replace(", MLP", f", {MEMORIES_IN_WORDS['MLP']}", 1)
    return re.sub(r" (mdp|pomdp|single)\)$", lambda found: f", {TWINS_IN_WORDS[found[1]]})".replace(", )", ")"), words)


def about_group(group: str, agent: Agent) -> dict[str, Any]:
    """The columns GROUP of a group, from one of its agents."""
    about = describe(agent) | {"group": group}
    return {name: about[name] for name in GROUP}
