"""Searches for hyper-parameters of a training script with Optuna (Akiba et al. 2019, https://arxiv.org/abs/1907.10902).

Run:   python tune.py --script pqn_rnn --env-ids CartPoleEasy MineSweeperEasy --search learning_rate=1e-4..3e-3:log \
           -- --partial-obs --total-timesteps 100000 --eval-every 10000                       (flags of the script)
       python tune.py --study runs/tune/STUDY --trials 50          continues an interrupted study, or extends it
Page:  docs/tune.md

A trial trains all seeds together, in each environment in turn, each run in its own process. Its score is the greedy
return, scaled so that the random policy has 0 and the best possible is 1 (unless the latter is unknown), averaged over
seeds and environments. Bad trials are pruned early. A folder keeps `study.db` (SQLite), `trials.csv` and `runs/`.

Nothing here imports JAX, not even through popgym_arcade: on a GPU this process would take memory from the runs.
"""

import contextlib
import csv
import dataclasses
import difflib
import fcntl
import functools
import itertools
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

try:
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
    from optuna.samplers import RandomSampler, TPESampler
    from optuna.trial import TrialState
    from sqlalchemy.exc import SQLAlchemyError
except ImportError:  # it comes with an extra, and --help needs none
    optuna, BasePruner, SuccessiveHalvingPruner = None, object, object

ROOT = Path(__file__).resolve().parent
SCRIPTS = "pqn_mlp pqn_rnn ppo_mlp ppo_rnn ppo_continuous_action ppo_selfplay dqn_mlp dqn_rnn impala_popart".split()
RESERVED = {"env_id", "env_ids", "seed", "num_seeds", "run_dir", "resume", "from_run", "target_return"}  # not tuned
COLUMNS = ("trial", "state", "score", "evaluations", "minutes", "why")
REFUSED, DIVERGED, CANNOT_WRITE = 2, 3, 4  # exit codes of the training scripts
MAX_ALIKE = 3  # trials in a row that fail in the same way end the search
POLL_SECONDS = 0.5  # between two checks of a run
POINTS = 1000  # Optuna's steps for a run in one environment, whatever its length and number of evaluations
ASK = (ROOT / "popgym_arcade/baselines/running/ask.py").read_text("utf-8")  # a program that asks about a script


# --------------------------------------------------------------------------------------------------------- arguments


class UserError(Exception):
    """Something the user can fix. It is shown as one line, and the exit code is 2."""

    exit_code = 2


class CannotWrite(UserError):
    """The disk is full or gone, for the study or for a run."""

    exit_code = CANNOT_WRITE


def whole(text: str) -> int:
    """A whole number, which may be written as 1e3. Raises UserError for other numbers, ValueError for other text."""
    if not float(text).is_integer():
        raise UserError(f"{text}: use a whole number")
    return int(float(text))


Whole = Annotated[int, tyro.constructors.PrimitiveConstructorSpec(
    1, "INT", lambda given: whole(given[0]), lambda value: isinstance(value, int), lambda value: [str(value)]
)]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Args:
    study: str = ""
    """folder of the study, a new one or one to continue; empty: runs/tune/SCRIPT-TIME"""
    trials: Whole = 20
    """total number of trials in the study, including pruned ones"""
    script: str = "pqn_rnn"
    """training script: the name of one of the package's, or the path of your own, ending in .py"""
    env_ids: tuple[str, ...] = ("CartPoleEasy",)
    """ids of the environments; a trial trains once in each"""
    search: tuple[str, ...] = ()
    """flags of the script to search, like learning_rate=1e-5..1e-2:log num_steps=8..64:log memory=MinGRU,GRU"""
    flags: tyro.conf.Suppress[tuple[str, ...]] = ()
    """flags of the script in every trial: those after -- on the command line"""
    seed: Whole = 0
    """first seed of the runs, and seed of the sampler"""
    num_seeds: Whole = 2
    """seeds of every run"""
    sampler: Annotated[str, tyro.conf.arg(metavar="{tpe,random}")] = "tpe"
    """what proposes trials: tpe (tree-structured Parzen estimators) or random"""
    pruner: Annotated[str, tyro.conf.arg(metavar="{median,halving,none}")] = "median"
    """what stops trials: median (worse than half of the others so far), halving, or none"""
    startup_trials: Whole = 5
    """initial trials, which are random; nothing is pruned until this many are complete"""
    best_returns: tuple[str, ...] = ()
    """best possible returns of environments outside popgym_arcade, like CartPole-v1=500"""

    def checked(self) -> "Args":
        """These arguments. Raises UserError for a bad value that can be found before anything is written."""
        if not self.search:
            raise UserError("--search: name flags and their ranges, such as learning_rate=1e-5..1e-2:log")
        for name in ("trials", "num_seeds", "startup_trials"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: use 1 or more")
        own = [self.script] if self.script.endswith(".py") and script_path(self.script).is_file() else []
        for name, choices in {"script": [*SCRIPTS, *own], "sampler": SAMPLERS, "pruner": PRUNERS}.items():
            if getattr(self, name) not in choices:
                more = ", or a path that ends in .py" if name == "script" else ""
                raise UserError(f"--{name} {getattr(self, name)!r} is unknown: use one of {', '.join(choices)}{more}")
        if not self.env_ids or len(set(self.env_ids)) < len(self.env_ids):
            raise UserError("--env-ids: name one or more different ids")
        unknown = [env_id for env_id in self.env_ids if env_id not in best_returns(self)]
        if unknown and len(self.env_ids) > 1:
            raise UserError(f"--best-returns: what is the best return of {unknown[0]}? Write {unknown[0]}=NUMBER")
        check_flags(self)
        found = distributions(self).items()
        first = {name: spread.choices[0] if hasattr(spread, "choices") else spread.low for name, spread in found}
        _, objection = ask(self.script, [command(self, env_id, first, Path("runs"))[2:] for env_id in self.env_ids])
        if objection:
            raise UserError(f"{script_path(self.script).name} rejects the lowest values: {objection}")
        return self


def script_path(script: str) -> Path:
    """The file of a training script: one next to this file by its name, any other by its path."""
    return Path(script).expanduser().resolve() if script.endswith(".py") else ROOT / f"{script}.py"


def best_returns(args: Args) -> dict[str, float]:
    """Best possible return by id: for games, that of players who see the whole state; for other ids, as given."""
    with (ROOT / "benchmark/results/oracle.csv").open(newline="") as file:
        known = {row["env_id"]: float(row["return_mean"]) for row in csv.DictReader(file)}
    for item in args.best_returns:
        env_id, _, number = item.partition("=")
        if env_id not in args.env_ids:
            raise UserError(f"--best-returns {item!r}: {env_id} is not among --env-ids {' '.join(args.env_ids)}")
        try:
            known[env_id] = float(number)
        except ValueError:
            raise UserError(f"--best-returns {item!r}: write ID=NUMBER") from None
        if not math.isfinite(known[env_id]):
            raise UserError(f"--best-returns {item!r}: use a finite number")
    return known


def ask(script: str, lines: list[list[str]]) -> tuple[dict[str, str], str]:
    """The types of a script's arguments by name, and what is wrong with a command line, if anything. See ASK."""
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # it sees the devices that the runs see
    path = script_path(script)
    line = [sys.executable, "-c", ASK, str(path.parent), path.stem, json.dumps(lines), str(ROOT)]
    done = subprocess.run(line, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        return {}, complaint(done.stderr) or f"exit {done.returncode}"
    return json.loads(done.stdout.splitlines()[-1]), ""


@functools.lru_cache
def kinds_of(script: str) -> dict[str, type]:
    """The types of a script's arguments by name; str for everything that is not a bool or a single number."""
    names, objection = ask(script, [])
    if objection:
        raise UserError(f"--script {script}: {objection}")
    return {name: {"bool": bool, "int": int, "float": float}.get(kind, str) for name, kind in names.items()}


def complaint(printed: str) -> str:
    """The line a script printed to say what was wrong: its last one, or the first one in tyro's box."""
    lines = printed.strip().splitlines() or [""]
    if lines[-1].startswith("╰"):
        lines = [line.strip("│ ") for line in lines if line.startswith("│")][:1]
    return re.sub(r"^[\w-]+\.py: error: ", "", lines[-1])


def did_you_mean(name: str, known: set[str]) -> str:
    """Similar names, as the end of a message."""
    close = difflib.get_close_matches(name, sorted(known), 3, 0.4)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def check_flags(args: Args) -> None:
    """Raises UserError for flags after -- that the script does not have, or that tune.py sets itself."""
    kinds, own = kinds_of(args.script), {field.name for field in dataclasses.fields(Args)}
    for text in args.flags:
        if not text.startswith("-") or re.match(r"-\.?\d", text):  # a value
            continue
        spelt = text.partition("=")[0]
        name = spelt.lstrip("-").replace("-", "_")
        name = name if name in kinds else name.removeprefix("no_")
        if name in RESERVED:
            raise UserError(f"{spelt} after --: {'give it before --' if name in own else 'leave it out'}")
        if name not in kinds:
            known = {f"--{other.replace('_', '-')}" for other in set(kinds) - RESERVED}
            close = did_you_mean(spelt, known)
            raise UserError(f"{spelt} after --: {script_path(args.script).name} has no such flag{close}")


def distributions(args: Args) -> dict:
    """Optuna's distributions by the name of the script's argument. Raises UserError for a search that is not valid."""
    kinds, found = kinds_of(args.script), {}
    for item in args.search:
        name, _, text = item.partition("=")
        name = name.replace("-", "_")
        if name not in kinds or name in RESERVED:
            file, close = script_path(args.script).name, did_you_mean(name, set(kinds) - RESERVED)
            raise UserError(f"--search {item!r}: {file} has no {name} to search{close}")
        kind = kinds[name]
        try:
            if ".." not in text:
                found[name] = CategoricalDistribution([read(kind, each) for each in text.split(",")])
                continue
            ends, _, how = text.partition(":")
            low, high = (read(kind, each) for each in ends.split(".."))
            if kind not in (int, float) or how not in ("", "log") or not low < high or (how and low <= 0):
                raise ValueError
            one = IntDistribution if kind is int else FloatDistribution
            found[name] = one(low, high, log=how == "log")
        except (ValueError, UserError):
            raise UserError(f"--search {item!r}: write NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C") from None
    return found


def read(kind: type, text: str) -> bool | int | float | str:
    """A value of the script's argument. Raises ValueError for any other text."""
    if not text or (kind is bool and text.lower() not in ("true", "false")):
        raise ValueError
    return text.lower() == "true" if kind is bool else whole(text) if kind is int else kind(text)


def as_flags(values: dict) -> list[str]:
    """The values as flags of a command line."""
    flags = []
    for name, value in values.items():
        flag = "--" if name == "flags" else f"--{name.replace('_', '-')}"
        texts = () if isinstance(value, bool) else map(str, value if isinstance(value, tuple) else (value,))
        flags += [flag.replace("--", "--no-", 1) if value is False else flag, *texts]
    return flags


def id_flag(args: Args) -> str:
    """The script's flag for an id."""
    return "--env-ids" if "env_ids" in kinds_of(args.script) else "--env-id"


def command(args: Args, env_id: str, values: dict, run_dir: Path) -> list[str]:
    """The command line of one run."""
    seeds = ["--seed", str(args.seed), "--num-seeds", str(args.num_seeds)]
    mine = [id_flag(args), env_id, *as_flags(values), *seeds, "--run-dir", str(run_dir)]
    return [sys.executable, str(script_path(args.script)), *args.flags, *mine]


# ------------------------------------------------------------------------------------------------------------ trials


class Stopped(Exception):
    """A trial without a score: how it failed, and often details that differ between trials."""


def scores_of(folder: Path, env_id: str, args: Args) -> tuple[float, list[tuple[int, float]]]:
    """The score of the random policy, NaN if unknown, and (point, score) of each evaluation so far.

    Points count from 1 to POINTS through the run. Scores are means over seeds, normalised if the best return is
    known. Raises UserError if the best return is not above the random policy's.
    """
    best, path = best_returns(args).get(env_id), next(iter(sorted(folder.glob("*/eval.csv"))), None)
    if path is None:
        return (math.nan if best is None else 0.0), []
    returns: dict[tuple[str, int], list[float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            returns.setdefault((row["policy"], int(row["global_step"])), []).append(float(row["return_mean"]))
    random = float(np.mean(returns.get(("random", 0), [math.nan])))
    if best is not None and best <= random:
        raise UserError(f"--best-returns {env_id}={best:g}: the random policy has {random:.3g}, start another study")
    low, high = (0.0, 1.0) if best is None else (random, best)
    total = json.loads(path.with_name("args.json").read_text())["args"]["total_timesteps"]
    scores = [
        (min(max(round(POINTS * step / total), 1), POINTS), (float(np.mean(values)) - low) / (high - low))
        for (policy, step), values in returns.items()
        if policy == "greedy" and len(values) == args.num_seeds
    ]
    return (random if best is None else 0.0), scores


@contextlib.contextmanager
def started(line: list[str], log: Path) -> Iterator[subprocess.Popen]:
    """The process of a command line. If it is still running at the end it gets SIGTERM and two minutes to save."""
    with log.open("w") as file:
        output = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        # in its own session: a terminal's Ctrl-C would be its first signal, and the second one ends it without saving
        process = subprocess.Popen(line, **output, start_new_session=True)
    try:
        yield process
    finally:
        try:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(120)
        finally:  # also after a second Ctrl-C
            process.kill()
            process.wait()


def train(args: Args, env_id: str, values: dict, folder: Path) -> Iterator[tuple[int, float]]:
    """Trains, and yields each point and score as it comes. Closing the generator stops the run.

    Raises Stopped or CannotWrite if the run fails. If it diverges, the last score is the random policy's instead.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seen = 0
    with started(command(args, env_id, values, folder), folder / "log") as process:
        while True:
            code = process.poll()  # before the scores are read, so that the last ones are included
            random, scores = scores_of(folder, env_id, args)
            yield from scores[seen:]
            seen = len(scores)
            if code is not None:
                break
            time.sleep(POLL_SECONDS)
    printed = complaint((folder / "log").read_text(errors="replace"))
    if code == CANNOT_WRITE:
        raise CannotWrite(f"a run cannot write: {printed.partition(';')[0]}; fix that, then continue with --study")
    if code < 0:
        name = signal.Signals(-code).name
        raise Stopped(f"killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}", printed)
    if code == DIVERGED and math.isnan(random):
        raise Stopped("diverged before the random policy was measured")
    if code == DIVERGED:
        yield POINTS, random
    elif code:
        raise Stopped(f"exit {code}", printed)


def run_trial(args: Args, trial, folder: Path) -> float | None:
    """The mean score of a trial over its environments, trained in one after the other; None if it was pruned.

    Raises Stopped without an evaluation, or for a score that is not finite; see also `train`.
    """
    finals, end = [], POINTS * len(args.env_ids)
    for env_id in args.env_ids:
        score, before = None, POINTS * len(finals)
        with contextlib.closing(train(args, env_id, dict(trial.params), folder / env_id)) as training:
            for point, score in training:
                if not np.isfinite(score):
                    raise Stopped(f"return {score} on {env_id}")
                trial.report(float(np.mean([*finals, score])), before + point)
                if before + point < end and trial.should_prune():  # at the end there is nothing left to save
                    return None
        if score is None:
            raise Stopped("no evaluation")
        finals.append(score)
    return float(np.mean(finals))


class MedianPruner(BasePruner):
    """Prunes a trial below the median of what the complete ones had at that point in the same environment, or before.

    Optuna's own pruner takes the trial's best score so far, in any environment, and only compares equal steps.
    """

    def __init__(self, startup_trials: int):
        self.startup_trials = startup_trials

    def prune(self, study, trial) -> bool:
        now = trial.last_step
        before = (now - 1) // POINTS * POINTS  # last step of the previous environment
        others = []
        for other in study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]):
            steps = [step for step in other.intermediate_values if before < step <= now]
            if steps and 0 not in other.intermediate_values:  # 0: from a version that counted evaluations
                others.append(other.intermediate_values[max(steps)])
        return len(others) >= self.startup_trials and bool(trial.intermediate_values[now] < np.median(others))


class HalvingPruner(SuccessiveHalvingPruner):
    """Keeps the better half at 3/16, 3/8 and 3/4 of a trial (3/4 of two environments is the middle of the second)."""

    def __init__(self, startup_trials: int, end: int):
        super().__init__(min_resource=3 * end // 16, reduction_factor=2)
        self.startup_trials = startup_trials

    def prune(self, study, trial) -> bool:
        is_bad = super().prune(study, trial)  # for the first trials too: it notes what later ones are compared with
        complete = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        return is_bad and len(complete) >= self.startup_trials


# ------------------------------------------------------------------------------------------------------------- study


def make_folder(args: Args) -> Path:
    """The study's folder; without a name, a new one that no other search has. Raises UserError if it cannot be made."""
    name = args.study or f"runs/tune/{script_path(args.script).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(1):
        folder = Path(name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True, exist_ok=bool(args.study))
            return folder
        except OSError as error:
            if args.study or not isinstance(error, FileExistsError):
                raise UserError(f"--study {folder}: {error.strerror}") from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Within the context, no other process searches in the folder. Raises UserError if one does, or on disk errors."""
    try:
        file = (folder / "lock").open("w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system releases it when the process ends
    except OSError as error:
        reason = "another process is searching there" if isinstance(error, BlockingIOError) else error.strerror
        raise UserError(f"--study {folder}: {reason}") from None
    with file:
        yield


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Within the context, a disk or database error becomes `CannotWrite`, which ends the search with one line."""
    try:
        yield
    except (OSError, UnicodeError, SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise CannotWrite(f"{folder}: {reason}; fix that, then continue with --study") from None


SAMPLERS = {
    "tpe": lambda args, seed: TPESampler(seed=seed, n_startup_trials=args.startup_trials, multivariate=True),
    "random": lambda args, seed: RandomSampler(seed=seed),
}
PRUNERS = {
    "median": lambda args: MedianPruner(args.startup_trials),
    "halving": lambda args: HalvingPruner(args.startup_trials, POINTS * len(args.env_ids)),
    "none": lambda args: NopPruner(),
}


def open_study(args: Args, folder: Path):
    """The study in a folder, created if there is none. Trials that were interrupted are queued again."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    where = {"storage": f"sqlite:///{folder / 'study.db'}", "study_name": "tune", "load_if_exists": True}
    study = optuna.create_study(**where, direction="maximize", pruner=PRUNERS[args.pruner](args))
    # a sampler that continues draws other numbers than the first one
    study.sampler = SAMPLERS[args.sampler](args, args.seed + len(study.trials))
    for trial in study.get_trials(states=[TrialState.RUNNING]):
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params)
    return study


def read_saved(folder: Path) -> Args | None:
    """The arguments that the study in a folder was started with, None if there is no such folder."""
    path = folder / "args.json"
    try:
        if not folder.exists():
            return None
        saved = json.loads(path.read_text())
        saved = Args(**{name: tuple(map(str, x)) if isinstance(x, list) else x for name, x in saved.items()})
        for field in dataclasses.fields(Args):
            if type(getattr(saved, field.name)) is not type(field.default):
                raise ValueError(f"{field.name} is {getattr(saved, field.name)!r}")
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"--study {folder} exists and is not a study: name a new folder") from None
    except OSError as error:
        raise UserError(f"--study {folder}: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is broken: {error}") from None
    return saved


def read_settings(argv: list[str]) -> Args:
    """Checked arguments. Their defaults are those of the study, if one is continued; then only `trials` may change."""
    end = argv.index("--") if "--" in argv else len(argv)
    argv, flags = argv[:end], tuple(argv[end + 1 :])
    if {"-h", "--help"} & set(argv):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # for | head
        print(__doc__)  # here, because tyro joins its lines
    args = tyro.cli(Args, args=argv, description="")
    if optuna is None:
        raise UserError("Optuna is missing: pip install '.[tune]' in the clone, or pip install optuna")
    study = os.path.expanduser(args.study)
    saved = read_saved(Path(study)) if study else None
    args = tyro.cli(Args, args=argv, default=saved) if saved else args
    script = str(script_path(args.script)) if args.script.endswith(".py") else args.script  # valid from any folder
    args = dataclasses.replace(args, study=study, script=script, flags=flags or args.flags)
    settings = {name: value for name, value in vars(saved or args).items() if name not in ("study", "trials")}
    was = {name: value for name, value in settings.items() if getattr(args, name) != value}
    if was:
        raise UserError(f"the study was started with {shlex.join(as_flags(was))}, which cannot change: start another")
    return args.checked()


def counted(study) -> list:
    """The trials that count: complete and pruned ones, and those that failed on their own."""
    return [trial for trial in study.trials if trial.state.is_finished() and "minutes" in trial.user_attrs]


def write_trials(study, args: Args, path: Path) -> None:
    """Writes `trials.csv`, with every trial that counts."""
    draft, names = path.with_suffix(".tmp"), list(distributions(args))
    with draft.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *names])
        for trial in counted(study):
            score = trial.value if trial.state == TrialState.COMPLETE else None
            about = len(trial.intermediate_values), trial.user_attrs["minutes"], trial.user_attrs.get("why", "")
            values = [trial.params.get(name, "") for name in names]
            writer.writerow([trial.number, trial.state.name.lower(), score, *about, *values])
    draft.rename(path)


# -------------------------------------------------------------------------------------------------------------- main


def finish_trial(args: Args, study, trial, folder: Path) -> str:
    """Runs a trial and records its result; returns how it failed, or nothing."""
    began, how, why, score = time.perf_counter(), "", "", None
    print(f"trial {trial.number}  {shlex.join(as_flags(trial.params))}", flush=True)
    try:
        score = run_trial(args, trial, folder / "runs" / f"trial_{trial.number}")
        state = TrialState.PRUNED if score is None else TrialState.COMPLETE
    except Stopped as error:
        state, how, why = TrialState.FAIL, error.args[0], ": ".join(filter(None, error.args))
    trial.set_user_attr("minutes", round((time.perf_counter() - began) / 60, 2))
    trial.set_user_attr("why", why)
    study.tell(trial, score, state)
    write_trials(study, args, folder / "trials.csv")
    values = study.trials[trial.number].intermediate_values
    result = f"score {score:.3f}" if score is not None else f"{state.name.lower()} {why}"
    last = f" at {values[max(values)]:.3f}" if score is None and values else ""
    print(f"trial {trial.number}  {result}{last}", flush=True)
    return how


def search(args: Args, study, folder: Path) -> None:
    """Runs trials until there are as many as asked for. Raises UserError if several in a row fail in the same way.

    Trials whose values the script rejects do not count as failures: they take only seconds.
    """
    spreads, failed = distributions(args), []
    while len(counted(study)) < args.trials:
        how = finish_trial(args, study, study.ask(spreads), folder)
        failed = [*failed, how][-MAX_ALIKE:]
        if how not in ("", f"exit {REFUSED}") and failed == [how] * MAX_ALIKE:
            raise UserError(f"{MAX_ALIKE} trials in a row failed alike ({how}): {folder / 'trials.csv'} says why")


def main(args: Args) -> dict:
    """Searches, and returns the values of the best trial. Raises UserError if none has a score."""
    folder = make_folder(args)
    with locked(folder), writing(folder):
        draft = folder / "args.json.tmp"  # so that the file is never half written
        draft.write_text(json.dumps(dataclasses.asdict(args), indent=1))
        draft.rename(folder / "args.json")
        study = open_study(args, folder)
        print(f"{folder}: {len(counted(study))} of {args.trials} trials", flush=True)
        search(args, study, folder)
        if not study.get_trials(states=[TrialState.COMPLETE]):
            raise UserError(f"no trial was completed: {folder / 'trials.csv'} says why")
        best = study.best_trial
    print(f"best: trial {best.number}, score {best.value:.3f}; train it again with other seeds:")
    seeds = ["--seed", str(args.seed + args.num_seeds), "--num-seeds", "5"]
    for env_id in args.env_ids:
        flags = [id_flag(args), env_id, *args.flags, *as_flags(best.params), *seeds]
        print("python", shlex.join([str(Path(args.script).with_suffix(".py")), *flags]))
    return best.params


def run() -> None:
    """The command line. A UserError becomes one line on standard error and exit code 2 or 4."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # as SystemExit, so that the run is stopped too
        if signal.getsignal(number) != signal.SIG_IGN:  # which nohup sets
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    sys.stdout.reconfigure(errors="backslashreplace")  # for terminals that only know ASCII
    try:
        main(read_settings(sys.argv[1:]))
    except UserError as error:
        print(f"tune.py: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("stopped; continue with --study", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    run()
