"""Returns on training levels and on unseen levels, by the number of levels in training.

    python benchmark/levels.py --runs 'runs/levels_cpu/*/*__*' --out analysis/levels

Each run was trained with `--env-params num_levels=N` or on all levels. The last checkpoint of every seed plays greedily
on its training levels and on UNSEEN. Writes OUT/levels.csv (a row per run, seed and kind of levels), OUT/levels.md and
OUT/levels.png. Returns are normalised: 0 is the random policy (benchmark/results/random_policy.csv), 1 the best
possible (benchmark/results/oracle.csv).
"""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import evaluate  # noqa: E402
from popgym_arcade.analysis.agents import Agent, load_agent  # noqa: E402
from popgym_arcade.analysis.command_line import AnalysisArgs, launch  # noqa: E402
from popgym_arcade.analysis.intervals import interval  # noqa: E402
from popgym_arcade.analysis.output import new_folder  # noqa: E402
from popgym_arcade.analysis.reference_returns import Reference, reference_returns  # noqa: E402
from popgym_arcade.analysis.runs import find_runs  # noqa: E402
from popgym_arcade.analysis.tables import markdown  # noqa: E402
from popgym_arcade.baselines.errors import UserError  # noqa: E402
from popgym_arcade.baselines.limits import Count, NonNegativeInt  # noqa: E402
from popgym_arcade.baselines.running.files import write_csv  # noqa: E402

UNSEEN = ("start_level=1000000", "num_levels=1000000")
KINDS = {"training levels": (), "unseen levels": UNSEEN}
COLUMNS = ("run", "env_id", "num_levels", "levels", "seed", "episodes", "return_mean", "normalized")


@dataclass(frozen=True)
class Args(AnalysisArgs):
    episodes: Count = 512
    """episodes of each seed on each kind of levels"""
    seed: NonNegativeInt = 1_000
    """seed of the episodes"""


def check(agent: Agent) -> None:
    """Raises UserError for an agent whose returns cannot be compared."""
    num_levels(agent)
    reference_of(agent.args.env_id)


def num_levels(agent: Agent) -> int:
    """How many levels the agent was trained on; 0: all. Raises UserError if UNSEEN contains any of them."""
    given = dict(change.split("=") for change in agent.saved.env_params)
    count = int(given.get("num_levels", 0))
    if count + int(given.get("start_level", 0)) > 1_000_000:
        raise UserError(f"{agent.name}: trained on levels from 1,000,000 on, which must be unseen")
    return count


def reference_of(env_id: str) -> Reference:
    """Mean returns of the random policy and of the player that knows the whole state. Raises UserError without them."""
    if env_id not in reference_returns():
        raise UserError(f"{env_id}: only the ids of popgym_arcade have levels")
    return reference_returns()[env_id]


def rows_of(agent: Agent, args: Args) -> list[dict]:
    """The rows of one run, one per kind of levels and seed."""
    count, reference = num_levels(agent), reference_of(agent.args.env_id)
    in_training = dataclasses.replace(agent.args, eval_env_params=(), eval_episodes=args.episodes)
    rows = []
    for kind, changes in KINDS.items():
        player = dataclasses.replace(agent, args=in_training.in_evaluation(changes))
        for i, returns in enumerate(evaluate.play(player, seed=args.seed).returns):
            mean = float(returns.mean())
            normalized = (mean - reference.random) / (reference.best - reference.random)
            about = (agent.name, agent.args.env_id, count, kind, agent.args.seed + i, returns.size, round(mean, 4))
            rows.append(dict(zip(COLUMNS, (*about, round(normalized, 4)), strict=True)))
    return rows


def by_count(rows: list[dict], env_id: str, kind: str) -> dict[int, np.ndarray]:
    """Normalised returns of all seeds by number of levels, in ascending order, with all levels last."""
    chosen = [row for row in rows if row["env_id"] == env_id and row["levels"] == kind]
    counts = sorted({row["num_levels"] for row in chosen}, key=lambda count: count or np.inf)
    return {count: np.array([row["normalized"] for row in chosen if row["num_levels"] == count]) for count in counts}


def table(rows: list[dict]) -> str:
    """Markdown: a line per game and number of levels."""
    lines = []
    for env_id in sorted({row["env_id"] for row in rows}):
        own, unseen = (by_count(rows, env_id, kind) for kind in KINDS)
        for count in own:
            cells = [env_id, str(count or "all"), str(own[count].size)]
            for values in (own[count], unseen[count], own[count] - unseen[count]):
                low, high = interval(values)
                cells.append(f"{values.mean():.3f}" + (f" ({low:.3f} to {high:.3f})" if values.size > 1 else ""))
            lines.append(cells)
    return markdown(["id", "levels", "seeds", *KINDS, "gap"], lines)


def picture(rows: list[dict], path: Path) -> None:
    """A panel per game: normalised return over the number of levels, on those levels and on unseen ones."""
    env_ids = sorted({row["env_id"] for row in rows})
    figure, panels = plt.subplots(
        1, len(env_ids), figsize=(1 + 3.6 * len(env_ids), 3.4), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, env_id in zip(panels[0], env_ids, strict=True):
        for kind, color in zip(KINDS, ("#1864ab", "#d9480f"), strict=True):
            found = by_count(rows, env_id, kind)
            places = range(len(found))
            low, high = np.transpose([interval(values) for values in found.values()])
            panel.plot(places, [values.mean() for values in found.values()], color=color, marker="o", label=kind)
            panel.fill_between(places, low, high, color=color, alpha=0.2, linewidth=0)
        panel.set(title=env_id, xlabel="levels in training", xticks=places, ylim=(-0.1, 1.05))
        panel.set_xticklabels([f"{count:,}" if count else "all" for count in found])
        panel.axhline(0, color="grey", linewidth=0.8, linestyle=":")
        panel.axhline(1, color="grey", linewidth=0.8, linestyle=":")
    panels[0, 0].set_ylabel("return: 0 random, 1 best")
    panels[0, 0].legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(args: Args) -> Path:
    """Plays all runs, prints the table, writes the results and returns their folder."""
    args = args.checked()
    agents = [load_agent(folder) for folder in find_runs(args.runs)]
    for agent in agents:
        check(agent)
    with new_folder(args) as out:
        rows = [row for agent in agents for row in rows_of(agent, args)]
        write_csv(out / "levels.csv", COLUMNS, rows)
        (out / "levels.md").write_text(table(rows))
        picture(rows, out / "levels.png")
    print(table(rows), f"written to {out}", sep="\n")
    return out


if __name__ == "__main__":
    launch(main, Args)
