"""BattleShip: find and hit four ships (section 4 of the specification)."""

import functools

import numpy as np

from families import chances
from families.base import DOWN, FIRE, LEFT, RIGHT, UP, Family, Game, blank, one, pad, repaint

SIZES = (8, 10, 12)
SHIPS = (2, 3, 3, 4)
CELLS = 12
MOVES = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}  # (rows, columns)

CANVAS, GROUND, LINES = (255, 255, 255), (191, 191, 191), (102, 102, 102)
BOARD = slice(16, 112)  # rows of a 128-px frame that hold no number: the gauge has the colour of the X
CURSOR, X, O = (217, 166, 33), (255, 0, 0), (0, 0, 0)  # noqa: E741  (the name of the mark)
SCORE, NAME = (255, 128, 0), (74, 214, 247)


def fields(level):
    n = SIZES[level]
    whole, board = ((), np.int32), ((n, n), np.bool_)
    return {
        "time": whole,
        "score": whole,
        "x": whole,
        "y": whole,
        "ships": board,
        "fired": board,
        "repeats": whole,
    }


def step(level, state, action, limit):
    n = SIZES[level]
    action = min(max(int(action), 0), 4)
    state["time"] += 1
    if action != FIRE:
        rows, columns = MOVES[action]
        state["y"] = np.clip(state["y"] + rows, 0, n - 1)
        state["x"] = np.clip(state["x"] + columns, 0, n - 1)
        return state, 0.0, False
    cell = int(state["y"]), int(state["x"])
    if state["fired"][cell]:
        state["repeats"] += 1
        return state, -2 / n**2, bool(state["repeats"] >= n**2 / 2)
    state["fired"][cell] = True
    if state["ships"][cell]:
        state["score"] += 1
        return state, 1 / CELLS, bool(state["score"] == CELLS)
    return state, 0.0, False


# Placements


@functools.cache
def placements(n, length):
    """All places of one ship: lists of its cells, numbered row by row."""
    across = [[y * n + x + i for i in range(length)] for y in range(n) for x in range(n - length + 1)]
    return across + [[(cell % n) * n + cell // n for cell in cells] for cells in across]


@functools.cache
def masks(n, length):
    """The placements as numbers with a bit for each cell."""
    return [sum(1 << cell for cell in cells) for cells in placements(n, length)]


def is_fleet(n, ships, lengths=SHIPS[::-1]):
    """Whether a set of cells (bits) can be cut into one ship of each length."""
    if not lengths:
        return ships == 0
    return any(ship & ships == ship and is_fleet(n, ships ^ ship, lengths[1:]) for ship in masks(n, lengths[0]))


@functools.cache
def model_fleets(n, count, seed=0):
    """bool[count, n, n] drawn as the specification says: each ship again and again until it overlaps none."""
    rng = np.random.default_rng(seed)
    sea = np.zeros((count, n * n), bool)
    for length in SHIPS:
        cells = np.array(placements(n, length))
        waiting = np.arange(count)
        while len(waiting):
            ship = cells[rng.integers(len(cells), size=len(waiting))]
            fits = ~np.take_along_axis(sea[waiting], ship, axis=1).any(1)
            sea[waiting[fits, None], ship[fits]] = True
            waiting = waiting[~fits]
    return sea.reshape(count, n, n)


def neighbours(ships):
    """bool[count, pairs]: pairs of ship cells side by side, then one above the other."""
    across = ships[:, :, 1:] & ships[:, :, :-1]
    down = ships[:, 1:] & ships[:, :-1]
    return np.concatenate([pairs.reshape(len(ships), -1) for pairs in (across, down)], axis=1)


def runs(ships, length):
    """bool[count, places]: exactly so many ship cells in a row, then in a column."""
    found = []
    for board in (ships, ships.transpose(0, 2, 1)):
        padded = np.pad(board, ((0, 0), (0, 0), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, length + 2, axis=2)
        found.append(windows[..., 1:-1].all(-1) & ~windows[..., 0] & ~windows[..., -1])
    return np.concatenate(found, axis=1).reshape(len(ships), -1)


def check_fresh(level, states):
    n = SIZES[level]
    for name in ("time", "score", "repeats"):
        assert (getattr(states, name) == 0).all(), name
    for name in ("x", "y"):
        assert ((getattr(states, name) >= 0) & (getattr(states, name) < n)).all(), name
    assert not states.fired.any()
    for ships in states.ships.reshape(-1, n * n):
        assert is_fleet(n, sum(1 << int(cell) for cell in np.flatnonzero(ships))), "no four ships of 2, 3, 3, 4 cells"


def draws(level, states):
    n = SIZES[level]
    start = states.y * n + states.x
    model = model_fleets(n, 40_000)
    cells = states.ships.reshape(-1, n * n)
    found = {
        "start over cells": chances.choice(start, n * n),
        "row and column of the start": chances.table(states.y, states.x, (n, n)),
        "start on a ship": chances.share(cells[np.arange(len(start)), start], CELLS / n**2),
        "ship cells": chances.same_means(cells, model.reshape(-1, n * n)),
        "neighbouring ship cells": chances.same_means(neighbours(states.ships), neighbours(model)),
        "ships and the row of the start": chances.same_means(cells[states.y < n // 2], cells[states.y >= n // 2]),
        "ships and the column of the start": chances.same_means(cells[states.x < n // 2], cells[states.x >= n // 2]),
    }
    for length in (2, 3, 4):
        found[f"runs of {length}"] = chances.same_means(runs(states.ships, length), runs(model, length))
    return found


# Experts


def way(start, goal):
    """Moves from one cell (y, x) to another."""
    down, right = goal[0] - start[0], goal[1] - start[1]
    return [DOWN if down > 0 else UP] * abs(down) + [RIGHT if right > 0 else LEFT] * abs(right)


def nearest(start, cells):
    return min(map(tuple, cells), key=lambda cell: abs(cell[0] - start[0]) + abs(cell[1] - start[1]))


def tour(start, cells):
    """Moves that fire at each of the cells, always the nearest one next."""
    plan, cells = [], {tuple(cell) for cell in cells.tolist()}
    while cells:
        cell = nearest(start, sorted(cells))
        plan += [*way(start, cell), FIRE]
        cells.remove(cell)
        start = cell
    return plan


def late(plan, limit):
    """Wait in the top left corner, where LEFT moves nothing, so that the last action is the last permitted one."""
    return np.array([LEFT] * (limit - len(plan)) + plan, np.int32)


def games(level, fresh):
    n = SIZES[level]
    limit, half = 2 * n**2, n**2 // 2
    found = []
    for i in range(len(fresh.time)):
        state = one(fresh, i)
        start = int(state.y), int(state.x)
        ships, sea = np.argwhere(state.ships), np.argwhere(~state.ships)
        found.append(Game("hits all", state, pad(tour(start, ships), limit, LEFT), 1.0))

        water = nearest(start, sea)
        found.append(Game("misses, then repeats", state, pad(way(start, water), limit, FIRE), -1.0))
        if i >= 4:
            continue
        ship = nearest(start, ships)
        found.append(Game("hits, then repeats", state, pad(way(start, ship), limit, FIRE), 1 / CELLS - 1))
        miss = way(start, water) + [FIRE] * half  # one repeat less than ends the game
        found.append(Game("then hits all", state, pad(miss + tour(water, ships), limit, LEFT), 2 / n**2))
        # States that test_markov.py looks for: a cell that is fired at already, and a hit that is elsewhere.
        known = state.replace(ships=fleet(n), x=np.int32(0), y=np.int32(n - 1))
        found.append(Game("one repeat short of the end", known, pad([FIRE] * half, limit, LEFT), -1 + 2 / n**2))
        known = known.replace(y=np.int32(0))
        found.append(Game("hits, and stays", known, pad([FIRE], limit, LEFT), 1 / CELLS))
        found.append(Game("hits beside", known, pad([RIGHT, FIRE], limit, LEFT), 1 / CELLS))
        found.append(Game("never fires", state, pad([UP, LEFT], limit, RIGHT), 0.0))

        corner = state.replace(x=np.int32(0), y=np.int32(0))
        found.append(Game("last hit on the last permitted step", corner, late(tour((0, 0), ships), limit), 1.0))
        plan = [*way((0, 0), nearest((0, 0), ships)), FIRE]
        found.append(Game("first hit on the last permitted step", corner, late(plan, limit), 1 / CELLS))
        plan = way((0, 0), nearest((0, 0), sea)) + [FIRE] * (half + 1)
        found.append(Game("last repeat on the last permitted step", corner, late(plan, limit), -1.0))
    return found


# Twins and the Markov property


def possible(level, states):
    n = SIZES[level]
    hits = (states.ships & states.fired).sum((1, 2))
    inside = (states.x >= 0) & (states.x < n) & (states.y >= 0) & (states.y < n)
    ok = inside & (states.score == hits) & (hits < CELLS) & (states.ships.sum((1, 2)) == CELLS)
    return ok & (states.repeats >= 0) & (states.repeats < n**2 / 2)


def equal_secrets(level, states, others):
    """What lies in the cells not fired at is secret."""
    return others.replace(ships=np.where(others.fired, others.ships, states.ships))


def here(level, states):
    """bool[count, n, n], the cell under the cursor."""
    y, x = np.indices((SIZES[level], SIZES[level]))
    return (y == states.y[:, None, None]) & (x == states.x[:, None, None])


def hidden(level, states, rng):
    cursor = here(level, states)
    noise = rng.random(states.ships.shape) < 0.5
    return {
        "ships not fired at": states.replace(ships=np.where(states.fired, states.ships, noise)),
        "marks elsewhere": states.replace(fired=np.where(cursor, states.fired, noise)),
        "kinds of marks elsewhere": states.replace(ships=np.where(cursor, states.ships, noise)),
    }


def shown(level, states, rng):
    n = SIZES[level]
    cursor = here(level, states)
    marked = states.replace(fired=states.fired | cursor)
    # A mark is turned into the other one; a cell without one gets one.
    other = marked.replace(ships=marked.ships ^ (cursor & states.fired))
    return {
        "x": states.replace(x=(states.x + 1) % n),
        "y": states.replace(y=(states.y + n - 1) % n),
        "score": states.replace(score=(states.score + 1).astype(np.int32)),
        "repeats": states.replace(repeats=(states.repeats + 1).astype(np.int32)),
        "mark under the cursor": states.replace(fired=states.fired ^ cursor),
        "kind of the mark under the cursor": other,
    }


def fleet(n):
    """Ships in fixed places, one of them in the top left corner."""
    ships = np.zeros((n, n), bool)
    ships[0, :4] = ships[n - 3 :, n - 1] = ships[3, 2:5] = ships[5:7, 0] = True
    return ships


def gallery(level, state):
    n = SIZES[level]
    ships = fleet(n)
    row, column = np.indices((n, n))

    def moment(time, y, x, fired, repeats):
        numbers = {"time": time, "y": y, "x": x, "repeats": repeats, "score": (ships & fired).sum()}
        return state.replace(ships=ships, fired=fired, **{name: np.int32(value) for name, value in numbers.items()})

    return [
        moment(0, 0, 0, np.zeros((n, n), bool), 0),
        moment(40, 0, 1, (row + column) % 3 == 1, 7),  # the cursor on a hit
        moment(90, n - 1, 0, row + column > 3, n**2 // 2 - 1),  # the cursor on a miss
        moment(2 * n**2 - 1, 1, n - 1, ships | (row % 2 == 0), n**2 // 2),  # the cursor on an unknown cell, all sunk
    ]


FAMILY = Family(
    limits=tuple(2 * n**2 for n in SIZES),
    fields=fields,
    bounds=lambda level: (-1.0, 1.0),
    score_color=SCORE,
    name_color=NAME,
    palette=frozenset({CANVAS, GROUND, LINES, CURSOR, X, O, SCORE, NAME}),
    step=step,
    check_fresh=check_fresh,
    draws=draws,
    games=games,
    possible=possible,
    equal_secrets=equal_secrets,
    hidden=hidden,
    shown=shown,
    cues={
        "the hits": repaint(X, GROUND, BOARD),
        "the misses": repaint(O, GROUND, BOARD),
        "the cursor": repaint(CURSOR, GROUND, BOARD),
        "the repeats": blank(86, 0, 128, 16),
    },
    gallery=gallery,
)
