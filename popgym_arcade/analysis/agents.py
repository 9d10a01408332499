"""Trained agents, loaded from run folders.

Loading an agent executes the copy of the training script in its run folder, see `popgym_arcade.baselines.scripts`.
"""

import dataclasses
import functools
import itertools
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from popgym_arcade.analysis.runs import find_runs
from popgym_arcade.baselines.devices.mesh import seed_by_seed
from popgym_arcade.baselines.environment import in_names, is_arcade
from popgym_arcade.baselines.errors import UserError, WrongType, one_line
from popgym_arcade.baselines.running.checkpoints import find_checkpoint, restore
from popgym_arcade.baselines.running.command_line import read_args
from popgym_arcade.baselines.running.evaluation import make_keys
from popgym_arcade.baselines.scripts import load_script, script_name, script_of


@dataclass(frozen=True)
class Agent:
    """A trained network and the environment it plays."""

    name: str  # of its folder; unique among the agents of one call
    folder: Path
    step: int  # of the checkpoint
    saved: Any  # its arguments in training
    args: Any  # the same, with the environment and the twin it plays
    params: Any  # with a leading seed axis if `args.num_seeds` is not 1

    @property
    def script(self) -> ModuleType:
        """The training script, as it was when it made the run."""
        return script_of(self.saved)

    @property
    def twin(self) -> str:
        """The twin it plays."""
        return twin_name(self.args)


def twin_name(args: Any) -> str:
    """The twin that these arguments play: mdp, pomdp, or single for an environment without twins."""
    if not is_arcade(args):
        return "single"
    return "pomdp" if args.partial_obs else "mdp"


def load_agents(patterns: tuple[str, ...], step: int | None = None, two_player: bool = False) -> list[Agent]:
    """The agents of all runs that match the patterns, one for each task; a name that is taken gets a number."""
    agents: dict[str, Agent] = {}
    for folder in find_runs(patterns):
        for agent in each_task(load_agent(folder, step, two_player)):
            names = (agent.name if i == 1 else f"{agent.name}-{i}" for i in itertools.count(1))
            name = next(name for name in names if name not in agents)
            agents[name] = dataclasses.replace(agent, name=name)
    return list(agents.values())


def load_agent(folder: str | Path, step: int | None = None, two_player: bool = False) -> Agent:
    """The agent of a run folder, from its last intact checkpoint or the one of `step`.

    Raises:
        UserError: if this is not a run folder, its script cannot be loaded, or its parameters do not fit the script;
            unless `two_player`, if it plays both seats of two-player games
    """
    folder = Path(folder)
    script = load_script(folder)
    if script.Args.TWO_PLAYER and not two_player:
        readers = "only evaluate.py and popgym-arcade-play read it"
        raise UserError(f"{folder} plays both seats of a two-player game: {readers}")
    try:
        args = dataclasses.replace(read_args(folder, script.Args), num_devices=1)  # this machine may have only one
        args = args.checked()
        params_like(args)
    except (WrongType, TypeError, ValueError, LookupError, AttributeError) as error:
        about = str(error) if isinstance(error, UserError) else one_line(error)
        raise UserError(f"{folder}: its arguments do not fit {Path(script.__file__).name}: {about}") from None
    step = find_checkpoint(folder, step)
    params = load_params(folder, args, step)
    return Agent(name=folder.resolve().name, folder=folder, step=step, saved=args, args=args, params=params)


def load_params(folder: Path, args: Any, step: int) -> Any:
    """The parameters in a run's checkpoint, with a leading seed axis if there are several seeds."""
    return restore(folder, step, {"params": params_like(args)})["params"]


@functools.lru_cache
def params_like(args: Any) -> Any:
    """Shapes and dtypes of the parameters that these arguments train."""
    init, _ = script_of(args).make_train(args)
    return jax.eval_shape(seed_by_seed(init, args), make_keys(args)[0]).params


def first_params(args: Any) -> Any:
    """The initial parameters of a run with these arguments."""
    init, _ = script_of(args).make_train(args)
    return jax.jit(lambda keys: seed_by_seed(init, args)(keys).params)(make_keys(args)[0])


def params_at(agent: Agent, step: int) -> Any:
    """The parameters that an agent had at the step of a checkpoint, or initially, at step 0."""
    if step == agent.step:
        return agent.params
    return load_params(agent.folder, agent.saved, step) if step else first_params(agent.saved)


def each_task(agent: Agent) -> list[Agent]:
    """An agent for each task if it was trained on several, named after its folder and the task; else the agent."""
    names = agent.saved.task_names
    if len(names) == 1:
        return [agent]
    alone = [agent.script.select_task(agent.saved, agent.params, i) for i in range(len(names))]
    return [
        dataclasses.replace(agent, name=f"{agent.name}__{in_names(name)}", saved=args, args=args, params=params)
        for name, (args, params) in zip(names, alone, strict=True)
    ]


def one_seed(agent: Agent, index: int) -> Agent:
    """The agent of one of a run's seeds, without the seed axis."""
    if agent.args.num_seeds == 1:
        return agent
    args = dataclasses.replace(agent.args, num_seeds=1, seed=agent.args.seed + index)
    return dataclasses.replace(agent, args=args, params=jax.tree.map(lambda x: x[index], agent.params))


def each_seed(agent: Agent) -> list[Agent]:
    """The agents of all of a run's seeds."""
    return [one_seed(agent, index) for index in range(agent.args.num_seeds)]


def describe(agent: Agent) -> dict[str, Any]:
    """An agent's columns in the tables."""
    return {
        "run": agent.name,
        "script": script_name(agent.saved),
        "memory": getattr(agent.saved, "memory", "none"),
        "trained_env_id": agent.saved.env_id,
        "trained_partial_obs": getattr(agent.saved, "partial_obs", False),
        "global_step": agent.step,
        "env_id": agent.args.env_id,
        "partial_obs": getattr(agent.args, "partial_obs", False),
        "twin": agent.twin,
    }
