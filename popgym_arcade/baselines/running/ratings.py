"""Elo ratings of a run's checkpoints: in a zero-sum game, the return against itself says nothing about an agent.

Every kept checkpoint plays against every other, half of the games in each seat. Shapes: N networks, E games.
"""

import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from popgym_arcade.baselines.devices.mesh import seed_by_seed
from popgym_arcade.baselines.running.checkpoints import restore, saved_steps
from popgym_arcade.baselines.running.evaluation import make_evaluate, make_keys
from popgym_arcade.baselines.running.files import whole_file, write_csv
from popgym_arcade.baselines.running.folder import one_line_for_disk_errors, title_of
from popgym_arcade.baselines.running.programs import compiler_options
from popgym_arcade.baselines.running.records import say
from popgym_arcade.baselines.running.signals import run_in_worker, stop_signals
from popgym_arcade.baselines.seats import Rivals, in_time, opponents, results

MOST = 10  # networks that are rated
RESAMPLES = 200  # bootstrap samples of the games for an interval
LOG_ODDS_PER_POINT = np.log(10) / 400  # of rating (Elo 1978)
COLUMNS = ("seed", "step", "elo", "low", "high")
GAME_COLUMNS = ("seed", "step", "opponent_step", "games", "wins", "draws", "losses")


def elo(outcomes: np.ndarray) -> np.ndarray:
    """Ratings [N] of the first player of outcomes[N, N, 3], numbers of wins, draws and losses; the mean is 0.

    The maximum of the likelihood in which a wins against b with probability 1 / (1 + 10^((b - a) / 400)) and a draw is
    half a win and half a loss. One more draw in every pair keeps the ratings finite.
    """
    score = outcomes[..., 0] + outcomes[..., 1] / 2 + 0.5
    first, second = np.nonzero(outcomes.sum(axis=-1))

    def loss(rating):
        log_odds = LOG_ODDS_PER_POINT * (rating[first] - rating[second])
        chance = 1 / (1 + np.exp(-log_odds))
        slope = LOG_ODDS_PER_POINT * (chance * (score[first, second] + score[second, first]) - score[first, second])
        value = np.sum(score[first, second] * np.logaddexp(0, -log_odds))
        value += np.sum(score[second, first] * np.logaddexp(0, log_odds))
        gradient = np.zeros_like(rating)
        np.add.at(gradient, first, slope)
        np.add.at(gradient, second, -slope)
        return value, gradient

    found = minimize(loss, np.zeros(len(outcomes)), jac=True, method="L-BFGS-B").x
    return found - found.mean()


def with_intervals(outcomes: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Ratings and both ends of their 95% intervals [3, N], with the games of every pair resampled."""
    games = outcomes.sum(axis=-1)
    share = outcomes / np.maximum(games, 1)[..., None]
    resampled = []
    for _ in range(RESAMPLES):
        drawn = np.zeros_like(outcomes)
        for a, b in zip(*np.nonzero(np.triu(games)), strict=True):
            drawn[a, b] = random.multinomial(games[a, b], share[a, b])
            drawn[b, a] = drawn[a, b, ::-1]
        resampled.append(elo(drawn))
    return np.stack([elo(outcomes), *np.quantile(resampled, [0.025, 0.975], axis=0)])


def make_match(args: Any, actor: tuple, policy: Any) -> Callable:
    """match(params, rival_params, key) -> returns [E] of the first network against the other, in `args.elo_games`."""
    _, begin, act = actor
    args = dataclasses.replace(args, eval_episodes=args.elo_games, num_seeds=1, num_devices=1)
    seated = jnp.asarray(opponents(args.elo_games))[None]

    def match(params, rival_params, key):
        rivals = Rivals(params=in_time(rival_params), players=seated)
        return make_evaluate(args, begin, functools.partial(act, rivals=rivals))(params, key, policy).returns

    return match


def round_robin(match: Callable, networks: list, go_on: Callable) -> np.ndarray:
    """Numbers of games [N, N, 3] that each network won, drew and lost against each other one. Calls `go_on()` after
    every match, which may raise."""
    outcomes = np.zeros((len(networks), len(networks), 3), int)
    for a, b in itertools.combinations(range(len(networks)), 2):
        key = jax.random.key(len(networks) * a + b)
        outcomes[b, a] = results(np.asarray(run_in_worker(match, networks[b], networks[a], key)))
        outcomes[a, b] = outcomes[b, a, ::-1]
        go_on()
    return outcomes


def rate(args: Any, folder: Path, init: Callable, actor: tuple, policy: Any) -> None:
    """Rates the first network of a run and its checkpoints, unless this is done or `--elo-games` is 0.

    Writes `elo.csv`, `elo_games.csv` and `elo.png` to the run folder, and prints a line about the last checkpoint.
    After Ctrl-C or SIGTERM, nothing is written, and resuming the run starts the ratings again.

    Args:
        init: init(key) -> state, of the script's make_train(args)
        actor: what the script's make_actor(args) returns
        policy: the policy of both players

    Raises:
        SystemExit: with 128 + the number of the signal, if any
        CannotWrite: if the disk is full or fails
    """
    if not args.elo_games or (folder / "elo.csv").exists():
        return
    with stop_signals("this match") as received, one_line_for_disk_errors(folder):

        def go_on() -> None:
            if received:
                say(f"stopped, not rated; to rate it, resume {folder}")
                sys.exit(128 + received[0])

        rate_networks(args, folder, init, actor, policy, go_on)


def rate_networks(args: Any, folder: Path, init: Callable, actor: tuple, policy: Any, go_on: Callable) -> None:
    """What `rate` does, without its checks and contexts. Calls `go_on()` after every match and fit, which may raise."""
    began = time.perf_counter()
    first = jax.jit(lambda keys: seed_by_seed(init, args)(keys).params)(make_keys(args)[0])
    steps = np.array(sorted({0, *saved_steps(folder)}))  # a run stopped before its first update has saved step 0
    steps = steps[np.unique(np.linspace(0, len(steps) - 1, MOST).round().astype(int))]
    networks = [first, *(restore(folder, int(step), {"params": first})["params"] for step in steps[1:])]
    say(f"rating {len(steps)} networks ...")
    match = jax.jit(make_match(args, actor, policy), compiler_options=compiler_options(args))
    rows, game_rows = [], []
    for i in range(args.num_seeds):
        of_seed = networks if args.num_seeds == 1 else [jax.tree.map(lambda x, i=i: x[i], each) for each in networks]
        outcomes = round_robin(match, of_seed, go_on)
        for a, b in itertools.combinations(range(len(steps)), 2):
            about = (args.seed + i, steps[b], steps[a], args.elo_games, *outcomes[b, a])
            game_rows.append(dict(zip(GAME_COLUMNS, about, strict=True)))
        found = with_intervals(outcomes, np.random.default_rng(0)).round(1)
        go_on()
        rows += [dict(zip(COLUMNS, (args.seed + i, *row), strict=True)) for row in zip(steps, *found, strict=True)]
    write_csv(folder / "elo_games.csv", GAME_COLUMNS, game_rows)
    draw(rows, folder)
    write_csv(folder / "elo.csv", COLUMNS, rows)  # last: with it, the ratings are complete
    say(f"{summary(rows, game_rows)}\nratings        {folder / 'elo.png'}, in {time.perf_counter() - began:.0f} s")


def summary(rows: list[dict], game_rows: list[dict]) -> str:
    """The rating of the last checkpoint, and its games against the first network, over all seeds."""
    first, last = rows[0]["step"], rows[-1]["step"]
    before, after = (np.mean([row["elo"] for row in rows if row["step"] == step]) for step in (first, last))
    games = [row for row in game_rows if (row["step"], row["opponent_step"]) == (last, first)]
    won, played = (sum(row[name] for row in games) for name in ("wins", "games"))
    against = f"the last won {won} of {played} games against the first"
    return f"Elo rating     {before:.0f} at step {first}, {after:.0f} at step {last}; {against}"


def draw(rows: list[dict], folder: Path) -> None:
    """`elo.png`: the rating over steps, a line for each seed with its interval."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for seed in dict.fromkeys(row["seed"] for row in rows):
        step, value, low, high = np.array([[row[k] for k in COLUMNS[1:]] for row in rows if row["seed"] == seed]).T
        axes.plot(step, value, "o-", markersize=5, label=f"seed {seed}")
        axes.fill_between(step, low, high, alpha=0.2, linewidth=0)
    axes.set(xlabel="environment steps", ylabel="Elo rating, mean of all checkpoints 0", xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.suptitle(title_of(folder), fontsize=10)
    with whole_file(folder / "elo.png") as draft:
        figure.savefig(draft, dpi=150)
