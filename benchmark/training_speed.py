"""How fast the training scripts are, how much memory they take, and how close they come to the machine's limits.

    python benchmark/training_speed.py --memories LRU MinGRU GRU --hidden-sizes 512 128
    python benchmark/training_speed.py --studies scripts compile parts arithmetic memory
    python benchmark/training_speed.py --studies num_envs parts arithmetic memory target --settings published fastest \
        --num-envs 16 64 256 1024 4096 --precisions float32 bfloat16 --device gpu --out runs/training_speed/gpu
    python benchmark/training_speed.py --docs docs/performance.md --out benchmark/results/training_speed

Every measurement has its own process. Each study writes STUDY.csv, row by row, and all tables go to tables.md. A failed
measurement is a row that says why. Rates are medians of TensorBoard's charts/SPS over the log points after the first.
Peak memory is the largest resident set of the process; on a GPU, it is the device's own count. docs/performance.md has
the purpose of each study.

Nothing here imports popgym_arcade, because that initialises JAX's devices: on a GPU, this process would take memory
from those that measure.
"""

import csv
import functools
import itertools
import json
import os
import platform
import re
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from command_line import read_args
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).parent.parent
markdown_table = runpy.run_path(str(ROOT / "popgym_arcade/analysis/tables.py"))["markdown"]  # without its package
PLATFORMS = {"cpu": "cpu", "gpu": "cuda"}  # --device: what JAX calls it
ALL_SCRIPTS = (
    *("pqn_mlp", "pqn_rnn", "ppo_mlp", "ppo_rnn"),
    *("ppo_continuous_action", "ppo_selfplay", "dqn_mlp", "dqn_rnn", "impala_popart"),
)
RECURRENT = ("pqn_rnn", "ppo_rnn", "dqn_rnn", "impala_popart")
OFF_POLICY = ("dqn_mlp", "dqn_rnn")
COMPILED = ("MLP", "MinGRU", "GRU", "LRU", "FFM")
TWIN = "--env-id CartPoleEasy --partial-obs"
# the paper's network and rollouts, without its schedules, which cost no time
PUBLISHED = f"{TWIN} --encoder paper --memory LRU --hidden-size 512 --num-steps 128 --update-epochs 4"
SETTINGS = {
    "mlp": ("pqn_mlp", TWIN),
    "patch": ("pqn_rnn", f"{TWIN} --memory MinGRU --hidden-size 128 --num-minibatches 8"),
    "paper": ("pqn_rnn", f"{TWIN} --memory MinGRU --hidden-size 128 --num-minibatches 8 --encoder paper"),
    "published": ("pqn_rnn", f"{PUBLISHED} --num-envs 16 --num-minibatches 16"),
}
FASTEST = "fastest"  # another setting: the fastest row of the study num_envs


class UserError(Exception):
    """Something the user can fix. It is shown as one line, and the exit code is 2."""


@dataclass(frozen=True)
class Args:
    studies: tuple[str, ...] = ("memories",)
    """what to measure: scripts, memories, compile, num_envs, parts, arithmetic, memory, target"""
    memories: tuple[str, ...] = ("MinGRU", "LRU", "GRU")
    """memories: values of --memory"""
    hidden_sizes: tuple[int, ...] = (512, 128)
    """memories: values of --hidden-size"""
    encoders: tuple[str, ...] = ("patch",)
    """memories: values of --encoder"""
    scripts: tuple[str, ...] = ALL_SCRIPTS
    """scripts, compile: training scripts"""
    compile_memories: tuple[str, ...] = COMPILED
    """compile: values of --memory"""
    settings: tuple[str, ...] = ("patch", "paper")
    """parts, arithmetic, memory: mlp, patch, paper, published, or fastest (what num_envs found)"""
    num_envs: tuple[int, ...] = (16, 64)
    """memory, num_envs: values of --num-envs"""
    num_steps: tuple[int, ...] = (32, 128)
    """memory: values of --num-steps"""
    precisions: tuple[str, ...] = ("float32",)
    """num_envs: values of --precision"""
    minibatch_envs: int = 64
    """memory, num_envs: maximum number of environments in a minibatch, which limits the memory of a gradient step"""
    published_sps: float = 0.0
    """num_envs: steps per second of the published script on this device, for a column of ratios; 0: unknown"""
    target_steps: int = 10_000_000
    """target: steps of the run"""
    target_flags: str = "--env-id NavigatorEasy --partial-obs --num-envs 512 --num-minibatches 16 --precision bfloat16"
    """target: its flags for pqn_rnn.py"""
    peak_tflops: float = 0.0
    """arithmetic: the vendor's peak in TFLOP/s, for a column next to the measured matrix rate; 0: none"""
    matrix_sizes: tuple[int, ...] = ()
    """arithmetic: sides of the square matrices whose product is timed; none: sizes that suit the device"""
    repeats: int = 5
    """parts, arithmetic: timed calls of each program"""
    points: int = 6
    """log points of each process; the first does not count"""
    point_steps: int = 4096
    """environment steps between log points, at least one update"""
    flags: str = ""
    """more flags for every run except the one of target, for example --flags="--num-devices 1" """
    device: str = ""
    """cpu or gpu; empty: the default of JAX"""
    out: str = "runs/training_speed"
    """folder that receives STUDY.csv and tables.md"""
    docs: str = ""
    """page whose tables are filled in from the CSV files in OUT; nothing is measured"""

    def checked(self) -> "Args":
        """These arguments.

        Raises:
            UserError: for a wrong value, before anything is measured or written
        """
        choices = {"studies": STUDIES, "scripts": ALL_SCRIPTS, "settings": (*SETTINGS, FASTEST)}
        for name, known in choices.items():
            for value in getattr(self, name):
                if value not in known:
                    raise UserError(f"--{name} {value!r} is unknown: use {', '.join(known)}")
        if self.device not in ("", *PLATFORMS):
            raise UserError(f"--device {self.device!r} is unknown: use {' or '.join(PLATFORMS)}")
        least = {"points": 2, "point_steps": 1, "repeats": 1, "minibatch_envs": 1, "target_steps": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: use {low} or more")
        if min((*self.num_envs, *self.num_steps, *self.hidden_sizes, *self.matrix_sizes), default=1) < 1:
            raise UserError("--num-envs, --num-steps, --hidden-sizes, --matrix-sizes: use numbers of 1 or more")
        if self.docs and not Path(self.docs).is_file():
            raise UserError(f"--docs {self.docs}: no such page")
        if self.docs and not any(Path(self.out).rglob("*.csv")):
            raise UserError(f"--out {self.out}: no table there, so nothing to fill in")
        wants_fastest = FASTEST in self.settings and {"parts", "arithmetic", "memory"} & set(self.studies)
        if wants_fastest and "num_envs" not in self.studies and not (Path(self.out) / "num_envs.csv").exists():
            raise UserError(f"--settings {FASTEST}: measure --studies num_envs first, into the same --out")
        return self


# ----------------------------------------------------------------------------------------------- processes that measure


# Runs a script as the command line does, then prints the peak memory of its accelerator, 0 on a CPU.
PRINT_PEAK = """
import os, runpy, sys
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
import jax
print("\\npeak", (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))
"""


def clean_environment() -> dict[str, str]:
    """This process's environment without the compilation cache, which would make compiling look fast."""
    return {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}


@dataclass(frozen=True)
class Training:
    """The results of one run."""

    scalars: dict[str, list[float]]
    """TensorBoard's curves by tag"""
    evaluations: list[dict]
    """rows of eval.csv"""
    seconds: float
    """wall time of the whole process"""
    peak_memory_mb: int
    """largest resident set; on an accelerator, the device's own peak"""


def train(script: str, flags: str) -> Training:
    """Runs a training script in its own process, without evaluations and checkpoints before the end.

    Raises:
        RuntimeError: with its last line if the run fails
    """
    with tempfile.TemporaryDirectory() as folder:
        flags += f" --eval-every 0 --checkpoint-every 0 --run-dir {folder}"
        with open(Path(folder) / "output", "w+", errors="replace") as output:
            line = [sys.executable, "-c", PRINT_PEAK, str(ROOT / script), *flags.split()]
            began = time.perf_counter()
            process = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT, env=clean_environment())
            _, status, usage = os.wait4(process.pid, 0)  # this process's own peak, not that of all children so far
            seconds = time.perf_counter() - began
            output.seek(0)
            said = output.read().splitlines() or ["no output"]
        if status:
            raise RuntimeError(f"{script} {flags}: {said[-1]}")
        run = next(path for path in Path(folder).iterdir() if path.is_dir())
        curves = EventAccumulator(str(run)).Reload()
        tags = ("charts/SPS", "charts/compile_seconds")
        (device_bytes,) = [int(line.split()[1]) for line in said if line.startswith("peak ")]
        with (run / "eval.csv").open() as table:
            evaluations = list(csv.DictReader(table))
        return Training(
            scalars={tag: [point.value for point in curves.Scalars(tag)] for tag in tags},
            evaluations=evaluations,
            seconds=seconds,
            peak_memory_mb=device_bytes // 2**20 or usage.ru_maxrss // 1024,
        )


def measure(script: str, flags: str, points: int, point_steps: int) -> dict:
    """Rate, compile seconds and peak memory of one run in its own process.

    Raises:
        RuntimeError: with its last line if the run fails
    """
    flags += f" --total-timesteps {points * point_steps} --log-every {point_steps} --eval-episodes 1"
    done = train(script, flags)
    rates = done.scalars["charts/SPS"]
    rates = rates[1:] or rates  # the first counts if one update has more than all the steps
    return {
        "steps_per_second": round(float(np.median(rates))),
        "slowest": round(min(rates)),
        "fastest": round(max(rates)),
        "compile_seconds": round(done.scalars["charts/compile_seconds"][0], 1),
        "peak_memory_mb": done.peak_memory_mb,
    }


def ask(what: str, script: str, flags: str, args: Args) -> dict:
    """The result of `training_parts.py` in its own process.

    Raises:
        RuntimeError: with its last line if it fails
    """
    line = [sys.executable, str(ROOT / "benchmark/training_parts.py"), "--what", what, "--script", script]
    line += [f"--flags={flags} {args.flags}", "--repeats", str(args.repeats)]
    if args.matrix_sizes:
        line += ["--matrix-sizes", *map(str, args.matrix_sizes)]
    environment = clean_environment()
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{script} {flags}: {(done.stderr.splitlines() or ['no output'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


# -------------------------------------------------------------------------------------------------------------- studies


def attempt(about: dict, function, *args) -> dict:
    """The row of `function(*args)`, or the reason why it failed. Running out of memory is a result too."""
    try:
        return about | function(*args)
    except RuntimeError as error:
        return about | {"failed": str(error).rpartition("error: ")[2]}


def flags_of(script: str, args: Args, memory: str = "MinGRU") -> str:
    """Flags with which a script trains on CartPoleEasy's partially observable twin, at 128 px and its defaults."""
    flags = {"ppo_continuous_action": "--env-id Pendulum-v1", "impala_popart": "--env-ids CartPoleEasy --partial-obs"}
    flags["ppo_selfplay"] = "--partial-obs --save-every 0 --elo-games 0"  # Pong, not rated
    remember = f" --memory {memory} --hidden-size 128" if script in RECURRENT else ""
    return f"{flags.get(script, TWIN)}{remember} {args.flags}"


def study_scripts(args: Args) -> Iterator[dict]:
    """Every training script with its defaults, the recurrent ones with MinGRU and hidden size 128."""
    for script in args.scripts:
        flags = flags_of(script, args)
        if script in OFF_POLICY:  # so that it learns from the second point on
            flags += f" --learning-starts {args.point_steps // 2}"
        yield attempt({"script": script}, measure, f"{script}.py", flags, args.points, args.point_steps)


def study_memories(args: Args) -> Iterator[dict]:
    """pqn_rnn.py by memory, hidden size and encoder."""
    for encoder, hidden_size, memory in itertools.product(args.encoders, args.hidden_sizes, args.memories):
        sizes = f"--hidden-size {hidden_size} --num-envs 32 --num-steps 32 --num-minibatches 8"
        flags = f"{TWIN} --memory {memory} {sizes} --encoder {encoder} {args.flags}"
        about = {"memory": memory, "hidden_size": hidden_size, "encoder": encoder}
        yield attempt(about, measure, "pqn_rnn.py", flags, args.points, args.point_steps)


def study_compile(args: Args) -> Iterator[dict]:
    """Compile seconds of every script and memory, without and with a warm `--compile-cache`."""

    def twice(script: str, memory: str) -> dict:
        with tempfile.TemporaryDirectory() as cache:  # empty for the first run
            # a single update; a replay buffer must have room for sequences, but does not need to learn from them
            steps = "--total-timesteps 4096 --learning-starts 4096" if script in OFF_POLICY else "--total-timesteps 1"
            flags = f"{flags_of(script, args, memory)} {steps} --eval-episodes 1 --compile-cache {cache}"
            runs = [train(f"{script}.py", flags) for _ in range(2)]
        seconds = [run.scalars["charts/compile_seconds"][0] for run in runs]
        return {
            "compile_seconds": round(seconds[0], 1),
            "with_cache": round(seconds[1], 1),
            "process_seconds": round(runs[0].seconds, 1),
            "process_with_cache": round(runs[1].seconds, 1),
        }

    for script in args.scripts:
        for memory in args.compile_memories if script in RECURRENT else ("none",):
            yield attempt({"script": script, "memory": memory}, twice, script, memory)


def settings(args: Args) -> Iterator[tuple[str, str, str]]:
    """Name, script and flags of each of the chosen settings."""
    for name in args.settings:
        yield (name, *(fastest_setting(Path(args.out)) if name == FASTEST else SETTINGS[name]))


def fastest_setting(out: Path) -> tuple[str, str]:
    """Script and flags of the fastest row that the study num_envs has written."""
    rows = [row for row in read_table(out / "num_envs.csv") if row.get("steps_per_second")]
    if not rows:
        raise UserError(f"--settings {FASTEST}: every row of {out / 'num_envs.csv'} failed")
    best = max(rows, key=lambda row: float(row["steps_per_second"]))
    return "pqn_rnn", published_flags(*(best[name] for name in ("num_envs", "num_minibatches", "precision")))


def published_flags(num_envs, num_minibatches, precision: str) -> str:
    """The paper's network and rollouts with other environments, minibatches and precision."""
    return f"{PUBLISHED} --num-envs {num_envs} --num-minibatches {num_minibatches} --precision {precision}"


def minibatches_of(num_envs: int, args: Args) -> int:
    """The paper's sixteen minibatches, fewer with fewer environments, more if MINIBATCH_ENVS requires it."""
    return max(min(16, num_envs), -(-num_envs // args.minibatch_envs))


def study_parts(args: Args) -> Iterator[dict]:
    """Milliseconds of an update and of its parts; "memory" is part of forward and backward."""
    for name, script, flags in settings(args):
        try:
            found = ask("parts", script, flags, args)
        except RuntimeError as error:
            yield {"setting": name, "failed": str(error)}
            continue
        for part, milliseconds in found.items():
            share = milliseconds / found["update"]
            yield {"setting": name, "part": part, "milliseconds": round(milliseconds, 2), "share": round(share, 3)}


def study_arithmetic(args: Args) -> Iterator[dict]:
    """The steps per second that the measured rate of matrix products allows, and the fraction that training reaches."""

    def compare(script: str, flags: str) -> dict:
        found = ask("arithmetic", script, flags, args)
        # with many environments, one update can have more than POINT_STEPS; then a point is one update
        points, point_steps = args.points, max(args.point_steps, found["update_size"])
        rate = measure(f"{script}.py", f"{flags} {args.flags}", points, point_steps)["steps_per_second"]
        row = {f"{dtype}_gflops": round(found["rates"].get(dtype, 0) / 1e9) or "" for dtype in ("float32", "bfloat16")}
        row |= {
            "forward_mflop": round(found["forward_flop"] / 1e6, 1),
            "step_mflop": round(found["step_flop"] / 1e6, 1),
            "limit_sps": round(found["limit"]),
            "steps_per_second": rate,
            "share": round(rate / found["limit"], 3),
        }
        if args.peak_tflops:
            row["share_of_peak"] = round(rate * found["step_flop"] / args.peak_tflops / 1e12, 3)
        return row

    for name, script, flags in settings(args):
        yield attempt({"setting": name}, compare, script, flags)


def study_memory(args: Args) -> Iterator[dict]:
    """Peak memory over environments and steps, next to what the script expects before it compiles."""

    def compare(script: str, flags: str, update_size: int) -> dict:
        expected = ask("memory", script, flags, args)["bytes"] / 2**20
        measured = measure(f"{script}.py", f"{flags} {args.flags}", 2, update_size)["peak_memory_mb"]
        return {
            "expected_mb": round(expected),
            "peak_memory_mb": measured,
            "expected_over_measured": round(expected / measured, 2),
        }

    for name, script, flags in settings(args):
        for num_envs, num_steps in itertools.product(args.num_envs, args.num_steps):
            about = {"setting": name, "num_envs": num_envs, "num_steps": num_steps}
            sizes = f"{flags} --num-envs {num_envs} --num-steps {num_steps}"
            sizes += f" --num-minibatches {minibatches_of(num_envs, args)}"
            yield attempt(about, compare, script, sizes, num_envs * num_steps)


def study_num_envs(args: Args) -> Iterator[dict]:
    """pqn_rnn.py with the paper's encoder, LRU and rollouts, by environments and precision."""
    for precision, num_envs in itertools.product(args.precisions, args.num_envs):
        minibatches = minibatches_of(num_envs, args)
        about = {"precision": precision, "num_envs": num_envs, "num_minibatches": minibatches}
        flags = f"{published_flags(num_envs, minibatches, precision)} {args.flags}"
        point_steps = max(args.point_steps, 128 * num_envs)
        row = attempt(about, measure, "pqn_rnn.py", flags, args.points, point_steps)
        if args.published_sps and "failed" not in row:
            row["times_published"] = round(row["steps_per_second"] / args.published_sps, 1)
        yield row


def study_target(args: Args) -> Iterator[dict]:
    """A whole run: its wall time, and the greedy return next to the random policy's."""

    def whole() -> dict:
        steps = f" --total-timesteps {args.target_steps} --log-every {max(1, args.target_steps // 10)}"
        done = train("pqn_rnn.py", f"{args.target_flags}{steps} --eval-episodes 256")
        last = {row["policy"]: float(row["return_mean"]) for row in done.evaluations}
        return {
            "wall_seconds": round(done.seconds, 1),
            "compile_seconds": round(done.scalars["charts/compile_seconds"][0], 1),
            "steps_per_second": round(float(np.median(done.scalars["charts/SPS"]))),
            "greedy_return": round(last["greedy"], 3),
            "random_return": round(last["random"], 3),
            "peak_memory_mb": done.peak_memory_mb,
        }

    yield attempt({"flags": args.target_flags, "steps": args.target_steps}, whole)


STUDIES = {
    "scripts": study_scripts,
    "memories": study_memories,
    "compile": study_compile,
    "num_envs": study_num_envs,  # before the studies that use its fastest row
    "parts": study_parts,
    "arithmetic": study_arithmetic,
    "memory": study_memory,
    "target": study_target,
}


# --------------------------------------------------------------------------------------------------------------- tables


UNITS = {"mb": "MB", "sps": "steps/s", "gflops": "GFLOP/s", "mflop": "MFLOP"}
MACHINE_COLUMNS = ("cores", "machine", "cpu", "python", "jax", "device")


@functools.lru_cache
def machine() -> dict[str, str | int]:
    """MACHINE_COLUMNS. Another process asks JAX, so that this one does not take device memory."""
    line = "import jax; print(jax.devices()[0].device_kind)"
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    said = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, env=environment).stdout
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "machine": platform.machine(),
        "cpu": names[0] if names else "",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "device": (said.splitlines() or ["unknown"])[-1],
    }


def write_table(out: Path, rows: list[dict]) -> None:
    """Writes the rows as CSV, each with the machine it was measured on. The file is never half written."""
    columns = dict.fromkeys(itertools.chain(*rows))  # a failed row has others
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f"{out.name}.tmp")
    with draft.open("w", newline="") as file:
        table = csv.DictWriter(file, [*columns, *machine()])
        table.writeheader()
        table.writerows([row | machine() for row in rows])
    draft.replace(out)


def read_table(path: Path) -> list[dict]:
    """The rows of a CSV file, all values as text."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def markdown(path: Path) -> str:
    """The table of a CSV file with the machine below it, or a line that says that nothing was measured."""
    if not path.exists():
        return "Not measured yet.\n"
    rows = read_table(path)
    columns = [name for name in rows[0] if name not in MACHINE_COLUMNS]
    table = markdown_table([*map(heading, columns)], [[cell(row[name]) for name in columns] for row in rows])
    return f"{table}\n{measured_on(rows[0])}\n"


def heading(name: str) -> str:
    """The name of a column in words, with units as they are usually written."""
    words = name.replace("_", " ").replace("steps per second", "steps/s").replace("bytes a step", "bytes/step")
    return " ".join(UNITS.get(word, word) for word in words.split())


def cell(text: str) -> str:
    """A value of a table: a number of 100 or more is whole, with commas."""
    try:
        number = float(text)
    except ValueError:
        return text.replace("|", "\\|")
    return f"{number:,.0f}" if abs(number) >= 100 else text


def measured_on(row: dict) -> str:
    """A sentence about the machine of a row; older files lack the name of the processor."""
    device = row["device"] if row["device"] != "cpu" else "the CPU"
    cores = f"{row['cores']} {row['machine']} cores"
    cpu = f" ({row['cpu']})" if row.get("cpu") else ""
    return f"Measured on {device}, {cores}{cpu}, CPython {row['python']}, jax {row['jax']}."


def all_tables(out: Path) -> str:
    """Markdown of the tables of all studies in a folder."""
    found = [name for name in STUDIES if (out / f"{name}.csv").exists()]
    return "\n".join(f"## {name}\n\n{markdown(out / f'{name}.csv')}" for name in found)


def filled(page: str, out: Path) -> str:
    """The page with everything between `<!-- table: NAME -->` and `<!-- end -->` replaced from OUT/NAME.csv."""
    places = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return places.sub(lambda place: f"{place[1]}\n{markdown(out / f'{place[2]}.csv')}\n{place[3]}", page)


def main(args: Args) -> bool:
    """Measures, or fills in a page; returns whether nothing failed."""
    args, failed = args.checked(), 0
    if args.docs:
        page = Path(args.docs)
        page.write_text(filled(page.read_text(), Path(args.out)))
        return True
    if args.device:
        os.environ["JAX_PLATFORMS"] = PLATFORMS[args.device]
    for name in sorted(set(args.studies), key=list(STUDIES).index):
        rows = []
        for row in STUDIES[name](args):
            rows.append(row)
            print(f"{name}:  " + "  ".join(f"{column} {value}" for column, value in row.items()), flush=True)
            write_table(Path(args.out) / f"{name}.csv", rows)
        failed += sum("failed" in row for row in rows)
    (Path(args.out) / "tables.md").write_text(all_tables(Path(args.out)))
    if failed:
        print(f"training_speed.py: {failed} measurements failed", file=sys.stderr)
    return not failed


if __name__ == "__main__":
    try:
        sys.exit(0 if main(read_args(Args, __doc__)) else 1)
    except UserError as error:
        print(f"training_speed.py: error: {error}", file=sys.stderr)
        sys.exit(2)
