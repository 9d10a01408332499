"""Frames per second of the environments under random actions, next to a plain fill of the same bytes.

A rollout is one compiled `scan` over `--steps` steps of `--num-envs` environments, including auto-reset. Every frame is
written to memory. The fill writes the same bytes in the same kind of scan. The two are timed in turn, so that other
load on the machine affects both. `make throughput` measures all environments, including gymnax's own.

Run:   python benchmark/throughput.py --env-ids NavigatorEasy CountRecallEasy --num-envs 16 64 256
Out:   a table on the terminal; throughput.csv, throughput.md and throughput.png in `--out`
"""

import csv
import dataclasses
import difflib
import itertools
import os
import platform
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median

import gymnax
import jax
import jax.numpy as jnp
import matplotlib
from jax.experimental.compilation_cache import compilation_cache

import popgym_arcade
from popgym_arcade.analysis.command_line import launch
from popgym_arcade.analysis.tables import TWINS_IN_WORDS, markdown
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, PathName, check_limits
from popgym_arcade.baselines.running.files import write_csv
from popgym_arcade.environments.arcade import OBS_SIZES
from popgym_arcade.worlds import make_world

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (after the choice of the backend)

TWINS = ("mdp", "pomdp")
WANTS_A_DOWNLOAD = ("MNISTBandit-bsuite",)
MOST_FRAMES = 131_072  # in one timed rollout: a second or two
LEVELS = {"Easy": "o", "Medium": "s", "Hard": "^", "": "o"}  # with their marks
COLORS = {"mdp": "#2a6fbb", "pomdp": "#e07b39", "gymnax": "#9a9a9a"}


@dataclass(frozen=True)
class Args:
    env_ids: tuple[str, ...] = ()
    """ids to measure, of popgym_arcade or gymnax, or LIBRARY/ID; none: all of popgym_arcade"""
    twins: tuple[str, ...] = TWINS
    """twins to measure: mdp (fully observable), pomdp (partially observable); gymnax's ids count as mdp"""
    num_envs: tuple[int, ...] = (64,)
    """numbers of parallel environments"""
    obs_size: int = 128
    """side of the frame in pixels, 128 or 256 (popgym_arcade only)"""
    steps: Count = 256
    """steps of each environment in one timed rollout, fewer if that would be more than 131,072 frames"""
    repeats: Count = 5
    """timed rollouts of each kind; the median counts"""
    others: bool = False
    """measure gymnax's own environments as well"""
    out: PathName = "runs/throughput"
    """folder that receives throughput.csv, throughput.md and throughput.png"""

    def checked(self) -> "Args":
        """These arguments with every id to measure.

        Raises:
            UserError: for a wrong value, before anything is compiled or written
        """
        check_limits(self)
        for env_id in self.env_ids:
            if "/" in env_id:
                try:
                    make_world(env_id)
                except ValueError as error:
                    raise UserError(f"--env-ids {env_id}: {error}") from None
            elif env_id not in gymnax.registered_envs:
                near = difflib.get_close_matches(env_id, gymnax.registered_envs, 3, 0.4) or ours()
                raise UserError(f"--env-ids {env_id!r} is unknown: did you mean {' or '.join(near)}?")
        for twin in self.twins:
            if twin not in TWINS:
                raise UserError(f"--twins {twin!r} is unknown: use {' or '.join(TWINS)}")
        if self.obs_size not in OBS_SIZES:
            raise UserError(f"--obs-size {self.obs_size}: use {' or '.join(map(str, OBS_SIZES))}")
        for name in ("num_envs", "twins"):
            if not getattr(self, name):
                raise UserError(f"--{name.replace('_', '-')} is empty: name at least one")
        if min(self.num_envs) < 1:
            raise UserError(f"--num-envs {min(self.num_envs)}: use 1 or more")
        for place in (Path(self.out), *Path(self.out).parents):
            if place.exists() and not place.is_dir():
                raise UserError(f"--out {self.out}: {place} is a file, use a folder")
        env_ids = self.env_ids or ours()
        others = [env_id for env_id in theirs() if env_id not in env_ids] if self.others else []
        return dataclasses.replace(self, env_ids=(*env_ids, *others))


def ours() -> tuple[str, ...]:
    """The ids of popgym_arcade."""
    return tuple(popgym_arcade.REGISTERED_ENVIRONMENTS)


def theirs() -> tuple[str, ...]:
    """The ids of gymnax itself, without the one that downloads a data set."""
    return tuple(env_id for env_id in gymnax.registered_envs if env_id not in (*ours(), *WANTS_A_DOWNLOAD))


@dataclass(frozen=True)
class Row:
    """One line of the table and of the CSV."""

    env_id: str
    """id of the environment"""
    twin: str
    """mdp or pomdp"""
    num_envs: int
    """parallel environments"""
    obs_bytes: int
    """bytes of one observation"""
    frames_per_second: float
    """steps per second, all environments together; median of the repeats"""
    fill_per_second: float
    """observations per second of a plain fill of the same bytes; median of the repeats"""
    fill_fraction: float
    """frames_per_second / fill_per_second"""
    compile_seconds: float
    """tracing and compiling jit(vmap(step))"""
    bytes_per_frame: float
    """bytes that the compiled step reads and writes per environment, according to XLA; nan if unknown"""
    steps: int
    """steps of each environment in one timed rollout"""
    repeats: int
    """timed rollouts"""
    cpu: str
    """the processor's name"""
    cores: int
    """cores that this process may use"""
    device: str
    """the device that jax used"""
    jax: str
    """version of jax"""


def machine() -> dict[str, str | int]:
    """The columns of `Row` that say where the numbers were measured."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": cores,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }


def make(env_id: str, twin: str, obs_size: int):
    """The environment and its default parameters; twin and size are for popgym_arcade's ids only."""
    if "/" in env_id:
        env = make_world(env_id)
        return env, env.default_params
    if env_id not in ours():
        return gymnax.make(env_id)
    return gymnax.make(env_id, partial_obs=twin == "pomdp", obs_size=obs_size)


def random_step(env, params, num_envs: int):
    """A function (key, state) -> (key, state, observations[num_envs, ...]) that takes one random step everywhere."""
    sample = jax.vmap(env.action_space(params).sample)
    step = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    def advance(key, state):
        key, action_key, step_key = jax.random.split(key, 3)
        actions = sample(jax.random.split(action_key, num_envs))
        obs, state, *_ = step(jax.random.split(step_key, num_envs), state, actions, params)
        return key, state, obs

    return advance


def make_rollout(env, params, num_envs: int, steps: int):
    """A jitted (key, state, obs) -> the same, `steps` random steps later.

    The barrier ties the observations of a step to the states from which the next step starts. Otherwise XLA could leave
    out observations that the next step replaces.
    """
    advance = random_step(env, params, num_envs)

    def body(carry, _):
        key, state, obs = advance(*carry[:2])
        return (key, *jax.lax.optimization_barrier((state, obs))), None

    return jax.jit(lambda *carry: jax.lax.scan(body, carry, length=steps)[0], donate_argnums=(1, 2))


def make_fill(steps: int):
    """A jitted (count, obs) -> the same, after writing every byte of `obs` `steps` times."""

    def body(carry, _):
        count, obs = carry
        obs = jax.tree.map(lambda leaf: jnp.full_like(leaf, count.astype(leaf.dtype)), obs)
        return jax.lax.optimization_barrier((count + 1, obs)), None

    return jax.jit(lambda *carry: jax.lax.scan(body, carry, length=steps)[0], donate_argnums=(1,))


@contextmanager
def no_compilation_cache():
    """Disables the compilation cache inside the block. JAX looks for a cache on disk only once, or after a reset."""
    enabled = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


def compile_step(env, params, key, state) -> tuple[float, float]:
    """Seconds to trace and compile jit(vmap(step)), and the bytes that a call of it accesses (nan if unknown).

    `env` must not have been stepped before. The step returns the five values without `info`, whose `final_observation`
    would be a second frame.
    """
    num_envs = jax.tree.leaves(state)[0].shape[0]
    action_key, step_key = jax.random.split(key)
    action = jax.vmap(env.action_space(params).sample)(jax.random.split(action_key, num_envs))
    step = jax.jit(jax.vmap(lambda *arguments: env.step(*arguments)[:5], in_axes=(0, 0, 0, None)))
    with no_compilation_cache():
        start = time.perf_counter()
        compiled = step.lower(jax.random.split(step_key, num_envs), state, action, params).compile()
        seconds = time.perf_counter() - start
    analysis = compiled.cost_analysis() or {}
    return seconds, analysis.get("bytes accessed", float("nan"))


def timed(function, carry) -> tuple[float, tuple]:
    """Seconds of one call, and what it returned."""
    start = time.perf_counter()
    carry = jax.block_until_ready(function(*carry))
    return time.perf_counter() - start, carry


def measure(env_id: str, twin: str, num_envs: int, args: Args) -> Row:
    """Compiles and times one environment and the fill of its bytes."""
    env, params = make(env_id, twin, args.obs_size)
    reset_key, step_key, play_key = jax.random.split(jax.random.key(0), 3)
    obs, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, num_envs), params)
    obs_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(obs)) // num_envs
    compile_seconds, bytes_accessed = compile_step(env, params, step_key, state)

    steps = min(args.steps, max(1, MOST_FRAMES // num_envs))
    rollout, fill = make_rollout(env, params, num_envs, steps), make_fill(steps)
    state = jax.tree.map(jnp.copy, state)  # some states hold an array twice, and a buffer is donated only once
    filled, played = (jnp.int32(0), jax.tree.map(jnp.zeros_like, obs)), (play_key, state, obs)
    for _ in range(2):  # some of gymnax's states change a weak type in the first rollout: the second compiles again
        _, filled = timed(fill, filled)
        _, played = timed(rollout, played)
    seconds = {"play": [], "fill": []}
    for _ in range(args.repeats):
        took, played = timed(rollout, played)
        seconds["play"].append(took)
        took, filled = timed(fill, filled)
        seconds["fill"].append(took)

    frames = num_envs * steps
    speed, fill_speed = (frames / median(seconds[kind]) for kind in ("play", "fill"))
    return Row(
        env_id=env_id,
        twin=twin,
        num_envs=num_envs,
        obs_bytes=obs_bytes,
        frames_per_second=speed,
        fill_per_second=fill_speed,
        fill_fraction=speed / fill_speed,
        compile_seconds=compile_seconds,
        bytes_per_frame=bytes_accessed / num_envs,
        steps=steps,
        repeats=args.repeats,
        **machine(),
    )


def write_rows(rows: list[Row], path: Path) -> None:
    """A CSV with one line for each row; the columns are the fields of `Row`."""
    lines = [{k: f"{v:.6g}" if isinstance(v, float) else v for k, v in vars(row).items()} for row in rows]
    write_csv(path, [field.name for field in dataclasses.fields(Row)], lines)


def read_rows(path: Path) -> list[Row]:
    """What `write_rows` wrote."""
    kinds = {field.name: field.type for field in dataclasses.fields(Row)}
    with path.open(newline="") as file:
        return [Row(**{name: kinds[name](value) for name, value in line.items()}) for line in csv.DictReader(file)]


def table(rows: list[Row]) -> str:
    """A Markdown table for the pages: families by difficulty and twin, or, with several numbers of environments, a line
    for each number over all ids and twins.
    """
    sizes = sorted({row.num_envs for row in rows})
    return table_of_sizes(rows, sizes) if len(sizes) > 1 else table_of_families(rows)


def table_of_sizes(rows: list[Row], sizes: list[int]) -> str:
    """Frames per second for each number of environments, next to the fill."""
    lines = []
    for size in sizes:
        of_size = [row for row in rows if row.num_envs == size]
        speeds = [row.frames_per_second for row in of_size]
        fill = median(row.fill_per_second for row in of_size)
        share = geometric_mean(row.fill_fraction for row in of_size)
        shown = (min(speeds), max(speeds), geometric_mean(speeds), fill)
        lines.append([f"{size:,}", *(f"{number:,.0f}" for number in shown), f"{share:.1%}"])
    return markdown(["environments", "lowest", "highest", "geometric mean", "fill, median", "share of the fill"], lines)


def family_and_level(env_id: str) -> tuple[str, str]:
    """The family of an id and its level ("Easy", "Medium" or "Hard"); an id of gymnax has no level."""
    level = next((end for end in LEVELS if end and env_id in ours() and env_id.endswith(end)), "")
    return env_id.removesuffix(level), level


def table_of_families(rows: list[Row]) -> str:
    """Frames per second of popgym_arcade's ids, a column for each difficulty and twin, or else of gymnax's ids."""
    rows = [row for row in rows if row.env_id in ours()] or rows
    columns = {(level, twin): "" for level in LEVELS if level for twin in TWINS} | {("", "mdp"): "frames/s"}
    speeds: dict[str, dict[tuple[str, str], float]] = {}
    for row in rows:
        family, level = family_and_level(row.env_id)
        speeds.setdefault(family, {})[level, row.twin] = row.frames_per_second
    twins = {"mdp": "", "pomdp": ", partially observable"}
    head = [name or f"{level}{twins[twin]}" for (level, twin), name in columns.items()]
    lines = [[name, *(f"{of[key]:,.0f}" if key in of else "" for key in columns)] for name, of in speeds.items()]
    means = [[of[key] for of in speeds.values() if key in of] for key in columns]
    lines.append(["geometric mean", *(f"{geometric_mean(each):,.0f}" if each else "" for each in means)])
    return markdown(["game" if rows[0].env_id in ours() else "id", *head], lines)


def draw(rows: list[Row], path: Path) -> None:
    """Dots for one or two numbers of environments, lines over that number for more."""
    sizes = sorted({row.num_envs for row in rows})
    figure = draw_dots(rows, sizes) if len(sizes) < 3 else draw_lines(rows, sizes)
    where = rows[0].cpu if rows[0].device == "cpu" else rows[0].device
    what = f"{rows[0].cores} cores, jax {rows[0].jax}"
    figure.suptitle(f"Random actions, {where}, {what}", fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def draw_dots(rows: list[Row], sizes: list[int]):
    """A panel for each number of environments: a line for each family or id of gymnax, a dot for each level and twin,
    and a black tick for the fill (the median of the line).
    """
    sizes_of = {family_and_level(row.env_id)[0]: row.obs_bytes for row in rows}
    figsize = (2.8 + 4.6 * len(sizes), 1.6 + 0.22 * len(sizes_of))
    figure, panels = plt.subplots(1, len(sizes), sharey=True, squeeze=False, layout="constrained", figsize=figsize)
    for panel, size in zip(panels[0], sizes, strict=True):
        draw_panel(panel, [row for row in rows if row.num_envs == size], list(sizes_of))
        panel.set_title(f"{size} environments", fontsize=10)
    labels = [f"{family}  {size:,} B" for family, size in sizes_of.items()]
    panels[0, 0].set_yticks(range(len(labels)), labels, fontsize=8)
    panels[0, 0].set_ylim(len(labels) - 0.4, -0.6)
    kinds = [kind for kind in COLORS if kind in map(kind_of, rows)]
    levels = [level for level in LEVELS if level and level in {family_and_level(row.env_id)[1] for row in rows}]
    names = {TWINS_IN_WORDS.get(kind, kind): ("o", COLORS[kind]) for kind in kinds}
    names |= {level: (LEVELS[level], "#cccccc") for level in levels}
    names |= {"plain fill of the same bytes": ("|", "black")}
    handles = [plt.Line2D([], [], linestyle="", marker=mark, color=color) for mark, color in names.values()]
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8)
    return figure


def kind_of(row: Row) -> str:
    """The key of a row's colour: its twin, or gymnax."""
    return row.twin if row.env_id in ours() else "gymnax"


def draw_panel(panel, rows: list[Row], lines: list[str]) -> None:
    """The dots of one number of environments, the fully observable twin's just above the other's."""
    for row in rows:
        family, level = family_and_level(row.env_id)
        y = lines.index(family) + {"mdp": -0.16, "pomdp": 0.16, "gymnax": 0}[kind_of(row)]
        panel.plot(row.frames_per_second, y, LEVELS[level], color=COLORS[kind_of(row)], markersize=5, alpha=0.8)
    for y, line in enumerate(lines):
        fills = [row.fill_per_second for row in rows if family_and_level(row.env_id)[0] == line]
        panel.plot(median(fills), y, "|", color="black", markersize=8)
    panel.set(xscale="log", xlabel="frames per second")
    panel.grid(alpha=0.3)
    panel.set_axisbelow(True)


def draw_lines(rows: list[Row], sizes: list[int]):
    """Frames per second over the number of environments: each twin's geometric mean over the ids, in a band from the
    slowest to the fastest of them. Dashed: the median fill.
    """
    figure, panel = plt.subplots(layout="constrained", figsize=(6.4, 4))
    for kind in [kind for kind in COLORS if kind in map(kind_of, rows)]:
        words, of_kind = TWINS_IN_WORDS.get(kind, kind), [row for row in rows if kind_of(row) == kind]
        speeds = [[row.frames_per_second for row in of_kind if row.num_envs == size] for size in sizes]
        panel.plot(sizes, list(map(geometric_mean, speeds)), "o-", color=COLORS[kind], label=words)
        slowest, fastest = list(map(min, speeds)), list(map(max, speeds))
        panel.fill_between(sizes, slowest, fastest, color=COLORS[kind], alpha=0.2, linewidth=0)
    fills = [median(row.fill_per_second for row in rows if row.num_envs == size) for size in sizes]
    panel.plot(sizes, fills, "k--", linewidth=1, label="plain fill of the same bytes")
    panel.set(xscale="log", yscale="log", xlabel="environments", ylabel="frames per second")
    panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
    panel.minorticks_off()
    panel.grid(alpha=0.3)
    panel.legend(fontsize=9)
    return figure


def print_row(row: Row) -> None:
    """One line of the table on the terminal."""
    print(f"{row.env_id:<26}{row.twin:<9}{row.num_envs:>6}{row.frames_per_second:>13,.0f}", end="")
    print(f"{row.fill_per_second:>15,.0f}{row.fill_fraction:>8.1%}{row.compile_seconds:>11.2f}", end="")
    print(f"{row.bytes_per_frame:>13,.0f}{row.obs_bytes:>11,}", flush=True)


def main(args: Args) -> list[Row]:
    """Measures, prints, writes the files and returns the rows.

    Raises:
        UserError: for wrong arguments, before anything is compiled or written
    """
    args = args.checked()
    here = machine()
    print(f"{here['cpu']}, {here['cores']} cores, {here['device']}, jax {here['jax']}")
    print(f"{'environment':<26}{'twin':<9}{'envs':>6}{'frames/s':>13}{'fill/s':>15}{'share':>8}", end="")
    print(f"{'compile s':>11}{'bytes/frame':>13}{'obs bytes':>11}")
    rows, out = [], Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for num_envs, env_id in itertools.product(args.num_envs, args.env_ids):
        for twin in args.twins if env_id in ours() else ("mdp",):
            rows.append(measure(env_id, twin, num_envs, args))
            print_row(rows[-1])
            write_rows(rows, out / "throughput.csv")
    if any(row.fill_fraction > 1 for row in rows):
        print("A share above 100% is noise: run nothing else on the machine, or raise --steps and --repeats.")
    (out / "throughput.md").write_text(table(rows))
    draw(rows, out / "throughput.png")
    print(f"written: {out}/throughput.csv, throughput.md, throughput.png")
    return rows


if __name__ == "__main__":
    launch(main, Args)
