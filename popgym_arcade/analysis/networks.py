"""How the network of any script is called, and what its output says about actions.

Shapes: T steps, B episodes, A actions.
"""

import dataclasses
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from popgym_arcade.analysis.agents import Agent
from popgym_arcade.baselines.scripts import script_of


def network_args(agent: Agent) -> Any:
    """The arguments that an agent's network depends on. All seeds and both twins have the same, and share programs."""
    return dataclasses.replace(agent.saved, seed=0, num_seeds=1)


def other_inputs(script: ModuleType) -> tuple[str, ...]:
    """What a script's network reads in addition to observations, as names of a trajectory's fields."""
    reads_reward = "prev_reward" in inspect.signature(script.forward).parameters
    return ("prev_action", "start", "prev_reward") if reads_reward else ("prev_action", "start")


def scores_name(output: Any) -> str:
    """The field of an output that scores actions: "q", "logits", or "mean" for continuous actions."""
    return next(name for name in ("q", "logits", "mean") if hasattr(output, name))


def scores_in_words(script: ModuleType) -> str:
    """What scores the actions of a script's agents: "relative values" for Q networks, else "policy"."""
    return "relative values" if "q" in {field.name for field in dataclasses.fields(script.Output)} else "policy"


def relative_scores(output: Any) -> jax.Array:
    """[..., A]: Q values or logits minus their mean over actions, which decides nothing; or the mean action."""
    scores = getattr(output, scores_name(output))
    return scores if scores_name(output) == "mean" else scores - scores.mean(axis=-1, keepdims=True)


def action_values(output: Any) -> jax.Array:
    """[T, B, A]: Q values, the probabilities of a policy, or the mean action of a continuous one."""
    scores = getattr(output, scores_name(output))
    return jax.nn.softmax(scores) if scores_name(output) == "logits" else scores


def differentiable(args: Any) -> Callable:
    """prepare(params, obs[T, ...], others) -> (x, values) for the gradients of an agent's values.

    x[T, ...] float32 are the observations, pixels with values from 0 to 1; values(x) -> [T, A] are the `action_values`
    of the episode that they and the `other_inputs` [T, ...] make up.
    """
    script = script_of(args)
    network, _, _ = script.make_actor(args)

    def prepare(params, obs, others):
        scale = 255.0 if obs.dtype == jnp.uint8 else 1.0

        def values(x):
            carry = script.initial_carry(network, 1)
            _, output = script.forward(network, params, carry, scale * x[:, None], *(y[:, None] for y in others))
            return action_values(output)[:, 0]

        return obs.astype(jnp.float32) / scale, values

    return prepare
