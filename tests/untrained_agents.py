"""Run folders of agents that were never trained, for the tests of the analysis scripts: no training is compiled."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
from scripts import fresh_params, small

from popgym_arcade.analysis.agents import load_agent, one_seed
from popgym_arcade.analysis.twins import in_twins
from popgym_arcade.baselines.running.checkpoints import save_checkpoint
from popgym_arcade.baselines.running.folder import make_run_folder

ROOT = Path(__file__).parents[1]
PLAYERS = ("evaluate", "saliency", "recall_density", "last_frames", "contamination")  # they load agents and play
ANALYSIS = (*PLAYERS, "gap_and_bias", "filter_comparison")
STEP = 64
HEADS = re.compile(r"\b(head|policy|value)\b")


def untrained(name, folder, **changes):
    """A run folder of a script with fresh parameters; those of the second seed are twice the first's, and so on."""
    args = small(name, run_dir=str(folder), **changes)
    run = make_run_folder(args)
    _, params = fresh_params(name, dataclasses.replace(args, num_seeds=1))
    if args.num_seeds > 1:
        params = jax.tree.map(lambda x: jnp.stack([(i + 1) * x for i in range(args.num_seeds)]), params)
    save_checkpoint(run, args, STEP, {"params": params})
    return run


def agent_in(run, twin="own"):
    """The agent of a run, of the first seed."""
    return one_seed(in_twins(load_agent(run), twin)[0], 0)


def bold(agent, factor=100):
    """The agent with larger heads: what fresh actor-critics say of different frames differs too little for float32."""
    larger = lambda path, x: factor * x if HEADS.search(jax.tree_util.keystr(path)) else x
    return dataclasses.replace(agent, params=jax.tree_util.tree_map_with_path(larger, agent.params))
