"""How the network of any script is called, and what its output says about actions.

Shapes: T steps, B episodes, A actions.
"""

import dataclasses
import inspect
from types import ModuleType
from typing import Any

import jax

from popgym_arcade.analysis.agents import Agent


def network_args(agent: Agent) -> Any:
    """The arguments that an agent's network depends on. All seeds and both twins have the same, and share programs."""
    return dataclasses.replace(agent.saved, seed=0, num_seeds=1)


def other_inputs(script: ModuleType) -> tuple[str, ...]:
    """What a script's network reads in addition to observations, as names of a trajectory's fields."""
    rewards = "prev_reward" in inspect.signature(script.forward).parameters
    return ("prev_action", "start", *["prev_reward"] * rewards)


def scores_name(output: Any) -> str:
    """The field of an output that scores actions: "q", "logits", or "mean" for continuous actions."""
    return next(name for name in ("q", "logits", "mean") if hasattr(output, name))


def scores_in_words(script: ModuleType) -> str:
    """What scores the actions of a script's agents: "action values" for Q networks, else "policy"."""
    return "action values" if "q" in {field.name for field in dataclasses.fields(script.Output)} else "policy"


def action_values(output: Any) -> jax.Array:
    """[T, B, A]: Q values, the probabilities of a policy, or the mean action of a continuous one."""
    scores = getattr(output, scores_name(output))
    return jax.nn.softmax(scores) if scores_name(output) == "logits" else scores
