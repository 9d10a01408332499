"""Skittles: dodge the falling balls (section 11 of the specification)."""

import jax.numpy as jnp
import numpy as np
from scipy import stats

from families import chances
from families.base import FIRE, LEFT, RIGHT, UP, Family, Game, no_secrets, one, pad, repaint

LANES = ((1, 8), (2, 7), (2, 6))  # first column, number of columns
N, LIMIT = 10, 100

BLACK, LANE, WHITE = (0, 0, 0), (40, 40, 56), (255, 255, 255)
COLLAR = (220, 20, 60)  # of the pin
COLORS = ((255, 0, 0), (255, 127, 0), (255, 255, 0), (0, 255, 0), (0, 0, 255), (74, 214, 247), (125, 0, 237))
SCORE, NAME = (0, 255, 128), (255, 245, 0)

# In plans, besides the five actions
DODGE, CHASE = 5, 6


def fields(level):
    whole, cells = ((), np.int32), ((N, N), np.bool_)
    return {"time": whole, "x": whole, "enemies": cells, "mask": cells}


def step(level, state, action, limit):
    first, width = LANES[level]
    action = min(max(int(action), 0), 4)
    state["time"] += 1
    x = int(state["x"])
    if action == LEFT:
        x -= 1
    if action == RIGHT:
        x += 1
    x = min(max(x, first), first + width - 1)
    state["x"][...] = x
    hit = bool(state["enemies"][9, x])
    for row in range(9, 0, -1):  # (row 0 is drawn: see test_skittles.py, as for the rest of the field)
        state["enemies"][row] = state["enemies"][row - 1]
    hit |= bool(state["enemies"][9, x])
    return state, 0.01, hit


def check_fresh(level, states):
    first, width = LANES[level]
    assert (states.time == 0).all() and not states.enemies.any()
    assert ((states.x >= first) & (states.x < first + width)).all()


def fair_coins(cells):
    """bool[draws, n], every one True with probability 1/2: how often each is, how many are, and pairs of neighbours."""
    draws, count = cells.shape

    def each(coins):
        return stats.chi2.sf(((coins.sum(0) - draws / 2) ** 2).sum() / (draws / 4), coins.shape[1])

    totals = stats.binom(count, 0.5)
    return min(
        each(cells),
        each(cells ^ np.roll(cells, 1, axis=1)),
        each(cells ^ np.roll(cells, N, axis=1)),
        stats.kstest(cells.sum(1) + np.random.default_rng(0).uniform(-0.5, 0.5, draws), _smoothed(totals)).pvalue,
    )


def _smoothed(law):
    """The distribution of a whole number plus a uniform one from -0.5 to 0.5."""

    def cdf(value):
        whole = np.floor(value + 0.5)
        return law.cdf(whole - 1) + (value + 0.5 - whole) * law.pmf(whole)

    return cdf


def draws(level, states):
    first, width = LANES[level]
    mask = states.mask.reshape(-1, N * N)
    found = {"column": chances.choice(states.x - first, width), "mask": fair_coins(mask)}
    for cell in (0, 45, 99):
        found[f"column and cell {cell} of the mask"] = chances.table(
            states.x - first, mask[:, cell].astype(int), (width, 2)
        )
    return found


def policy(plan, state):
    """The planned action, or one of two players who look at all balls."""
    return jnp.where(
        plan[state.time] == DODGE,
        dodge(state),
        jnp.where(plan[state.time] == CHASE, chase(state), plan[state.time]),
    )


def dodge(state):
    """Survive all balls in sight, looking back from the last one to fall; in columns 2..7, which every lane has."""
    balls = state.enemies
    lane = (np.arange(N) >= 2) & (np.arange(N) <= 7)
    safe = lane & ~balls[0]
    for row in range(1, N):
        beside = jnp.pad(safe, 1)
        safe = lane & ~balls[row] & ~balls[row - 1] & (beside[:-2] | beside[1:-1] | beside[2:])
    x = state.x
    # (from columns 1 and 8 go there, before the first ball is down)
    inward = jnp.where(x < 2, RIGHT, jnp.where(x > 7, LEFT, FIRE))
    way = jnp.where(safe[x], FIRE, jnp.where(safe[x - 1], LEFT, jnp.where(safe[x + 1], RIGHT, FIRE)))
    return jnp.where(inward == FIRE, way, inward)


def chase(state):
    """Run below the lowest ball and wait for it."""
    rows = state.enemies.any(1)
    lowest = N - 1 - jnp.argmax(rows[::-1])
    column = jnp.where(rows.any(), jnp.argmax(state.enemies[lowest]), state.x)
    return jnp.where(column < state.x, LEFT, jnp.where(column > state.x, RIGHT, UP))


def games(level, fresh):
    first, width = LANES[level]
    found = []
    for i in range(len(fresh.time)):
        state = one(fresh, i)
        found.append(Game("dodges to the end", state, np.full(LIMIT, DODGE, np.int32), 1.0))
        found.append(Game("runs into the first ball", state, np.full(LIMIT, CHASE, np.int32), 0.1))
        # A single ball, in the last row after nine steps: the tenth leads into it.
        column = first + i % (width - 1)
        enemies = np.zeros((N, N), bool)
        enemies[0, column] = True
        beside = state.replace(enemies=enemies, x=np.int32(column + 1))
        plan = pad([UP] * 9 + [LEFT], LIMIT, DODGE)
        found.append(Game("steps into a ball from the side", beside, plan, 0.1))
    return found


def possible(level, states):
    first, width = LANES[level]
    rows = np.arange(len(states.time))
    inside = (states.x >= first) & (states.x < first + width)
    columns = (np.arange(N) >= first) & (np.arange(N) < first + width)
    ok = inside & (states.time >= 0) & ~(states.enemies & ~columns).any((1, 2))
    ok &= (states.enemies.sum(2) <= 1).all(1)
    return ok & ~states.enemies[rows, N - 1, np.clip(states.x, 0, N - 1)]


def hidden(level, states, rng):
    flips = rng.random(states.mask.shape) < 0.2
    return {
        "masked cells": states.replace(enemies=states.enemies ^ (flips & ~states.mask)),
        "the mask of free cells": states.replace(mask=states.mask ^ (flips & ~states.enemies)),
    }


def shown(level, states, rng):
    first, width = LANES[level]
    count = len(states.time)
    # one of the visible cells in the lane, at random
    lane = (np.arange(N) >= first) & (np.arange(N) < first + width)
    order = rng.random((count, N * N)) * (states.mask & lane).reshape(count, -1)
    flip = np.zeros((count, N * N), bool)
    flip[np.arange(count), order.argmax(1)] = True
    return {
        "x": states.replace(x=first + (states.x - first + 1) % width),
        "time": states.replace(time=states.time + 1),
        "a visible ball": states.replace(enemies=states.enemies ^ flip.reshape(count, N, N)),
    }


def gallery(level, state):
    first, width = LANES[level]
    mask = (np.add.outer(np.arange(N), np.arange(N)) // 2 % 2).astype(bool)

    def moment(time, x, columns):
        enemies = np.zeros((N, N), bool)
        enemies[np.arange(len(columns)), first + np.array(columns, int) % width] = True
        return state.replace(time=np.int32(time), x=np.int32(x), enemies=enemies, mask=mask)

    zigzag = [0, 3, 5, 4, 1, 2, 0, 5, 3, 4]
    return [
        moment(0, first, []),
        moment(7, first + width - 1, zigzag[:7]),  # all seven colours
        moment(58, first, zigzag),
        moment(100, first + 4, zigzag),  # hit
    ]


def without_agent(frames):
    for color in (WHITE, COLLAR):
        frames = repaint(color, LANE)(frames)
    return frames


def without_balls(frames):
    for color in COLORS:
        frames = repaint(color, LANE)(frames)
    return frames


FAMILY = Family(
    limits=(LIMIT,) * 3,
    fields=fields,
    bounds=lambda level: (0.1, 1.0),
    score_color=SCORE,
    name_color=NAME,
    palette=frozenset({BLACK, LANE, WHITE, SCORE, NAME, *COLORS}),
    extra_colors=frozenset({COLLAR}),
    step=step,
    drawn=("mask", "enemies"),
    check_fresh=check_fresh,
    draws=draws,
    games=games,
    policy=policy,
    possible=possible,
    equal_secrets=no_secrets,
    hidden=hidden,
    shown=shown,
    cues={"the balls": without_balls, "the agent": without_agent},
    gallery=gallery,
)
