"""How the rules of popgym-arcade 0.0.7 change returns: each one, alone, replaces ours, and both games are played.

    python benchmark/published_rules.py --episodes 10000

Writes OUT.csv and OUT.md (the table) and prints the table. Both games have the same seeds and are identical until the
rule makes a difference, so the standard error of the difference is taken over pairs of episodes. The random player's
returns under our rules are those of random_policy.py. Rules that change only the picture or a flag are left out,
because they do not change returns.
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from popgym_arcade import environments
from popgym_arcade.analysis.command_line import launch
from popgym_arcade.analysis.tables import markdown, write_table
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, NonNegativeInt, PathName, check_limits
from popgym_arcade.environments import breakout
from popgym_arcade.environments.arcade import DOWN, FIRE, LEFT, RIGHT, UP, ArcadeEnvironment
from popgym_arcade.environments.cartpole import THETA_LIMIT, X_LIMIT
from popgym_arcade.environments.navigator import NUM_TNT
from popgym_arcade.environments.tetris import COVERED, GOAL, PIECES, TetrisState

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from families.tetris import greedy  # noqa: E402  (the tests are not a package)
from harness import expert_games, resets  # noqa: E402

from benchmark.random_policy import CHUNK, check_ids, play_to_the_end  # noqa: E402

LEVELS = "Easy", "Medium", "Hard"
FIGURES = ("here_mean", "here_error", "there_mean", "there_error", "difference", "difference_error", "share_changed")
COLUMNS = ("env_id", "published_rule", "player", "episodes", *FIGURES)


@dataclass(frozen=True)
class Args:
    env_ids: tuple[str, ...] = ()
    """popgym_arcade ids to play; none: all ids that a rule changes"""
    episodes: Count = 10_000
    """episodes per id and player; some players have their own games instead"""
    seed: NonNegativeInt = 0
    """seed of actions and episodes"""
    out: PathName = "runs/published_rules"
    """path of the files to write, without their endings"""


# The published rules. Each class is a mixin that replaces one rule: it comes before the game among the bases.


class OneMoreStep:
    """The time limit was checked on the state before the step."""

    def is_truncated(self, state, params):
        return state.time > params.max_steps_in_episode


class LastCardTwice(OneMoreStep):
    """AutoEncode checked for the end before the step, so fire right after the last answer could pay once more."""

    def transition(self, key, state, action, params):
        answered = state.answered == self.num_cards
        over = answered | (state.time == params.max_steps_in_episode)
        again = answered & (action == FIRE) & (state.cards[0] == state.selected)
        state, reward, _ = super().transition(key, state, action, params)
        return state.replace(score=state.score + again), reward + again / self.num_cards, over


class ForcedFirstAnswer:
    """AutoEncode answered in the first step after the cards, whatever the action was. Left and right turned first."""

    def transition(self, key, state, action, params):
        forced = state.time == self.num_cards
        turned = super().transition(key, state, action, params)[0].selected
        state = state.replace(selected=jnp.where(forced, turned, state.selected))
        return super().transition(key, state, jnp.where(forced, FIRE, action), params)


class FourActions:
    """AutoEncode's action space left out fire."""

    num_actions = 4


class LateCutOff:
    """BattleShip and MineSweeper ended one shot after the last permitted repeat, whatever that shot hit."""

    def transition(self, key, state, action, params):
        late = (action == FIRE) & (state.repeats >= self.max_repeats)
        uncounted = state.replace(repeats=jnp.zeros_like(state.repeats))
        after, reward, over = super().transition(key, uncounted, action, params)
        return after.replace(repeats=state.repeats + after.repeats), reward, over | late


class NoStartAtTheEdge:
    """BattleShip's and MineSweeper's cursor never started in the last row or column."""

    def reset_state(self, key, params):
        state = super().reset_state(jax.random.clone(key), params)
        keys = jax.random.split(jax.random.fold_in(key, 2))
        x, y = (jax.random.randint(key, (), 0, self.size - 1) for key in keys)
        last = self.size - 1
        return state.replace(x=jnp.where(state.x == last, x, state.x), y=jnp.where(state.y == last, y, state.y))


class ShotAtTheLimit(OneMoreStep):
    """MineSweeper checked its time limit before the step if the action was fire, and after it if it was a move."""

    def transition(self, key, state, action, params):
        timed_out = state.time + (action != FIRE) >= params.max_steps_in_episode
        state, reward, over = super().transition(key, state, action, params)
        return state, reward, over | timed_out


class UnpaidBricks:
    """Breakout deleted a brick touched in the step after another brick. It paid nothing, and the ball flew on."""

    def transition(self, key, state, action, params):
        after, reward, over = super().transition(key, state, action, params)
        row, column = np.indices(after.bricks.shape)
        under_ball = (row == after.ball_y) & (column == after.ball_x)
        bricks = after.bricks & ~(under_ball & state.strike & after.strike)
        return after.replace(bricks=bricks), reward, over | ~jnp.any(bricks)


class PaddleOffTheBoard:
    """BreakoutEasy's paddle started in column 5, one column off the board, and stayed there until it was moved."""

    def reset_state(self, key, params):
        return super().reset_state(key, params).replace(paddle_x=jnp.int32(5))

    def transition(self, key, state, action, params):
        stays = (state.paddle_x == 5) & (action != LEFT) & (action != RIGHT)
        five_columns = breakout.BreakoutMedium().transition(key, state, action, params)
        six_columns = super().transition(key, state, action, params)
        return jax.tree.map(functools.partial(jnp.where, stays), five_columns, six_columns)


class DeadStep(OneMoreStep):
    """CartPole checked for the end before the step, so one more step followed, which paid nothing."""

    def transition(self, key, state, action, params):
        over = (jnp.abs(state.x) > X_LIMIT) | (jnp.abs(state.theta) > THETA_LIMIT)
        over |= state.time == params.max_steps_in_episode
        state, reward, _ = super().transition(key, state, action, params)
        return state, jnp.where(over, 0.0, reward), over


class ActionsLikeSteps:
    """CartPole's `num_actions` was its time limit; every action above 3 coasts."""

    @property
    def num_actions(self):
        return self.max_steps


class UnboundedCounter:
    """CountRecall's counter went below 0 and above the number of cards."""

    def transition(self, key, state, action, params):
        after, reward, over = super().transition(key, state, action, params)
        return after.replace(count=state.count + (action == UP) - (action == DOWN)), reward, over


class LastStepForNothing:
    """Navigator's last permitted step had reward 0, whatever it met."""

    def transition(self, key, state, action, params):
        last = state.time + 1 >= params.max_steps_in_episode
        after, reward, over = super().transition(key, state, action, params)
        return after.replace(score=jnp.where(last, 0, after.score)), jnp.where(last, 0.0, reward), over


class RowsAndColumnsApart:
    """Navigator drew rows and columns of free cells independently, those of the treasure with a constant key.

    So the treasure could replace a TNT, and the player could start on either. Fire did not set off the TNT.
    """

    def reset_state(self, key, params):
        state = super().reset_state(jax.random.clone(key), params)
        keys = jax.random.split(jax.random.fold_in(key, 2))
        free = jnp.nonzero(~state.tnt.T, size=self.size**2 - NUM_TNT)
        constant = jax.random.split(jax.random.PRNGKey(1))
        treasure_x, treasure_y = (jax.random.choice(*draw) for draw in zip(constant, free, strict=True))
        x, y = (jax.random.choice(*draw) for draw in zip(keys, free, strict=True))
        return state.replace(
            x=x, y=y, treasure_x=treasure_x, treasure_y=treasure_y, tnt=state.tnt.at[treasure_y, treasure_x].set(False)
        )

    def transition(self, key, state, action, params):
        after, reward, over = super().transition(key, state.replace(tnt=state.tnt & (action != FIRE)), action, params)
        return after.replace(tnt=state.tnt), reward, over


class RowsBeyondTen:
    """Tetris paid for every row of the step that reached ten rows."""

    def transition(self, key, state, action, params):
        after, reward, lost = super().transition(key, state.replace(score=jnp.int32(0)), action, params)
        rows, score = after.score, state.score + after.score
        won = score >= GOAL
        return after.replace(score=jnp.minimum(score, GOAL)), 0.1 * rows - (lost & ~won), lost | won


class BrokenFirstBag:
    """Tetris skipped pieces of the first bag, two on Easy and one on Medium, and dealt as many others twice."""

    def reset_state(self, key, params):
        state, places = super().reset_state(key, params), np.arange(PIECES)
        skipped = (places > self.previews) * (self.previews - 1)
        return state.replace(bag=state.bag[(places + skipped) % PIECES])


class LeapingPieces:
    """Tetris moved a piece down by its full speed if its target was free, whatever lay between; else by one cell.

    In a piece's first step, down moved it by one cell.
    """

    gravity = soft_drop = 0  # our rule only locks the piece where this one put it

    def transition(self, key, state, action, params):
        rotation = (state.rotation + (action == UP)) % 4
        x = state.x + (action == RIGHT) - (action == LEFT)
        moves = self._has_room(state, rotation, x, state.y)
        rotation, x = jnp.where(moves, rotation, state.rotation), jnp.where(moves, x, state.x)
        drop = jnp.where(state.y == 0, 1, super().soft_drop)
        leap = state.y + jnp.where(action == DOWN, drop, super().gravity)
        y = jnp.where(self._has_room(state, rotation, x, leap), leap, state.y + 1)
        y = jnp.where(self._has_room(state, rotation, x, y), y, state.y)
        return super().transition(key, state.replace(rotation=rotation, x=x, y=y), jnp.int32(FIRE), params)

    def _has_room(self, state, rotation, x, y):
        """Whether the falling piece would touch neither the stack nor a wall."""
        solid = jnp.pad(state.board > 0, ((0, 8), (3, 4)), constant_values=True)
        box = jax.lax.dynamic_slice(solid, (y, x + 3), (4, 4))
        return ~jnp.any(box & jnp.asarray(COVERED)[state.piece, rotation])


@struct.dataclass
class OwingState(TetrisState):
    """rows_owed: float32, won, lost: bool; what the next step pays, and how it ends."""

    rows_owed: jax.Array
    won: jax.Array
    lost: jax.Array


class PaidLate:
    """Tetris paid for rows and ended one step late. A top-out that was due on the last permitted step cost nothing."""

    def reset_state(self, key, params):
        first = super().reset_state(key, params)
        return OwingState(**vars(first), rows_owed=jnp.float32(0), won=jnp.bool_(False), lost=jnp.bool_(False))

    def transition(self, key, state, action, params):
        in_time = state.time + 1 < params.max_steps_in_episode
        after, reward, over = super().transition(key, state, action, params)
        won = after.score == GOAL
        lost = over & ~won
        owing = after.replace(rows_owed=reward + lost, won=won, lost=lost)
        return owing, state.rows_owed - (state.lost & in_time), state.won | state.lost


# Players


class Player(NamedTuple):
    """act(env, states, plans, key): actions int32[n] of a batch.

    games(env_id): first states and plans, each with a leading axis; None: the rule's own resets, without plans.
    most: maximum number of episodes, for a slow player.
    to_the_limit: whether the time limit of each episode is its length under our rule.
    """

    name: str
    act: Callable
    games: Callable | None = None
    most: int | None = None
    to_the_limit: bool = False


def at_random(env, states, plans, key):
    """Uniform over the game's actions."""
    return jax.random.randint(key, states.time.shape, 0, env.num_actions)


def always(action):
    """Always the same action."""
    return lambda env, states, plans, key: jnp.full(states.time.shape, action)


def right_answers(env, states, plans, key):
    """AutoEncode: turns to the suit that is asked for (while cards are shown, to that of the last card) and fires."""
    asked = jnp.maximum(env.num_cards - 1 - states.answered, 0)
    suit = jnp.take_along_axis(states.cards, asked[:, None], axis=1)[:, 0]
    return jnp.array([FIRE, LEFT, LEFT, RIGHT])[(suit - states.selected) % 4]


def catches(env, states, plans, key):
    """Breakout: catches the ball, three times in ten with the paddle's edge. A plan is the seed of these choices."""
    last = breakout.COLUMNS - env.paddle_width

    def one(state, seed):
        right = (state.ball_dir == 1) | (state.ball_dir == 2)
        # The ball cycles through 20 places: columns 0 to 9 on its way right, then 9 to 0 on its way left.
        place = (jnp.where(right, state.ball_x, 19 - state.ball_x) + breakout.FLOOR - 1 - state.ball_y) % 20
        column = jnp.minimum(place, 19 - place)
        ahead = jnp.where(place < 10, column + 1, column - env.paddle_width)
        draw = jax.random.fold_in(jax.random.key(seed), 10 * state.score + column)
        edge = jax.random.bernoulli(draw, 0.3) & (ahead >= 0) & (ahead <= last)
        middle = jnp.clip(column - env.paddle_width // 2, 0, last)
        aim = jnp.where(state.ball_dir < 2, state.paddle_x, jnp.where(edge, ahead, middle))
        return jnp.where(aim < state.paddle_x, LEFT, jnp.where(aim > state.paddle_x, RIGHT, UP))

    return jax.vmap(one)(states, plans)


def few_holes(env, states, plans, key):
    """Tetris: the greedy player of the tests."""
    return jax.vmap(greedy)(states)


def planned(env, states, plans, key):
    """The plan of an expert from the tests."""
    return jax.vmap(lambda plan, time: plan[time])(plans, states.time)


def expert(name):
    """The expert of that name from the tests, with its games."""

    def games(env_id):
        found = [game for game in expert_games(env_id) if game.name == name]
        states = jax.tree.map(lambda *leaves: np.stack(leaves), *(game.state for game in found))
        return states, np.stack([game.plan for game in found])

    return Player(name, planned, games)


RANDOM = Player("random", at_random)
KNOWS_ALL = Player("knows all", right_answers)
ALWAYS_FIRES = Player("always fires", always(FIRE))
NEVER_MOVES = Player("never moves", always(UP))
CATCHES = Player("catches, at times with the edge", catches, lambda env_id: (resets(env_id, 1_000), np.arange(1_000)))
GREEDY = Player("greedy", few_holes, most=2_000)
LATE_GREEDY = Player("greedy, ends on the last permitted step", few_holes, most=2_000, to_the_limit=True)
LATE_TREASURE, LATE_TNT = expert("treasure on the last permitted step"), expert("TNT on the last permitted step")


class Rule(NamedTuple):
    """published: the class that replaces our rule."""

    name: str
    published: type
    families: tuple[str, ...]
    players: tuple[Player, ...]
    levels: tuple[str, ...] = LEVELS

    @property
    def env_ids(self) -> list[str]:
        """The ids that it changes."""
        return [family + level for family in self.families for level in self.levels]


GRIDS = "BattleShip", "MineSweeper"
RULES = (
    Rule("last card paid twice", LastCardTwice, ("AutoEncode",), (RANDOM, KNOWS_ALL)),
    Rule("first answer forced", ForcedFirstAnswer, ("AutoEncode",), (RANDOM,)),
    Rule("four actions", FourActions, ("AutoEncode",), (RANDOM,)),
    Rule("cut-off with the next shot", LateCutOff, GRIDS, (RANDOM, ALWAYS_FIRES)),
    Rule("no start at the edge", NoStartAtTheEdge, GRIDS, (RANDOM,)),
    Rule("shot at the limit", ShotAtTheLimit, ("MineSweeper",), (RANDOM,)),
    Rule("bricks deleted without pay", UnpaidBricks, ("Breakout",), (RANDOM, CATCHES)),
    Rule("paddle off the board", PaddleOffTheBoard, ("Breakout",), (RANDOM, NEVER_MOVES), LEVELS[:1]),
    Rule("dead step", DeadStep, ("CartPole",), (RANDOM,)),
    Rule("as many actions as steps", ActionsLikeSteps, ("CartPole",), (RANDOM,)),
    Rule("counter without bounds", UnboundedCounter, ("CountRecall",), (RANDOM,)),
    Rule("last step pays 0", LastStepForNothing, ("Navigator",), (RANDOM, LATE_TREASURE, LATE_TNT)),
    Rule("constant key, rows and columns apart", RowsAndColumnsApart, ("Navigator",), (RANDOM,)),
    Rule("rows beyond ten paid", RowsBeyondTen, ("Tetris",), (GREEDY,)),
    Rule("broken first bag", BrokenFirstBag, ("Tetris",), (RANDOM, GREEDY), LEVELS[:2]),
    Rule("pieces leap", LeapingPieces, ("Tetris",), (RANDOM, GREEDY)),
    Rule("paid one step late", PaidLate, ("Tetris",), (LATE_GREEDY,)),
)


# Games and figures


def game(env_id: str, published: type | None = None) -> ArcadeEnvironment:
    """The game of an id, with a published rule in place of ours if one is given."""
    own = getattr(environments, env_id)
    return own() if published is None else type(env_id, (published, own), {})()


@functools.cache
def fresh(env_id: str, published: type | None, batches: int, size: int, seed: int) -> list[Any]:
    """First states in batches of `size`. Cached: resets take the longest to compile, and few rules change them."""
    env = game(env_id, published)

    @jax.jit
    def reset(key):
        _, reset_key = jax.random.split(key)
        return jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, size), env.default_params)[1]

    return [reset(key) for key in jax.random.split(jax.random.key(seed), batches)]


def play(
    env_id: str, published: type | None, player: Player, episodes: int, seed: int, limits: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Undiscounted returns float32 and lengths int32 of complete episodes, [episodes]; `limits` int32[episodes]."""
    env = game(env_id, published)
    params = env.default_params
    if player.games:
        states, plans = player.games(env_id)
        batches, episodes = [states], len(plans)
    else:
        resets_alike = published is None or "reset_state" not in vars(published)
        plans, episodes = None, min(episodes, player.most or episodes)
        batches = fresh(env_id, None if resets_alike else published, -(-episodes // CHUNK), CHUNK, seed)
    size = len(batches[0].time)

    @jax.jit
    def finish(key, state, limits):
        each = jax.vmap(lambda limit: params.replace(max_steps_in_episode=limit))(limits)
        key, _ = jax.random.split(key)
        return play_to_the_end(env, each, state, key, lambda state, key: player.act(env, state, plans, key))

    if limits is None:
        limits = np.full(episodes, env.max_steps, np.int32)
    limits = np.resize(limits, (len(batches), size))  # padding does not count
    keys = jax.random.split(jax.random.key(seed), len(batches))
    values, lengths = zip(*map(finish, keys, batches, limits), strict=True)
    return np.concatenate(values)[:episodes], np.concatenate(lengths)[:episodes]


@functools.cache
def play_ours(env_id: str, player: Player, episodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns and lengths under our rules. Cached, because several published rules are compared with them."""
    return play(env_id, None, player, episodes, seed)


def row(rule: Rule, env_id: str, player: Player, args: Args) -> dict[str, Any]:
    """The figures of both rules: means, standard errors, and the share of episodes whose return differs."""
    here, lengths = play_ours(env_id, player._replace(name="ours", to_the_limit=False), args.episodes, args.seed)
    limits = lengths if player.to_the_limit else None
    there, _ = play(env_id, rule.published, player, args.episodes, args.seed, limits)
    figures = []
    difference = here.astype(np.float64) - there
    for values in (here, there, difference):
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
        figures += [values.mean(), error]
    figures.append((np.abs(difference) > 1e-6).mean())
    figures = [round(float(figure), 5) for figure in figures]
    return dict(zip(COLUMNS, (env_id, rule.name, player.name, len(here), *figures), strict=True))


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown of all rows."""
    lines = []
    for r in rows:
        about = r["env_id"], r["published_rule"], r["player"], str(r["episodes"])
        returns = [f"{r[f'{rule}_mean']:.4f} ± {r[f'{rule}_error']:.4f}" for rule in ("here", "there")]
        difference = f"{round(r['difference'], 4) + 0.0:+.4f} ± {r['difference_error']:.4f}"  # (-0.0 + 0.0 is 0.0)
        lines.append([*about, *returns, difference, f"{r['share_changed']:.2%}"])
    head = ["id", "published rule", "player", "episodes", "here", "there", "here − there", "episodes changed"]
    return markdown(head, lines)


def main(args: Args) -> None:
    """Plays with every rule, writes the files and prints the table. Raises UserError for an id that no rule changes."""
    check_limits(args)
    check_ids(args.env_ids)
    changed = {env_id for rule in RULES for env_id in rule.env_ids}
    for env_id in args.env_ids:
        if env_id not in changed:
            raise UserError(f"--env-ids {env_id}: no published rule here changes its returns")
    rows = []
    for rule in RULES:
        for env_id in rule.env_ids:
            for player in rule.players if env_id in (args.env_ids or changed) else ():
                rows.append(row(rule, env_id, player, args))
                print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    write_table(args.out, COLUMNS, rows, table(rows))


if __name__ == "__main__":
    launch(main, Args)
