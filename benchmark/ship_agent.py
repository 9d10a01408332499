"""Makes a trained agent small enough to be kept in the repository: parameters alone, rounded, measured again.

    python benchmark/ship_agent.py --run 'runs/SkittlesEasy__pomdp__pqn_rnn__GRU__0__*'

Large arrays are rounded to whole multiples of a power of two, --bits bits with the sign: that compresses to a third.
The copy is a run folder like any other (args.json, one checkpoint, eval.csv) and is loaded like one. Its eval.csv holds
the random policy's evaluation from the training, and the greedy return of the rounded parameters on other episodes.
"""

import csv
import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import tyro

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
import evaluate  # noqa: E402

SMALL = 1_000  # numbers; an array with fewer stays as it is


@dataclass(frozen=True)
class Args:
    run: str
    """run folder"""
    out: str = "agents"
    """folder that receives the copy"""
    bits: int = 8
    """bits of a rounded number; 0: no rounding"""
    episodes: int = 256
    """episodes that the copy's greedy return is measured on"""
    seed: int = 1_000
    """seed of these episodes"""


def rounded(x: np.ndarray, bits: int) -> np.ndarray:
    """x as float32 multiples of the power of two with which its largest fits `bits` bits, the sign among them."""
    x = np.asarray(x)
    if not bits or x.size < SMALL or not np.abs(x).max():
        return x
    step = 2.0 ** np.ceil(np.log2(np.abs(x).max() / (2 ** (bits - 1) - 1)))
    return (np.round(x / step) * step).astype(x.dtype)


def forget_paths(checkpoint: Path, script: ModuleType) -> None:
    """Takes this machine's paths out of orbax's marks, and brings the digests up to date."""
    for mark in checkpoint.rglob("commit_success.txt"):
        mark.write_text("Checkpoint commit was successful\n")
    (checkpoint / "sha256.json").write_text(json.dumps(script.file_digests(checkpoint)))


def ship(args: Args) -> Path:
    """Writes the copy and returns its folder. Raises UserError when there is no run, or a copy already."""
    (run,) = evaluate.find_runs((args.run,))
    agent = evaluate.load_agent(run)
    folder = Path(args.out) / run.name.rpartition("__")[0]
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise evaluate.UserError(f"{folder} exists already") from None
    about = json.loads((run / "args.json").read_text())
    about["args"] |= {"run_dir": "runs", "resume": ""}  # paths of the machine it was trained on
    about["rounded_to_bits"] = args.bits
    (folder / "args.json").write_text(json.dumps(about, indent=2))
    params = jax.tree.map(lambda x: rounded(x, args.bits), agent.params)
    agent.script.save_checkpoint(folder, agent.step, {"params": params})
    forget_paths(folder / "checkpoints" / str(agent.step), agent.script)
    copy = evaluate.load_agent(folder)
    copy = dataclasses.replace(copy, args=dataclasses.replace(copy.args, eval_episodes=args.episodes))
    measured = evaluate.rows_of(evaluate.play(copy, seed=args.seed))
    with (run / "eval.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["policy"] == "random"]
    rows += [{name: row[name] for name in rows[0]} for row in measured]
    evaluate.write_csv(folder / "eval.csv", tuple(rows[0]), rows)
    return folder


if __name__ == "__main__":
    try:
        folder = ship(tyro.cli(Args, description=__doc__))
    except evaluate.UserError as error:
        print(f"ship_agent.py: error: {error}", file=sys.stderr)
        sys.exit(2)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 1e6:.1f} MB", (folder / "eval.csv").read_text(), sep="\n")
