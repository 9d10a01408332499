"""Makes Markdown tables for the pages from the CSV files of the analysis scripts.

    python benchmark/analysis_tables.py --csv docs/figures/analysis/*.csv
    python benchmark/analysis_tables.py --folders analysis/recall_density-* analysis/contamination-* --out pages

With --csv, each CSV of evaluate.py, recall_density.py (groups and agents), last_frames.py, contamination.py (summary),
gap_and_bias.py and filter_comparison.py (summary) gets a table next to it, with the same name and the ending .md. The
columns show which script wrote a CSV; other CSV files are ignored.

With --folders, OUT receives this CSV from each folder, under the folder's name, with its table and the pictures that
show all runs together. saliency.py writes no table; OUT receives the still pictures of each of its runs, named after
the folder and the run without its time.

Pages include the tables with `<!-- report: FILE -->` (benchmark/report.py --docs). Intervals are those of the scripts.
With several seeds of evaluate.py, the interval is the same bootstrap, over the means of the seeds.
"""

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from popgym_arcade.analysis.command_line import launch
from popgym_arcade.analysis.intervals import interval
from popgym_arcade.analysis.tables import TWINS_IN_WORDS, markdown, read_table
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import PathName

MANY = 8  # with more agents, a table is shortened
HEADS = {"single": "return", "mdp": "return, fully observable", "pomdp": "return, partially observable"}

# more tables in a folder: each environment and twin (gap_and_bias.py), each agent (recall_density.py)
FURTHER = ("cells.csv", "agents.csv")


@dataclass(frozen=True)
class Args:
    csv: tuple[PathName, ...] = ()
    """CSV files of the analysis scripts"""
    folders: tuple[PathName, ...] = ()
    """folders of the analysis scripts, instead of CSV"""
    out: PathName = ""
    """folder for the files from FOLDERS"""

    def checked(self) -> "Args":
        """These arguments. Raises UserError for flags that do not go together."""
        if bool(self.csv) == bool(self.folders) or bool(self.folders) != bool(self.out):
            raise UserError("give --csv, or --folders and --out")
        return self


def between(value: float, low: float, high: float) -> str:
    """A value with its interval, or alone if the interval is that value or unknown (NaN)."""
    value, low, high = (float(number) for number in (value, low, high))
    bounds = f" ({low:.3f} to {high:.3f})".replace(" to ", "\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}")
    return f"{value:.3f}" + ("" if low == value == high or math.isnan(low) else bounds)


def own_twin(row: dict) -> str:
    """The twin that the agent of a row was trained on: mdp, pomdp, or single for an environment without twins."""
    return "single" if row["twin"] == "single" else {"True": "pomdp", "False": "mdp"}[row["trained_partial_obs"]]


def agent_of(row: dict) -> dict[str, str]:
    """The columns of a table that identify an agent."""
    about = {"id": row["trained_env_id"], "script": row["script"], "memory": row["memory"]}
    return about | {"trained on": TWINS_IN_WORDS[own_twin(row)]}


def other_id(row: dict) -> str:
    """The id that the agent of a row plays, with its parameters; nothing if that is the one it was trained on."""
    played = f"{row.get('env_id', row['trained_env_id'])} {row.get('env_params', '')}".strip()
    return "" if played == row["trained_env_id"] else played


def played_on(row: dict) -> dict[str, str]:
    """The id and the twin that the agent of a row plays, or nothing if it was trained on them."""
    twin = "" if row["twin"] == own_twin(row) else TWINS_IN_WORDS[row["twin"]]
    return {"played on": ", ".join(filter(None, (other_id(row), twin)))}


def policy_of(row: dict) -> dict[str, str]:
    """The policy of a row of evaluate.csv, or nothing if it is the greedy one."""
    policy = row.get("policy", "greedy")
    return {"policy": "" if policy == "greedy" else policy}


def each_once(rows: list[dict], name: str, about: dict) -> dict[str, dict]:
    """The rows of one group by a column. Raises UserError for a value that appears twice, as in two groups."""
    found: dict[str, dict] = {}
    for row in rows:
        if found.setdefault(row[name], row) is not row:
            raise UserError(f"{name} {row[name]} of {', '.join(filter(None, about.values()))} appears twice")
    return found


def grouped(rows: list[dict], key: Callable[[dict], dict]) -> list[tuple[dict, list[dict]]]:
    """The rows grouped by key, in the order of the keys."""
    found: dict[tuple, list[dict]] = {}
    for row in rows:
        found.setdefault(tuple(key(row).items()), []).append(row)
    return [(dict(items), found[items]) for items in sorted(found)]


def returns_on_both_twins(rows: list[dict]) -> list[dict]:
    """From evaluate.csv: a line for each agent, with all seeds of a run and both twins side by side.

    With --against, `matches`.
    """
    if any(row.get("against") for row in rows):
        return matches(rows)

    def agent(row: dict) -> dict:
        about = agent_of(row) | {"steps": f"{int(row['global_step']):,}"}
        return about | {"played on": other_id(row)} | policy_of(row)

    def shown_return(of_twin: list[dict]) -> str:
        if len(of_twin) == 1:
            return between(*(of_twin[0][name] for name in ("return_mean", "return_low", "return_high")))
        means = np.array([float(row["return_mean"]) for row in of_twin])
        return between(means.mean(), *interval(means))

    lines = []
    for about, of_agent in grouped(rows, agent):
        own = own_twin(of_agent[0])
        names = ("single",) if own == "single" else ("mdp", "pomdp")
        twins = {twin: [row for row in of_agent if row["twin"] == twin] for twin in names}
        seeds = {row["seed"] for row in of_agent}
        if any(len(of_twin) not in (0, len(seeds)) for of_twin in twins.values()):
            raise UserError(f"the same seed of {', '.join(filter(None, about.values()))} appears twice")
        shown = {HEADS[twin]: shown_return(of_twin) if of_twin else "" for twin, of_twin in twins.items()}
        there = sorted(twins[own], key=lambda row: int(row["seed"]))
        each = ", ".join(f"{float(row['return_mean']):.3f}" for row in there) if len(there) > 1 else ""
        lines.append(about | {"seeds": str(len(seeds))} | shown | {"each seed, on its own twin": each})
    return lines


def matches(rows: list[dict]) -> list[dict]:
    """From evaluate.csv with --against: a line for each agent and opponent, with all seeds of a run together."""

    def pair(row: dict) -> dict:
        return agent_of(row) | played_on(row) | policy_of(row) | {"against": rival_of(row["against"])}

    lines = []
    for about, of_pair in grouped(rows, pair):
        counts = {name: str(sum(int(row[name]) for row in of_pair)) for name in ("won", "drawn", "lost")}
        means = np.array([float(row["return_mean"]) for row in of_pair])
        shown = between(means.mean(), *interval(means))
        each = ", ".join(f"{mean:.3f}" for mean in means)
        lines.append(about | {"seeds": str(len(of_pair))} | counts | {"return": shown, "each seed": each})
    return lines


def rival_of(run: str) -> str:
    """Memory and twin of an opponent, from the name of its run folder; another name stays as it is."""
    parts = run.split("__")  # id, twin, experiment, memory, seed, time
    if len(parts) != 6 or parts[1] not in TWINS_IN_WORDS:
        return run
    return f"{parts[3]}, {TWINS_IN_WORDS[parts[1]]}".rstrip(", ")


def density_of_thirds(rows: list[dict]) -> list[dict]:
    """From recall_density.csv: the share of each third of an episode, and of the last frame."""
    heads = {"first": "first third", "middle": "middle", "last": "last third", "last_frame": "last frame alone"}
    lines = []
    for row in sorted(rows, key=lambda row: (*agent_of(row).values(), row["twin"])):
        shown = {head: between(*(row[name + what] for what in ("", "_low", "_high"))) for name, head in heads.items()}
        lines.append(agent_of(row) | played_on(row) | {"seeds": row["agents"]} | shown)
    return lines


def first_frame_by_seed(rows: list[dict]) -> list[dict]:
    """From recall_density.py's agents.csv: each seed's return, and the share of the first frame."""
    lines = []
    for about, of_group in grouped(rows, lambda row: agent_of(row) | played_on(row)):
        of_group = sorted(of_group, key=lambda row: int(row["seed"]))
        seeds = [row["seed"] for row in of_group]
        if len(set(seeds)) < len(seeds):
            raise UserError(f"the same seed of {', '.join(filter(None, about.values()))} appears twice")
        lines.append(
            about
            | {"seeds": ", ".join(seeds)}
            | {"return of each": ", ".join(f"{float(row['return_mean']):.2f}" for row in of_group)}
            | {"share of the first frame": ", ".join(f"{float(row['first_frame']):.4f}" for row in of_group)}
        )
    return lines


def needed_and_looked_at(rows: list[dict]) -> list[dict]:
    """From last_frames.csv: for each number of frames, the return, and the shares of return and gradient."""
    heads = {"mean_return": "return", "kept": "share of the return", "looked_at": "share of the gradient"}
    lines = []
    for about, of_agent in grouped(rows, lambda row: agent_of(row) | played_on(row) | {"seeds": row["agents"]}):
        by_frames = each_once(of_agent, "frames", about)
        for name, head in heads.items():
            shown = {
                f"last {frames}".replace("last all", "all frames"): between(
                    *(row[name + what] for what in ("", "_low", "_high"))
                )
                for frames, row in by_frames.items()
            }
            lines.append(about | {"": head} | shown)
    return lines


def lasting_effects(rows: list[dict]) -> list[dict]:
    """From contamination.py's summary: the effect of a bad frame or a shuffled past at once and one step later, and how
    long it lasts. With more than MANY agents, only the strongest change of each kind.
    """
    if len(grouped(rows, agent_of)) > MANY:
        strengths = {
            row["kind"]: float(row["strength"]) for row in sorted(rows, key=lambda row: float(row["strength"]))
        }
        rows = [row for row in rows if float(row["strength"]) == strengths[row["kind"]]]

    def change(row: dict) -> dict:
        strength = f"{float(row['strength']):g}"
        words = f"noise, sigma {strength}" if row["kind"] == "noise" else f"first {strength} frames shuffled"
        return agent_of(row) | played_on(row) | {"change": words}

    lines = []
    for about, of_change in grouped(rows, change):
        measures = each_once(of_change, "measure", about)
        shown = {}
        for measure, name in (("relative_values", "Q − mean Q"), ("kl", "KL")):
            if measure in measures:
                row = measures[measure]
                shown[f"{name}, at once"] = f"{float(row['at_once']):.3f}"
                shown[f"{name}, one step later"] = one_step_later(row, "{:.3f}")
                shown[f"{name}, largest"] = f"{float(row['largest']):.3f}"
                shown[f"half-life of {name}"] = row["half_life"] or "not reached"
        if "flips" in measures:  # continuous actions have none
            shown["greedy actions changed at once"] = f"{float(measures['flips']['at_once']):.0%}"
            shown["one step later"] = one_step_later(measures["flips"], "{:.0%}")
        lines.append(about | shown)
    return lines


def one_step_later(row: dict, form: str) -> str:
    """That column of a summary's row; empty if too few episodes last so long."""
    return form.format(float(row["one_step_later"])) if row["one_step_later"] else ""


def gaps(rows: list[dict]) -> list[dict]:
    """From gap_and_bias.csv: a line for each algorithm, memory and environment, and one over all environments if there
    are several.
    """
    several = len({row["env_id"] for row in rows} - {"all"}) > 1
    heads = {"pomdp_return": "POMDP return", "mdp_return": "MDP return", "gap": "gap", "bias": "bias"}
    lines = []
    for about, of_agent in grouped(rows, lambda row: {name: row[name] for name in ("env_id", "algorithm", "memory")}):
        if about["env_id"] == "all" and not several:
            continue
        found = {row["quantity"]: row for row in of_agent}
        shown = {}
        for quantity, head in heads.items():
            row = found.get(quantity, {})
            value = row.get("value") and [row["value"], row["low"] or row["value"], row["high"] or row["value"]]
            shown[head] = between(*value) if value else ""
        lines.append({"id": about["env_id"], "algorithm": about["algorithm"], "memory": about["memory"]} | shown)
    return lines


def distances(rows: list[dict]) -> list[dict]:
    """From filter_comparison.py's summary: the last step, a line for each pair of groups, layer and matching. Matchings
    with the same numbers share a line.
    """
    matchings: dict[tuple, list[str]] = {}
    for row in rows:
        if row["step"] == "last":
            about = {"group A": row["group_a"], "group B": row["group_b"], "layer": row["layer"], "pairs": row["pairs"]}
            about |= {"distance": between(row["distance_mean"], row["low"], row["high"])}
            about |= {"relative distance": f"{float(row['relative']):.3f}"}
            matchings.setdefault(tuple(about.items()), []).append(row["matching"])
    return [dict(about) | {"matching": " or ".join(names)} for about, names in matchings.items()]


LAYOUTS: dict[str, Callable[[list[dict]], list[dict]]] = {  # keyed by a column that only this table has
    "return_low": returns_on_both_twins,
    "last_frame_low": density_of_thirds,
    "kept_low": needed_and_looked_at,
    "first_frame": first_frame_by_seed,
    "half_life": lasting_effects,
    "quantity": gaps,
    "pairs": distances,
}


def table(path: Path) -> str | None:
    """The Markdown table of an analysis script's CSV, None for any other CSV. Raises UserError if it is not a table."""
    rows = read_table(path, flag="--csv")
    layouts = [LAYOUTS[name] for name in LAYOUTS if rows and name in rows[0] and "runs" not in rows[0]]
    if not layouts:
        return None
    (layout,) = layouts
    try:
        lines = layout(rows)
    except UserError as error:
        raise UserError(f"--csv {path}: {error}") from None
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"--csv {path}: a column is missing or malformed: {error!r}") from None
    head = list(dict.fromkeys(name for line in lines for name in line))
    return markdown(head, [[line.get(name, "") for name in head] for line in lines])


def pictures_of_saliency(folder: Path) -> dict[str, Path]:
    """The still pictures in a folder of saliency.py, keyed by their names on the pages; empty for any other folder."""
    found: dict[str, Path] = {}
    for kind in ("grid", "line", "perturbation"):
        for path in sorted(folder.glob(f"*__{kind}.png")):
            run = re.sub(r"__\d{8}-\d{6}(-\d+)?", "", path.stem)  # the name of a run folder ends in its time
            name = f"{folder.name}__{run}.png"
            if name in found:
                raise UserError(f"--folders {folder}: two runs are named {run.removesuffix(f'__{kind}')}")
            found[name] = path
    return found


def taken_from(folder: Path) -> dict[str, Path]:
    """The files of a folder that pages can show, keyed by their names on the pages: the table and the pictures of all
    runs together; for saliency.py, the pictures of each run.

    Raises UserError for a folder that no analysis script wrote, or that has several such tables.
    """
    found = [path for path in sorted(folder.glob("*.csv")) if path.name not in FURTHER and table(path) is not None]
    of_saliency = {} if found else pictures_of_saliency(folder)
    if of_saliency:
        return of_saliency
    if len(found) != 1:
        raise UserError(f"--folders {folder}: it has {len(found) or 'no'} tables of an analysis script")
    others = [path for path in sorted(folder.glob("*.png")) if "__" not in path.stem]
    others += [folder / name for name in FURTHER if (folder / name).exists()]
    named = {path.name if path.stem == folder.name else f"{folder.name}_{path.name}": path for path in others}
    return {f"{folder.name}.csv": found[0]} | named


def main(args: Args) -> None:
    """Writes the tables. Raises UserError before anything is written."""
    args = args.checked()
    found: dict[str, Path] = {}
    for folder in map(Path, args.folders):
        new = taken_from(folder)
        if set(new) & set(found):
            raise UserError(f"--folders: two folders are named {folder.name}")
        found |= new
    tables = {path: table(path) for path in (*map(Path, args.csv), *found.values()) if path.suffix == ".csv"}
    if args.csv and not any(tables.values()):
        raise UserError(f"--csv {' '.join(args.csv)}: none of these is a table of an analysis script")
    if found:
        Path(args.out).mkdir(parents=True, exist_ok=True)
    for name, path in found.items():
        shutil.copyfile(path, Path(args.out, name))
    places = {path: Path(args.out, name) for name, path in found.items()}
    for path, text in tables.items():
        if text is not None:
            places.get(path, path).with_suffix(".md").write_text(text)


if __name__ == "__main__":
    launch(main, Args)
