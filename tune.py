"""Search for hyper-parameters of a training script, with Optuna (Akiba et al. 2019, https://arxiv.org/abs/1907.10902).

Run:   python tune.py --script pqn_rnn --env-ids CartPoleEasy MineSweeperEasy --search learning_rate=1e-4..3e-3:log \
           -- --partial-obs --total-timesteps 100000 --eval-every 10000                       (flags of the script)
       python tune.py --study runs/tune/STUDY --trials 50          goes on with an interrupted one, or lengthens it
Page:  docs/tune.md

Every trial is a training of all seeds together on one id after the other, each a process of its own. Its score is the
greedy return, normalised so that 0 is the random policy's and 1 the best possible, averaged over seeds and ids. Bad
trials are pruned by their evaluations on the way. A folder keeps all of it: `study.db` (SQLite), `trials.csv`, `runs/`.

JAX is not imported here: a process that holds a GPU takes its memory from the trainings.
"""

import ast
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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
import tyro
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

SCRIPT = Path(__file__).stem
ROOT = Path(__file__).resolve().parent
TRAINING_SCRIPTS = (
    "pqn_mlp",
    "pqn_rnn",
    "ppo_mlp",
    "ppo_rnn",
    "ppo_continuous_action",
    "dqn_mlp",
    "dqn_rnn",
    "impala_popart",
)
OURS = {"env_id", "env_ids", "seed", "num_seeds", "run_dir", "resume", "from_run", "target_return"}  # set by tune.py
COLUMNS = ("trial", "state", "score", "evaluations", "minutes", "why")
REFUSED, DIVERGED, CANNOT_WRITE = 2, 3, 4  # exit codes of the training scripts
ALIKE = 3  # trials in a row that failed alike end the search
POINTS = 1000  # steps of Optuna for the training on one id, however many environment steps and evaluations it has
# tells, in a process of its own, what a script has against any of several command lines
CHECK = """
import importlib, json, sys
root, name, lines = sys.argv[1:]
sys.path.insert(0, root)
script = importlib.import_module(name)
for flags in json.loads(lines):
    try:
        script.parse_args(flags)
    except script.UserError as error:
        sys.exit(str(error))
"""


# --------------------------------------------------------------------------------------------------------- arguments


class UserError(Exception):
    """Something the user can put right: shown as one line, exit code 2."""

    exit_code = 2


class CannotWrite(UserError):
    """A disk that is full or gone, of the study or of a training."""

    exit_code = CANNOT_WRITE


@dataclass(frozen=True)
class Args:
    study: str = ""
    """folder of the study, new or to go on with; empty: runs/tune/SCRIPT-TIME"""
    trials: int = 20
    """trials that the study has in the end, pruned ones among them"""
    script: str = "pqn_rnn"
    """training script"""
    env_ids: tuple[str, ...] = ("CartPoleEasy",)
    """ids of the environments, one training each"""
    search: tuple[str, ...] = ()
    """flags of the script to search, as learning_rate=1e-5..1e-2:log num_steps=8..64:log memory=MinGRU,GRU"""
    flags: tyro.conf.Suppress[tuple[str, ...]] = ()
    """flags of the script in every trial: what stands behind -- on the command line"""
    seed: int = 0
    """first seed of the trainings, and seed of the sampler"""
    num_seeds: int = 2
    """seeds of every training"""
    sampler: str = "tpe"
    """what proposes trials: tpe (tree-structured Parzen estimators) or random"""
    pruner: str = "median"
    """what stops trials: median (worse than half of the others so far), halving, or none"""
    startup_trials: int = 5
    """trials at the beginning that are random, and never pruned"""
    best_returns: tuple[str, ...] = ()
    """best possible returns of ids that are not popgym_arcade's, as CartPole-v1=500"""

    def checked(self) -> "Args":
        """These arguments. Raises UserError for what can be refused before anything is written."""
        if not self.search:
            raise UserError("--search: name flags and their ranges, as learning_rate=1e-5..1e-2:log")
        for name in ("trials", "num_seeds", "startup_trials"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: use 1 or more")
        choices = {"script": TRAINING_SCRIPTS, "sampler": ("tpe", "random"), "pruner": ("median", "halving", "none")}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UserError(f"--{name} {getattr(self, name)!r} is unknown: use one of {', '.join(known)}")
        if not self.env_ids or len(set(self.env_ids)) < len(self.env_ids):
            raise UserError("--env-ids: name one or several different ids")
        bounds = best_returns(self)
        unknown = [env_id for env_id in self.env_ids if env_id not in bounds]
        if unknown and len(self.env_ids) > 1:
            raise UserError(f"--best-returns: what is the best return of {unknown[0]}? Write {unknown[0]}=NUMBER")
        check_flags(self)
        first = {name: lowest(spread) for name, spread in distributions(self).items()}
        refused = refusal(self, [command(self, env_id, first, Path("runs"))[2:] for env_id in self.env_ids])
        if refused:
            raise UserError(f"{self.script}.py refuses the lowest values: {refused}")
        return self


def best_returns(args: Args) -> dict[str, float]:
    """Best possible return by id: of popgym_arcade's what players that know all earn, of others what was given.

    Raises:
        UserError: for what is no finite number, or of an id that is not searched on.
    """
    with (ROOT / "benchmark/results/oracle.csv").open(newline="") as file:
        known = {row["env_id"]: float(row["return_mean"]) for row in csv.DictReader(file)}
    for item in args.best_returns:
        env_id, _, number = item.partition("=")
        if env_id not in args.env_ids:
            raise UserError(f"--best-returns {item!r}: {env_id} is none of --env-ids {' '.join(args.env_ids)}")
        try:
            known[env_id] = float(number)
        except ValueError:
            raise UserError(f"--best-returns {item!r}: write ID=NUMBER") from None
        if not math.isfinite(known[env_id]):
            raise UserError(f"--best-returns {item!r}: use a finite number")
    return known


@functools.lru_cache
def kinds_of(script: str) -> dict[str, type]:
    """Types of the script's arguments by their names, read from its text; str for all that is no single value."""
    tree = ast.parse((ROOT / f"{script}.py").read_text())
    (args,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Args")
    fields = [node for node in args.body if isinstance(node, ast.AnnAssign)]
    known = {"bool": bool, "int": int, "float": float}
    return {field.target.id: known.get(ast.unparse(field.annotation), str) for field in fields}


def did_you_mean(name: str, known: set[str]) -> str:
    """The names that are like this one, as the end of a message."""
    like = difflib.get_close_matches(name, sorted(known), 3, 0.4)
    return f"; did you mean {' or '.join(like)}?" if like else ""


def check_flags(args: Args) -> None:
    """Refuses, by a UserError, flags behind -- that the script does not have or that the search sets itself."""
    kinds, own = kinds_of(args.script), {field.name for field in dataclasses.fields(Args)}
    for text in args.flags:
        if not text.startswith("-") or re.match(r"-\.?\d", text):  # a value
            continue
        spelt = text.partition("=")[0]
        name = spelt.lstrip("-").replace("-", "_")
        name = name if name in kinds else name.removeprefix("no_")
        if name in OURS:
            raise UserError(f"{spelt} behind --: {'give it before --' if name in own else 'leave it out'}")
        if name not in kinds:
            known = {f"--{other.replace('_', '-')}" for other in set(kinds) - OURS}
            raise UserError(f"{spelt} behind --: {args.script}.py has no such flag{did_you_mean(spelt, known)}")


def distributions(args: Args) -> dict:
    """Optuna's distributions by the name of the script's argument. Raises UserError for what cannot be searched."""
    from optuna import distributions as spreads

    kinds, found = kinds_of(args.script), {}
    for item in args.search:
        name, _, text = item.partition("=")
        name = name.replace("-", "_")
        if name not in kinds or name in OURS:
            like = did_you_mean(name, set(kinds) - OURS)
            raise UserError(f"--search {item!r}: {args.script}.py has no {name} to search{like}")
        kind = kinds[name]
        try:
            if ".." not in text:
                found[name] = spreads.CategoricalDistribution([read(kind, each) for each in text.split(",")])
                continue
            ends, _, how = text.partition(":")
            low, high = (read(kind, each) for each in ends.split(".."))
            if kind not in (int, float) or how not in ("", "log") or not low < high or (how and low <= 0):
                raise ValueError
            one = spreads.IntDistribution if kind is int else spreads.FloatDistribution
            found[name] = one(low, high, log=how == "log")
        except ValueError:
            raise UserError(f"--search {item!r}: write NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A,B,C") from None
    return found


def read(kind: type, text: str) -> bool | int | float | str:
    """A value of the script's argument. Raises ValueError where it is none."""
    if kind is bool:
        return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else read(int, "")
    if not text:
        raise ValueError
    return kind(text) if kind in (int, float) else text


def lowest(spread):
    """The least or first value of a distribution."""
    return spread.choices[0] if hasattr(spread, "choices") else spread.low


def as_flags(values: dict) -> list[str]:
    """The values as flags of a command line."""
    flags = []
    for name, value in values.items():
        flag = "--" if name == "flags" else f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            flags.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            flags += [flag, *map(str, value if isinstance(value, tuple) else (value,))]
    return flags


def id_flag(args: Args) -> str:
    """The script's flag for an id."""
    return "--env-ids" if "env_ids" in kinds_of(args.script) else "--env-id"


def command(args: Args, env_id: str, values: dict, run_dir: Path) -> list[str]:
    """The command line of one training."""
    seeds = ["--seed", str(args.seed), "--num-seeds", str(args.num_seeds)]
    mine = [id_flag(args), env_id, *as_flags(values), *seeds, "--run-dir", str(run_dir)]
    return [sys.executable, str(ROOT / f"{args.script}.py"), *args.flags, *mine]


def refusal(args: Args, lines: list[list[str]]) -> str:
    """What the script has against any of these command lines, or nothing. It sees the devices that trainings see."""
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    line = [sys.executable, "-c", CHECK, str(ROOT), args.script, json.dumps(lines)]
    done = subprocess.run(line, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return (complaint(done.stderr) or f"exit {done.returncode}") if done.returncode else ""


def complaint(printed: str) -> str:
    """The line of what a script printed that says what was wrong: its last one, or the first in tyro's box."""
    lines = printed.strip().splitlines() or [""]
    if lines[-1].startswith("╰"):
        lines = [line.strip("│ ") for line in lines if line.startswith("│")][:1]
    return re.sub(r"^\w+\.py: error: ", "", lines[-1])


# ------------------------------------------------------------------------------------------------------------- trials


class Stopped(Exception):
    """A trial that has no score. `how` is the way it failed in, without the details that differ between trials."""

    def __init__(self, how: str, details: str = ""):
        super().__init__(f"{how}: {details}" if details else how)
        self.how = how


def evaluations(folder: Path, num_seeds: int) -> tuple[float, dict[int, float]]:
    """Mean return of the random policy, and of the greedy one by the step, where all seeds were evaluated."""
    path = folder / "eval.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    random = [float(row["return_mean"]) for row in rows if row["policy"] == "random"]
    steps: dict[int, list[float]] = {}
    for row in rows:
        if row["policy"] == "greedy":
            steps.setdefault(int(row["global_step"]), []).append(float(row["return_mean"]))
    greedy = {step: float(np.mean(each)) for step, each in steps.items() if len(each) == num_seeds}
    return float(np.mean(random)) if random else np.nan, greedy


def scores_of(folder: Path, env_id: str, args: Args) -> list[tuple[int, float]]:
    """The evaluations so far: the point of the training, 1 to POINTS, and the score, normalised where it can be.

    Raises:
        UserError: when the best possible return is not above the random policy's.
    """
    found = next(iter(sorted(folder.glob("*/eval.csv"))), None)
    if found is None:
        return []
    random, returns = evaluations(found.parent, args.num_seeds)
    total = json.loads((found.parent / "args.json").read_text())["args"]["total_timesteps"]
    best, scores = best_returns(args).get(env_id), []
    if best is not None and best <= random:
        raise UserError(f"--best-returns {env_id}={best:g}: the random policy has {random:.3g}, begin another study")
    for step, value in returns.items():
        point = min(max(round(POINTS * step / total), 1), POINTS)
        scores.append((point, value if best is None else (value - random) / (best - random)))
    return scores


def score_of_random(folder: Path, env_id: str, args: Args) -> float:
    """0, or the random policy's return where returns stay as they are; Stopped if it was not measured."""
    if env_id in best_returns(args):
        return 0.0
    found = next(iter(sorted(folder.glob("*/eval.csv"))), None)
    random = evaluations(found.parent, args.num_seeds)[0] if found else np.nan
    if not np.isfinite(random):
        raise Stopped("diverged before the random policy was measured")
    return random


@contextlib.contextmanager
def started(line: list[str], log: Path) -> Iterator[subprocess.Popen]:
    """The process of a command line; what is left of it at the end gets SIGTERM and two minutes to save."""
    with log.open("w") as file:
        # in a session of its own, since a terminal's Ctrl-C goes to all of one: a training's second signal ends it
        # at once, without saving
        process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        try:
            process.terminate()
            process.wait(120)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also at a second Ctrl-C
            process.kill()
            process.wait()


def train(args: Args, env_id: str, values: dict, folder: Path) -> Iterator[tuple[int, float]]:
    """Trains, and yields each point and score as it comes. Closing it stops the training.

    Raises:
        Stopped: when the training ended with an error; of one that diverged, the last score is the random policy's.
        CannotWrite: when it could not write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = 0
    with started(command(args, env_id, values, folder), folder / "log") as process:
        while True:
            code = process.poll()  # before the scores are read, so that the last ones are among them
            for each in scores_of(folder, env_id, args)[told:]:
                told += 1
                yield each
            if code is not None:
                break
            time.sleep(0.5)
    said = complaint((folder / "log").read_text(errors="replace"))
    if code == CANNOT_WRITE:
        raise CannotWrite(f"a training cannot write: {said.partition(';')[0]}; put that right, then --study goes on")
    if code < 0:
        name = signal.Signals(-code).name
        raise Stopped(f"killed by {name}{' (out of memory?)' if name == 'SIGKILL' else ''}", said)
    if code == DIVERGED:
        yield POINTS, score_of_random(folder, env_id, args)
    elif code:
        raise Stopped(f"exit {code}", said)


def means_so_far(args: Args, values: dict, folder: Path) -> Iterator[tuple[int, float]]:
    """Trains on one id after the other; yields at each evaluation Optuna's step and the mean score of the ids so far.

    Raises:
        Stopped: see `train`; also when there is no evaluation, or one that is no finite number.
    """
    finals = []
    for done, env_id in enumerate(args.env_ids):
        score = None
        with contextlib.closing(train(args, env_id, values, folder / env_id)) as training:
            for point, score in training:
                if not np.isfinite(score):
                    raise Stopped(f"return {score} on {env_id}")
                yield done * POINTS + point, float(np.mean([*finals, score]))
        if score is None:
            raise Stopped("no evaluation")
        finals.append(score)


def run_trial(args: Args, trial, folder: Path) -> float | None:
    """The score of a trial, None if it was pruned. Raises Stopped when it cannot be told."""
    end = POINTS * len(args.env_ids)
    with contextlib.closing(means_so_far(args, dict(trial.params), folder)) as means:
        for step, score in means:
            trial.report(score, step)
            if step < end and trial.should_prune():  # at the end there is nothing left to save
                return None
    return score


class MedianPruner(optuna.pruners.BasePruner):
    """Prunes a trial that is below the median of what the complete ones had at that point of the same id, or before.

    Optuna's own takes the trial's best so far, on whichever id, and compares equal steps alone.
    """

    def __init__(self, startup_trials: int):
        self.startup_trials = startup_trials

    def prune(self, study, trial) -> bool:
        now = trial.last_step
        before = (now - 1) // POINTS * POINTS  # last step of the id before
        others = []
        for other in study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]):
            steps = [step for step in other.intermediate_values if before < step <= now]
            if steps and 0 not in other.intermediate_values:  # 0: of a version that counted evaluations
                others.append(other.intermediate_values[max(steps)])
        return len(others) >= self.startup_trials and bool(trial.intermediate_values[now] < np.median(others))


class HalvingPruner(optuna.pruners.SuccessiveHalvingPruner):
    """Keeps the better half at 3/16, 3/8 and 3/4 of a trial (of two ids, the last is half of the second)."""

    def __init__(self, startup_trials: int, end: int):
        super().__init__(min_resource=3 * end // 16, reduction_factor=2)
        self.startup_trials = startup_trials

    def prune(self, study, trial) -> bool:
        is_bad = super().prune(study, trial)  # of the first ones too: it notes what later ones are compared with
        complete = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        return is_bad and len(complete) >= self.startup_trials


# -------------------------------------------------------------------------------------------------------------- study


def make_folder(args: Args) -> Path:
    """The study's folder; one without a name is new, and no other search's. Raises UserError where it cannot be."""
    name = args.study or f"runs/tune/{args.script}-{time.strftime('%Y%m%d-%H%M%S')}"
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
    """Within it no other process searches in the folder. Raises UserError if one does, or nothing can be written."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context((folder / "lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system lifts it when the process is gone
        except BlockingIOError:
            raise UserError(f"--study {folder}: another process searches there now") from None
        except OSError as error:
            raise UserError(f"--study {folder}: {error.strerror}") from None
        yield


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Within it an error of the disk or the database is a CannotWrite, which ends the search in one line."""
    try:
        yield
    except (OSError, SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise CannotWrite(f"{folder}: {reason}; put that right, then --study goes on") from None


def open_study(args: Args, folder: Path):
    """The study in a folder, made if it is not there. What was interrupted in it is queued again."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers = {
        "tpe": lambda seed: optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=args.startup_trials, multivariate=True
        ),
        "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    }
    pruners = {
        "median": MedianPruner(args.startup_trials),
        "halving": HalvingPruner(args.startup_trials, POINTS * len(args.env_ids)),
        "none": optuna.pruners.NopPruner(),
    }
    study = optuna.create_study(
        storage=f"sqlite:///{folder / 'study.db'}",
        study_name=SCRIPT,
        direction="maximize",
        load_if_exists=True,
        pruner=pruners[args.pruner],
    )
    # a sampler that goes on draws other numbers than the one that began
    study.sampler = samplers[args.sampler](args.seed + len(study.trials))
    for trial in study.get_trials(states=[TrialState.RUNNING]):
        study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params)
    return study


def settings_of(args: Args) -> dict:
    """What must not differ between the parts of a study."""
    return {name: value for name, value in dataclasses.asdict(args).items() if name not in ("study", "trials")}


def read_saved(folder: Path) -> Args | None:
    """The arguments that the study in a folder was begun with, None if there is no such folder.

    Raises:
        UserError: when the folder is no study's, or its `args.json` cannot be read.
    """
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
        raise UserError(f"--study {folder} is there and no study: name a new folder") from None
    except OSError as error:
        raise UserError(f"--study {folder}: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is broken: {error}") from None
    return saved


def write_settings(args: Args, folder: Path) -> None:
    """`args.json`, whole or not at all."""
    draft = folder / "args.json.tmp"
    draft.write_text(json.dumps(dataclasses.asdict(args), indent=1))
    draft.rename(folder / "args.json")


def read_settings(argv: list[str]) -> Args:
    """Checked arguments; of a study that is gone on with, its own are the defaults.

    Raises:
        UserError: see `Args.checked`, `read_saved`; also when an argument differs from those of the study.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    argv, flags = argv[:end], tuple(argv[end + 1 :])
    args = dataclasses.replace(tyro.cli(Args, args=argv, description=__doc__), flags=flags)
    saved = read_saved(Path(args.study)) if args.study else None
    if saved:
        args = tyro.cli(Args, args=argv, default=dataclasses.replace(saved, study=args.study))
        args = dataclasses.replace(args, flags=flags or saved.flags)
        differing = [name for name, value in settings_of(args).items() if getattr(saved, name) != value]
        if differing:
            was = ", ".join(shlex.join(as_flags({name: getattr(saved, name)})) for name in differing)
            raise UserError(f"{args.study} was begun with {was}, which cannot change: begin another study")
    return args.checked()


def counted(study) -> list:
    """The trials that count: complete and pruned ones, and those that failed by themselves."""
    return [trial for trial in study.trials if trial.state.is_finished() and "minutes" in trial.user_attrs]


def write_trials(study, args: Args, path: Path) -> None:
    """`trials.csv`: every trial that counts."""
    draft = path.with_suffix(".tmp")
    with draft.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *distributions(args)])
        for trial in counted(study):
            score = trial.value if trial.state.name == "COMPLETE" else None
            about = trial.user_attrs["minutes"], trial.user_attrs.get("why", "")
            values = [trial.params.get(name, "") for name in distributions(args)]
            count = len(trial.intermediate_values)
            writer.writerow([trial.number, trial.state.name.lower(), score, count, *about, *values])
    draft.rename(path)


# --------------------------------------------------------------------------------------------------------------- main


def finish_trial(args: Args, study, trial, folder: Path) -> str:
    """Runs a trial and writes down what came of it; returns the way that it failed in, or nothing."""
    began, how, why, score = time.perf_counter(), "", "", None
    print(f"trial {trial.number}  {shlex.join(as_flags(trial.params))}", flush=True)
    try:
        score = run_trial(args, trial, folder / "runs" / f"trial_{trial.number}")
        state = TrialState.PRUNED if score is None else TrialState.COMPLETE
    except Stopped as error:
        state, how, why = TrialState.FAIL, error.how, str(error)
    trial.set_user_attr("minutes", round((time.perf_counter() - began) / 60, 2))
    trial.set_user_attr("why", why)
    study.tell(trial, score, state)
    write_trials(study, args, folder / "trials.csv")
    values = study.trials[trial.number].intermediate_values
    told = f"score {score:.3f}" if score is not None else f"{state.name.lower()} {why}"
    last = f" at {values[max(values)]:.3f}" if score is None and values else ""
    print(f"trial {trial.number}  {told}{last}", flush=True)
    return how


def search(args: Args, study, folder: Path) -> None:
    """Runs trials until there are as many as asked for.

    Raises:
        UserError: when several trials in a row failed alike; what the script refuses is not counted among these,
            since it is the values' fault, and costs only seconds.
    """
    spreads, failed = distributions(args), []
    while len(counted(study)) < args.trials:
        how = finish_trial(args, study, study.ask(spreads), folder)
        failed = [*failed, how][-ALIKE:]
        if how not in ("", f"exit {REFUSED}") and failed == [how] * ALIKE:
            raise UserError(f"{ALIKE} trials in a row failed alike ({how}): {folder / 'trials.csv'} says why")


def main(args: Args) -> dict:
    """Searches, and returns the values of the best trial.

    Raises:
        UserError: where no trial has a score, or the search cannot go on: see `locked`, `search`, `writing`.
    """
    folder = make_folder(args)
    with locked(folder), writing(folder):
        write_settings(args, folder)
        study = open_study(args, folder)
        print(f"{folder}: {len(counted(study))} of {args.trials} trials", flush=True)
        search(args, study, folder)
        if not study.get_trials(states=[TrialState.COMPLETE]):
            raise UserError(f"no trial came to its end: {folder / 'trials.csv'} says why")
        best = study.best_trial
    print(f"best: trial {best.number}, score {best.value:.3f}; to be trained again with other seeds:")
    seeds = ["--seed", str(args.seed + args.num_seeds), "--num-seeds", "5"]
    for env_id in args.env_ids:
        flags = [id_flag(args), env_id, *args.flags, *as_flags(best.params), *seeds]
        print(f"python {args.script}.py", shlex.join(flags))
    return best.params


def run() -> None:
    """The command line: what the user can put right is one line on standard error and exit code 2 or 4."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # by SystemExit, so that the training is stopped too
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        main(read_settings(sys.argv[1:]))
    except UserError as error:
        print(f"{SCRIPT}.py: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("stopped; --study goes on with it", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    run()
