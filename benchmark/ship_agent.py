"""Copies a trained agent in a form small enough for the repository: only its parameters, rounded and evaluated again.

    python benchmark/ship_agent.py --run 'runs/SkittlesEasy__pomdp__pqn_rnn__MinGRU__0__*' --seed-index 1

Large arrays are rounded to multiples of a power of two, with --bits bits including the sign, and stored as float16,
which holds such numbers exactly; they then compress to a quarter. The copy is a run folder like any other (args.json,
the script, one checkpoint, eval.csv), named after its id. Its eval.csv has the random policy's evaluation from the
training, and the greedy return of the rounded parameters on other episodes.
"""

import dataclasses
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import numpy as np

from popgym_arcade.analysis.agents import Agent, load_agent, one_seed
from popgym_arcade.analysis.command_line import launch
from popgym_arcade.analysis.runs import find_runs
from popgym_arcade.analysis.tables import read_csv
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, NonNegativeInt, PathName, Range, check_limits
from popgym_arcade.baselines.running.checkpoints import file_digests, save_checkpoint
from popgym_arcade.baselines.running.files import write_csv
from popgym_arcade.baselines.running.folder import removed_on_failure

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
import evaluate  # noqa: E402

SMALL = 1_000  # arrays with fewer numbers are not rounded


@dataclass(frozen=True)
class Args:
    run: PathName
    """run folder"""
    seed_index: NonNegativeInt = 0
    """which of its seeds"""
    out: PathName = "agents"
    """folder that receives the copy"""
    bits: Annotated[int, Range(0, 24)] = 8
    """bits of a rounded number, 2 or more; 0: no rounding"""
    episodes: Count = 256
    """episodes to measure the copy's greedy return on"""
    episodes_seed: NonNegativeInt = 1_000
    """seed of these episodes"""


def rounded(x: np.ndarray, bits: int) -> np.ndarray:
    """x as multiples of the smallest power of two for which its largest number fits `bits` bits, including the sign."""
    x = np.asarray(x)
    if not bits or x.size < SMALL or not np.abs(x).max():
        return x
    step = 2.0 ** np.ceil(np.log2(np.abs(x).max() / (2 ** (bits - 1) - 1)))
    return (np.round(x / step) * step).astype(x.dtype)


def halved(x: np.ndarray) -> np.ndarray:
    """x as float16 if that changes no number, otherwise x."""
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    return half if (half == x).all() else x


def forget_paths(checkpoint: Path) -> None:
    """Removes this machine's paths from orbax's marker files, and updates the digests."""
    for mark in checkpoint.rglob("commit_success.txt"):
        mark.write_text("Checkpoint commit was successful\n")
    (checkpoint / "sha256.json").write_text(json.dumps(file_digests(checkpoint)))


def ship(args: Args) -> Path:
    """Writes the copy and returns its folder. Raises UserError if there is no such run, or the copy exists."""
    check_limits(args)
    if args.bits == 1:
        raise UserError("--bits 1: use 2 or more, or 0 for no rounding")
    runs = find_runs((args.run,))
    if len(runs) > 1:
        raise UserError(f"{args.run} matches {len(runs)} runs: name one of them")
    (run,) = runs
    trained = load_agent(run)
    if args.seed_index >= trained.args.num_seeds:
        raise UserError(f"--seed-index {args.seed_index}: {run.name} has {trained.args.num_seeds} seeds")
    agent = one_seed(trained, args.seed_index)
    folder = Path(args.out) / agent.args.env_id
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise UserError(f"{folder} already exists") from None
    with removed_on_failure(folder):
        write_copy(args, run, agent, folder)
    return folder


def write_copy(args: Args, run: Path, agent: Agent, folder: Path) -> None:
    """Writes the agent's arguments, script, rounded parameters and returns to the folder."""
    about = json.loads((run / "args.json").read_text())
    about["args"] |= {"run_dir": "runs", "resume": ""}  # instead of paths of the machine it was trained on
    about["args"] |= {"num_seeds": 1, "seed": agent.args.seed}
    about.pop("script_path", None)
    about["rounded_to_bits"] = args.bits
    (folder / "args.json").write_text(json.dumps(about, indent=2))
    script = Path(agent.script.__file__)
    shutil.copyfile(script, folder / script.name)
    params = jax.tree.map(lambda x: rounded(x, args.bits), agent.params)
    save_checkpoint(folder, agent.args, agent.step, {"params": jax.tree.map(halved, params)})
    forget_paths(folder / "checkpoints" / str(agent.step))
    copy = load_agent(folder)
    copy = dataclasses.replace(copy, args=dataclasses.replace(copy.args, eval_episodes=args.episodes))
    measured = evaluate.rows_of(evaluate.play(copy, seed=args.episodes_seed))
    rows = read_csv(run / "eval.csv")
    rows = [row for row in rows if (row["policy"], row["seed"]) == ("random", str(agent.args.seed))]
    rows += [{name: row[name] for name in rows[0]} for row in measured]
    write_csv(folder / "eval.csv", rows[0], rows)


if __name__ == "__main__":
    folder = launch(ship, Args)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 1e6:.1f} MB", (folder / "eval.csv").read_text(), sep="\n")
