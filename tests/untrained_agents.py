"""Run folders of agents that were never trained, for the tests of the analysis scripts: no training is compiled."""

import dataclasses
import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
from scripts import fresh_params, script, small

ROOT = Path(__file__).parents[1]
PLAYERS = ("evaluate", "saliency", "recall_density", "contamination")  # they load agents and play
ANALYSIS = (*PLAYERS, "gap_and_bias", "filter_comparison")
STEP = 64


def untrained(name, folder, **changes):
    """A run folder of a script with fresh parameters; those of the second seed are twice the first's, and so on."""
    module, args = script(name), small(name, run_dir=str(folder), **changes)
    run = module.make_run_folder(args)
    _, params = fresh_params(name, args)
    if args.num_seeds > 1:
        params = jax.tree.map(lambda x: jnp.stack([(i + 1) * x for i in range(args.num_seeds)]), params)
    module.save_checkpoint(run, STEP, {"params": params})
    return run


def agent_in(analysis, run, twin="own"):
    """The agent of a run as an analysis script has it, of the first seed."""
    module = importlib.import_module(analysis)
    return module.one_seed(module.in_twins(module.load_agent(Path(run)), twin)[0], 0)


def bold(agent, factor=100):
    """The agent with larger heads: what fresh actor-critics say of different frames differs too little for float32."""
    larger = lambda path, x: factor * x if "head" in jax.tree_util.keystr(path) else x  # noqa: E731
    return dataclasses.replace(agent, params=jax.tree_util.tree_map_with_path(larger, agent.params))
