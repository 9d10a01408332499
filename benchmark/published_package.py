"""Times the environments of the published popgym-arcade 0.0.7 next to ours, in one run.

    python benchmark/published_package.py                                # the ten Easy ids, half an hour on two cores
    python benchmark/published_package.py --env-ids NavigatorEasy --twins mdp pomdp

The published package has the same name as ours, so it is installed into an environment of its own
(`--environment`, once). Both packages play random actions with auto-resets in the same number of environments and write
every frame of 128 px to memory. They are timed in turn, so that other load on the machine affects both. Run nothing
else on the machine.
Out: a table on the terminal; published_package.csv, .md and .png in `--out`.
"""

import json
import os
import subprocess
import sys
import venv
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import geometric_mean, median

import matplotlib
from throughput import machine

from popgym_arcade import REGISTERED_ENVIRONMENTS
from popgym_arcade.analysis.command_line import launch
from popgym_arcade.analysis.tables import TWINS_IN_WORDS, markdown
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, PathName, Positive, check_limits
from popgym_arcade.baselines.running.files import write_csv

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (after the choice of the backend)

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ("popgym-arcade==0.0.7", "six")  # its wheel imports six without requiring it
EASY = tuple(name for name in REGISTERED_ENVIRONMENTS if name.endswith("Easy"))
TWINS = ("mdp", "pomdp")
COLORS = {"published": "#9a9a9a", "ours": "#2a6fbb"}


@dataclass(frozen=True)
class Args:
    env_ids: tuple[str, ...] = EASY
    """ids to measure"""
    twins: tuple[str, ...] = ("mdp",)
    """twins to measure: mdp (fully observable), pomdp (partially observable)"""
    num_envs: Count = 64
    """parallel environments"""
    repeats: Count = 5
    """measurements of each package, in turn; the median counts"""
    seconds: Positive = 3.0
    """length of a measurement; longer if a single call takes longer"""
    environment: PathName = ".cache/popgym-arcade-0.0.7"
    """folder of the published package's environment, created if it is missing"""
    out: PathName = "runs/published_package"
    """folder that receives the CSV, the table and the picture"""

    def checked(self) -> "Args":
        """These arguments. Raises UserError for a wrong value, before anything is installed or measured."""
        check_limits(self)
        for name, allowed in (("env_ids", tuple(REGISTERED_ENVIRONMENTS)), ("twins", TWINS)):
            flag, values = "--" + name.replace("_", "-"), getattr(self, name)
            unknown = [value for value in values if value not in allowed]
            if unknown:
                raise UserError(f"{flag} {unknown[0]!r} is unknown: use {', '.join(allowed)}")
            if not values or len(set(values)) < len(values):
                raise UserError(f"{flag} {' '.join(values)}: name at least one, and each once")
        return self


@dataclass(frozen=True)
class Row:
    """One line of the table and of the CSV."""

    env_id: str
    """id of the environment"""
    twin: str
    """mdp or pomdp"""
    num_envs: int
    """parallel environments"""
    published: float
    """frames per second of the published package; median of the repeats"""
    ours: float
    """frames per second of this one; median of the repeats"""
    factor: float
    """median of ours / published over the repeats"""
    published_first_call: float
    """seconds to compile and run the published package's first rollout"""
    ours_first_call: float
    """the same for this one"""
    repeats: int
    """measurements of each"""
    cpu: str
    """the processor's name"""
    cores: int
    """cores that this process may use"""
    device: str
    """the device that jax used here"""
    jax: str
    """version of jax here"""


class Worker:
    """A process that plays one environment with one of the two packages."""

    def __init__(self, python: str, folder: Path, env_id: str, twin: str, num_envs: int):
        command = [python, str(ROOT / "benchmark" / "published_worker.py")]
        self.what = f"{env_id} ({twin}) with {python}"
        shared = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=shared | {"PYTHONPATH": str(folder)}
        )
        self.first = self.ask({"env_id": env_id, "partial_obs": twin == "pomdp", "num_envs": num_envs})

    def ask(self, question) -> dict:
        """The answer to one line. Raises UserError if the process has died; its own error is on the terminal."""
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline()
        if not line:
            raise UserError(f"{self.what} failed with exit code {self.process.wait()}, see above")
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def published_python(environment: str) -> str:
    """The interpreter of an environment with the published package, which is created and filled if it is missing.

    Raises UserError if pip fails, or if the folder is not such an environment, or only a part of one.
    """
    folder = ROOT / environment
    python = folder / "bin" / "python"
    installed = folder / "installed"  # written last
    if not installed.exists():
        if folder.exists():
            raise UserError(f"--environment {folder} has no complete installation: remove it, or use another folder")
        print(f"installing {' '.join(REQUIREMENTS)} into {folder}", flush=True)
        venv.create(folder, with_pip=True)
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS])
        if done.returncode:
            raise UserError(f"pip could not install {' '.join(REQUIREMENTS)}, see above")
        installed.write_text("\n".join(REQUIREMENTS) + "\n")
    return str(python)


def measure(env_id: str, twin: str, python: str, args: Args) -> Row:
    """Compiles one environment of both packages, one after the other, and times them in turn."""
    with ExitStack() as stack:
        published = stack.enter_context(Worker(python, ROOT / args.environment, env_id, twin, args.num_envs))
        ours = stack.enter_context(Worker(sys.executable, ROOT, env_id, twin, args.num_envs))
        if published.first["file"] == ours.first["file"]:
            raise UserError(f"--environment {args.environment}: it imports {ours.first['file']}, which is this package")
        for worker in published, ours:
            worker.ask(args.seconds)  # the first steps of the published Breakout take ten times as long as later ones
        speeds = [
            tuple(worker.ask(args.seconds)["frames_per_second"] for worker in (published, ours))
            for _ in range(args.repeats)
        ]
    return Row(
        env_id=env_id,
        twin=twin,
        num_envs=args.num_envs,
        published=median(theirs for theirs, _ in speeds),
        ours=median(own for _, own in speeds),
        factor=median(own / theirs for theirs, own in speeds),
        published_first_call=published.first["first_call_seconds"],
        ours_first_call=ours.first["first_call_seconds"],
        repeats=args.repeats,
        **machine(),
    )


def table(rows: list[Row]) -> str:
    """A Markdown table with a line per id and twin, and the geometric means of each twin. One twin is not named."""
    lines, twins = [], list(dict.fromkeys(row.twin for row in rows))
    for twin in twins:
        of_twin = sorted((row for row in rows if row.twin == twin), key=lambda row: row.env_id)
        words = TWINS_IN_WORDS[twin] if len(twins) > 1 else ""
        lines += [
            [row.env_id, words, *shown(row.published, row.ours, row.factor)]
            + [f"{row.published_first_call:.1f}", f"{row.ours_first_call:.1f}"]
            for row in of_twin
        ]
        means = (geometric_mean(getattr(row, name) for row in of_twin) for name in ("published", "ours", "factor"))
        lines.append(["geometric mean", words, *shown(*means), "", ""])
    head = ["id", "twin", "published, frames/s", "ours, frames/s", "factor"]
    return markdown([*head, "published, first call, s", "ours, first call, s"], lines)


def shown(published: float, ours: float, factor: float) -> tuple[str, str, str]:
    """The three numbers as the table shows them."""
    return f"{published:,.0f}", f"{ours:,.0f}", f"{factor:,.0f}"


def draw(rows: list[Row], path: Path) -> None:
    """Frames per second of both packages on one logarithmic axis: a line of two dots per id, the slowest on top."""
    rows = sorted(rows, key=lambda row: row.published, reverse=True)
    several = len({row.twin for row in rows}) > 1
    names = [row.env_id.removesuffix("Easy") + (f", {TWINS_IN_WORDS[row.twin]}" if several else "") for row in rows]
    figure, axes = plt.subplots(figsize=(7.2, 1.4 + 0.34 * len(rows)), layout="constrained")
    places = range(len(rows))
    axes.hlines(
        places, [row.published for row in rows], [row.ours for row in rows], color="#d0d0d0", linewidth=2, zorder=1
    )
    for package, label in (("published", "POPGym Arcade 0.0.7"), ("ours", "this package")):
        speeds = [getattr(row, package) for row in rows]
        axes.scatter(speeds, places, s=70, color=COLORS[package], label=label, zorder=2)
    for place, row in zip(places, rows, strict=True):
        axes.annotate(f"{row.factor:,.0f}×", (row.ours, place), (10, 0), textcoords="offset points", va="center")
    axes.set_xscale("log")
    axes.set_xlim(right=4 * max(row.ours for row in rows))
    axes.set_yticks(places, names)
    axes.set_xlabel(f"frames per second, {rows[0].num_envs} environments, {rows[0].cores} cores (logarithmic)")
    axes.grid(axis="x", color="#eeeeee")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=200)
    plt.close(figure)


def write(rows: list[Row], out: Path) -> None:
    """Writes the CSV, the table and the picture."""
    lines = [{k: f"{v:.6g}" if isinstance(v, float) else v for k, v in vars(row).items()} for row in rows]
    write_csv(out / "published_package.csv", [field.name for field in fields(Row)], lines)
    (out / "published_package.md").write_text(table(rows))
    draw(rows, out / "published_package.png")


def main(args: Args) -> None:
    """Installs the published package if it is missing, and measures every id and twin. Writes after each of them."""
    args = args.checked()
    python = published_python(args.environment)
    out, rows = Path(args.out), []
    out.mkdir(parents=True, exist_ok=True)
    for twin in args.twins:
        for env_id in args.env_ids:
            rows.append(measure(env_id, twin, python, args))
            row = rows[-1]
            speeds = f"{row.published:,.0f} (published) and {row.ours:,.0f} (ours) frames/s"
            print(f"{env_id} {twin}: {speeds}, factor {row.factor:,.0f}", flush=True)
            write(rows, out)
    print(table(rows))


if __name__ == "__main__":
    launch(main, Args)
