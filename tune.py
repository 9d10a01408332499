"""Search for hyper-parameters of a training script, with Optuna (Akiba et al. 2019, https://arxiv.org/abs/1907.10902).

Run:   python tune.py --script pqn_rnn --env-ids CartPoleEasy MineSweeperEasy --search learning_rate=1e-4..3e-3:log \
           -- --partial-obs --total-timesteps 100000 --eval-every 10000                       (flags of the script)
       python tune.py --study runs/tune/STUDY --trials 50          goes on with an interrupted one, or lengthens it
Page:  docs/tune.md

Every trial is a training of all seeds together on one id after the other, each a process of its own. Its score is the
greedy return, normalised so that 0 is the random policy's and 1 the best possible, averaged over seeds and ids. Bad
trials are pruned by their evaluations on the way. A folder keeps all of it: `study.db` (SQLite), `trials.csv`, `runs/`.
"""

import contextlib
import csv
import dataclasses
import datetime
import difflib
import importlib
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

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
DIVERGED = 3  # exit code of a training whose loss is no finite number any more


# --------------------------------------------------------------------------------------------------------- arguments


class UserError(Exception):
    """Something the user can put right: shown as one line, exit code 2."""


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
        distributions(self)
        first = {name: lowest(spread) for name, spread in distributions(self).items()}
        refused = refusal(self, command(self, self.env_ids[0], first, Path("runs"))[2:])
        if refused:
            raise UserError(f"{self.script}.py refuses the lowest values: {refused}")
        return self


def best_returns(args: Args) -> dict[str, float]:
    """Best possible return by id: of popgym_arcade's what players that know all earn, of others what was given."""
    with (ROOT / "benchmark/results/oracle.csv").open(newline="") as file:
        known = {row["env_id"]: float(row["return_mean"]) for row in csv.DictReader(file)}
    for item in args.best_returns:
        env_id, _, number = item.partition("=")
        try:
            known[env_id] = float(number)
        except ValueError:
            raise UserError(f"--best-returns {item!r}: write ID=NUMBER") from None
    return known


def script_args(args: Args) -> type:
    """The dataclass of the script's arguments."""
    return importlib.import_module(args.script).Args


def distributions(args: Args) -> dict:
    """Optuna's distributions by the name of the script's argument. Raises UserError for what cannot be searched."""
    from optuna import distributions as kinds

    fields = {field.name: field for field in dataclasses.fields(script_args(args))}
    found = {}
    for item in args.search:
        name, _, text = item.partition("=")
        name = name.replace("-", "_")
        if name not in fields or name in OURS:
            like = difflib.get_close_matches(name, set(fields) - OURS, 3, 0.4)
            raise UserError(
                f"--search {item!r}: {args.script}.py has no {name} to search; did you mean {' or '.join(like)}?"
            )
        kind = type(fields[name].default)
        try:
            if ".." not in text:
                found[name] = kinds.CategoricalDistribution([read(kind, each) for each in text.split(",")])
                continue
            ends, _, how = text.partition(":")
            low, high = (read(kind, each) for each in ends.split(".."))
            if kind not in (int, float) or how not in ("", "log") or not low < high or (how and low <= 0):
                raise ValueError
            one = kinds.IntDistribution if kind is int else kinds.FloatDistribution
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
    return "--env-ids" if "env_ids" in script_args(args).__dataclass_fields__ else "--env-id"


def command(args: Args, env_id: str, values: dict, run_dir: Path) -> list[str]:
    """The command line of one training."""
    seeds = ["--seed", str(args.seed), "--num-seeds", str(args.num_seeds)]
    mine = [id_flag(args), env_id, *as_flags(values), *seeds, "--run-dir", str(run_dir)]
    return [sys.executable, str(ROOT / f"{args.script}.py"), *args.flags, *mine]


def refusal(args: Args, flags: list[str]) -> str:
    """What the script has against these flags, or nothing."""
    module = importlib.import_module(args.script)
    try:
        module.parse_args(flags)
    except module.UserError as error:
        return str(error)
    except SystemExit:
        return "see above"
    return ""


# ------------------------------------------------------------------------------------------------------------- trials


class Stopped(Exception):
    """A trial whose training was stopped, or ended by itself, before its last evaluation."""


def evaluations(folder: Path, num_seeds: int) -> tuple[float, list[float]]:
    """Mean return of the random policy, and of the greedy one at each step that all seeds were evaluated at."""
    path = folder / "eval.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    random = [float(row["return_mean"]) for row in rows if row["policy"] == "random"]
    steps: dict[int, list[float]] = {}
    for row in rows:
        if row["policy"] == "greedy":
            steps.setdefault(int(row["global_step"]), []).append(float(row["return_mean"]))
    return float(np.mean(random)) if random else np.nan, [
        np.mean(each) for each in steps.values() if len(each) == num_seeds
    ]


def scores_of(folder: Path, env_id: str, args: Args) -> list[float]:
    """The evaluations so far, normalised where the best possible return is known."""
    found = next(iter(sorted(folder.glob("*/eval.csv"))), None)
    if found is None:
        return []
    random, returns = evaluations(found.parent, args.num_seeds)
    best = best_returns(args).get(env_id)
    return [float(value if best is None else (value - random) / (best - random)) for value in returns]


def score_of_random(folder: Path, env_id: str, args: Args) -> float:
    """0, or the random policy's return where returns stay as they are; Stopped if it was not measured."""
    if env_id in best_returns(args):
        return 0.0
    found = next(iter(sorted(folder.glob("*/eval.csv"))), None)
    random = evaluations(found.parent, args.num_seeds)[0] if found else np.nan
    if not np.isfinite(random):
        raise Stopped("diverged before the random policy was measured")
    return random


def train(args: Args, env_id: str, values: dict, folder: Path) -> Iterator[float]:
    """Trains, and yields each score as it comes. Closing it stops the training.

    Raises:
        Stopped: when the training ended with an error; of one that diverged, the last score is the random policy's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = 0
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command(args, env_id, values, folder), stdout=log, stderr=subprocess.STDOUT)
        try:
            while True:
                code = process.poll()
                for score in scores_of(folder, env_id, args)[told:]:
                    told += 1
                    yield score
                if code is not None:
                    break
                time.sleep(0.5)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(120)
            process.kill()
            process.wait()
    if code == DIVERGED:
        yield score_of_random(folder, env_id, args)
    elif code:
        lines = (folder / "log").read_text().strip().splitlines()
        raise Stopped(f"exit {code}: {lines[-1] if lines else ''}")


def run_trial(args: Args, trial, folder: Path) -> float | None:
    """The score of a trial, None if it was pruned. Raises Stopped when it cannot be told."""
    values, finals, count = dict(trial.params), [], 0
    for env_id in args.env_ids:
        refused = refusal(args, command(args, env_id, values, folder)[2:])
        if refused:
            raise Stopped(refused)
        with contextlib.closing(train(args, env_id, values, folder / env_id)) as training:
            score = None
            for score in training:
                trial.report(float(np.mean([*finals, score])), count)
                count += 1
                if trial.should_prune():
                    return None
        if score is None:
            raise Stopped("no evaluation")
        finals.append(score)
    return float(np.mean(finals))


# -------------------------------------------------------------------------------------------------------------- study


def open_study(args: Args, folder: Path):
    """The study in a folder, made if it is not there. What was interrupted in it is queued again.

    Raises:
        UserError: when it was begun with other arguments.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers = {
        "tpe": lambda seed: optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=args.startup_trials, multivariate=True
        ),
        "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    }
    pruners = {
        "median": optuna.pruners.MedianPruner(n_startup_trials=args.startup_trials),
        "halving": optuna.pruners.SuccessiveHalvingPruner(),
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
    for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(trial.params)
    return study


def settings_of(args: Args) -> dict:
    """What must not differ between the parts of a study."""
    return {name: value for name, value in dataclasses.asdict(args).items() if name not in ("study", "trials")}


def read_settings(argv: list[str]) -> Args:
    """Checked arguments; of a study that is gone on with, its own are the defaults.

    Raises:
        UserError: see `Args.checked`; also when an argument differs from those of the study.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    argv, flags = argv[:end], tuple(argv[end + 1 :])
    args = dataclasses.replace(tyro.cli(Args, args=argv, description=__doc__), flags=flags)
    path = Path(args.study) / "args.json"
    if args.study and path.is_file():
        saved = json.loads(path.read_text())
        saved = Args(**{name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()})
        args = tyro.cli(Args, args=argv, default=dataclasses.replace(saved, study=args.study))
        args = dataclasses.replace(args, flags=flags or saved.flags)
        differing = [name for name, value in settings_of(args).items() if getattr(saved, name) != value]
        if differing:
            was = ", ".join(shlex.join(as_flags({name: getattr(saved, name)})) for name in differing)
            raise UserError(f"{args.study} was begun with {was}, which cannot change: begin another study")
    elif args.study and Path(args.study).exists():
        raise UserError(f"--study {args.study} is there and no study: name a new folder")
    return args.checked()


def counted(study) -> list:
    """The trials that count: complete or pruned ones, or that the script had refused."""
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


def main(args: Args) -> dict:
    """Searches, and returns the values of the best trial. Raises UserError where no trial has a score."""
    from optuna.trial import TrialState

    when = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path(args.study or f"runs/tune/{args.script}-{when}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "args.json").write_text(json.dumps(dataclasses.asdict(args), indent=1))
    study, spreads = open_study(args, folder), distributions(args)
    print(f"{folder}: {len(counted(study))} of {args.trials} trials", flush=True)
    while len(counted(study)) < args.trials:
        trial, began = study.ask(spreads), time.perf_counter()
        print(f"trial {trial.number}  {shlex.join(as_flags(trial.params))}", flush=True)
        why, score = "", None
        try:
            score = run_trial(args, trial, folder / "runs" / f"trial_{trial.number}")
            state = TrialState.PRUNED if score is None else TrialState.COMPLETE
        except Stopped as error:
            state, why = TrialState.FAIL, str(error)
        trial.set_user_attr("minutes", round((time.perf_counter() - began) / 60, 2))
        trial.set_user_attr("why", why)
        study.tell(trial, score, state)
        write_trials(study, args, folder / "trials.csv")
        last = list(study.trials[trial.number].intermediate_values.values())
        told = f"score {score:.3f}" if score is not None else f"{state.name.lower()} {why}"
        print(f"trial {trial.number}  {told}{f' at {last[-1]:.3f}' if score is None and last else ''}", flush=True)
    if not study.get_trials(states=[TrialState.COMPLETE]):
        raise UserError(f"no trial came to its end: {folder / 'trials.csv'} says why")
    best = study.best_trial
    print(f"best: trial {best.number}, score {best.value:.3f}")
    for env_id in args.env_ids:
        print(f"python {args.script}.py", shlex.join([id_flag(args), env_id, *args.flags, *as_flags(best.params)]))
    return best.params


def run() -> None:
    """The command line: what the user can put right is one line on standard error and exit code 2."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        main(read_settings(sys.argv[1:]))
    except UserError as error:
        print(f"{SCRIPT}.py: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped; --study goes on with it", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    run()
