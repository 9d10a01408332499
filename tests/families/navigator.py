"""Navigator: find the treasure, mind the TNT (section 10 of the specification)."""

from collections import deque

import numpy as np

from families import chances
from families.base import DOWN, FIRE, LEFT, RIGHT, UP, Family, Game, no_secrets, one, pad, repaint

SIZES = (8, 10, 12)
TNTS = 7
MOVES = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}  # (rows, columns)

CANVAS, GROUND, LINES = (119, 122, 127), (119, 112, 127), (255, 255, 255)
PLAYER, TREASURE, BOMB, SCORE, NAME = (255, 255, 0), (73, 214, 247), (0, 0, 0), (0, 0, 64), (64, 0, 64)
FACETS = (182, 238, 251), (40, 117, 135)  # of the treasure, in light and in shadow
SPARK = (255, 160, 0)


def fields(level):
    n = SIZES[level]
    whole = ((), np.int32)
    return {
        "time": whole,
        "score": whole,
        "x": whole,
        "y": whole,
        "tnt": ((n, n), np.bool_),
        "treasure_x": whole,
        "treasure_y": whole,
    }


def step(level, state, action, limit):
    n = SIZES[level]
    action = min(max(int(action), 0), 4)
    state["time"] += 1
    if action == FIRE:
        if (state["x"], state["y"]) == (state["treasure_x"], state["treasure_y"]):
            state["score"][...] = 100
            return state, 1.0, True
        return state, -0.5 / n**2, False
    rows, columns = MOVES[action]
    state["y"] = np.clip(state["y"] + rows, 0, n - 1)
    state["x"] = np.clip(state["x"] + columns, 0, n - 1)
    if state["tnt"][state["y"], state["x"]]:
        return state, -0.5, True
    return state, -0.5 / n**2, False


def cells(level, states):
    """Flat cell numbers (row by row) of start and treasure, and the TNT as bool[count, cells]."""
    n = SIZES[level]
    return states.y * n + states.x, states.treasure_y * n + states.treasure_x, states.tnt.reshape(-1, n * n)


def check_fresh(level, states):
    n = SIZES[level]
    rows = np.arange(len(states.time))
    for name in ("x", "y", "treasure_x", "treasure_y"):
        assert ((getattr(states, name) >= 0) & (getattr(states, name) < n)).all(), name
    start, treasure, tnt = cells(level, states)
    assert (states.time == 0).all() and (states.score == 0).all()
    assert (tnt.sum(1) == TNTS).all(), "not 7 distinct TNT cells"
    assert not tnt[rows, treasure].any(), "the treasure is on a TNT"
    assert not tnt[rows, start].any(), "the start is on a TNT"
    assert (start != treasure).all(), "the start is on the treasure"


def draws(level, states):
    n = SIZES[level]
    start, treasure, tnt = cells(level, states)
    rows = np.arange(len(start))
    occupied = tnt.copy()
    occupied[rows, treasure] = True
    # The number of a cell among those that were still free when it was drawn
    treasure_rank = treasure - np.cumsum(tnt, 1)[rows, treasure]
    start_rank = start - np.cumsum(occupied, 1)[rows, start]
    row, column = np.divmod(np.arange(n * n), n)
    return {
        "TNT over cells": chances.subset_members(tnt),
        "TNT in the left half": chances.subset_share(tnt, column < n // 2),
        "TNT in the top rows": chances.subset_share(tnt, row < 3),
        "TNT on white squares": chances.subset_share(tnt, (row + column) % 2 == 0),
        "treasure over cells": chances.choice(treasure, n * n),
        "treasure over cells without TNT": chances.choice(treasure_rank, n * n - TNTS),
        "start over cells": chances.choice(start, n * n),
        "start over free cells": chances.choice(start_rank, n * n - TNTS - 1),
        "treasure and start": chances.coarse_table(treasure_rank, n * n - TNTS, start_rank, n * n - TNTS - 1),
        "row and column of the treasure": chances.table(states.treasure_y, states.treasure_x, (n, n)),
        "row of the treasure, column of the start": chances.table(states.treasure_y, states.x, (n, n)),
    }


def walk(level, state):
    """Shortest way from the player to the treasure around all TNT: breadth-first search; None if it is walled in."""
    n = SIZES[level]
    start, goal = (int(state.y), int(state.x)), (int(state.treasure_y), int(state.treasure_x))
    ways = {start: []}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        if cell == goal:
            return ways[cell]
        for action, (rows, columns) in MOVES.items():
            to = (cell[0] + rows, cell[1] + columns)
            if 0 <= min(to) and max(to) < n and to not in ways and not state.tnt[to]:
                ways[to] = [*ways[cell], action]
                queue.append(to)
    return None


def beside(level, state, target, forbidden):
    """A cell beside `target` that is not forbidden, with the action that leads from it to the target."""
    n = SIZES[level]
    for action, (rows, columns) in MOVES.items():
        cell = (target[0] - rows, target[1] - columns)
        if 0 <= min(cell) and max(cell) < n and not forbidden[cell]:
            return cell, action
    return None


def games(level, fresh):
    n = SIZES[level]
    limit, cost = n * n, 0.5 / n**2
    found = []
    for i in range(len(fresh.time)):
        state = one(fresh, i)
        way = walk(level, state)
        if way is None:
            found.append(Game("waits for the end", state, pad([], limit, FIRE), -0.5))
            continue
        found.append(Game("shortest way", state, pad([*way, FIRE], limit, UP), 1 - cost * len(way)))

        goal = (int(state.treasure_y), int(state.treasure_x))
        near = beside(level, state, goal, state.tnt)
        if near:
            (y, x), action = near
            start = state.replace(y=np.int32(y), x=np.int32(x))
            plan = pad([action, FIRE], limit, UP)
            found.append(Game("treasure next door", start, plan, 1 - cost))
            late = pad([FIRE] * (limit - 2) + [action, FIRE], limit, UP)
            found.append(Game("treasure on the last permitted step", start, late, 1 - cost * (limit - 1)))

        forbidden = state.tnt.copy()
        forbidden[goal] = True
        near = beside(level, state, np.argwhere(state.tnt)[0], forbidden)
        if near:
            (y, x), action = near
            start = state.replace(y=np.int32(y), x=np.int32(x))
            plan = pad([FIRE] * (limit - 1) + [action], limit, UP)
            found.append(Game("TNT on the last permitted step", start, plan, -1 + cost))
    return found


def possible(level, states):
    n = SIZES[level]
    inside = (states.x >= 0) & (states.x < n) & (states.y >= 0) & (states.y < n)
    inside &= (states.treasure_x >= 0) & (states.treasure_x < n) & (states.treasure_y >= 0) & (states.treasure_y < n)
    start, treasure, tnt = cells(level, states)
    rows = np.arange(len(start))
    return inside & (states.score == 0) & ~tnt[rows, treasure * inside] & ~tnt[rows, start * inside]


def hidden(level, states, rng):
    n = SIZES[level]
    shuffled = rng.permuted(states.tnt.reshape(-1, n * n), axis=1).reshape(states.tnt.shape)
    return {
        "TNT": states.replace(tnt=shuffled),
        "no TNT": states.replace(tnt=np.zeros_like(states.tnt)),
        "treasure": states.replace(
            treasure_x=(states.treasure_x + 1) % n, treasure_y=rng.integers(n, size=len(states.x), dtype=np.int32)
        ),
    }


def shown(level, states, rng):
    n = SIZES[level]
    return {"x": states.replace(x=(states.x + 1) % n), "y": states.replace(y=(states.y + n - 1) % n)}


def gallery(level, state):
    n = SIZES[level]
    tnt = np.zeros((n, n), bool)
    tnt[[0, 1, 2, 3, n - 1, n - 1, n - 2], [n - 1, 3, 0, 5, 0, n - 1, n - 2]] = True

    def moment(time, y, x, treasure, score=0):
        places = {"y": y, "x": x, "treasure_y": treasure[0], "treasure_x": treasure[1], "time": time, "score": score}
        return state.replace(tnt=tnt, **{name: np.int32(value) for name, value in places.items()})

    return [
        moment(0, 0, 0, (n // 2, n // 2)),  # the first frame: the partial twin shows all
        moment(5, n // 2, n // 2, (n // 2, n // 2)),  # the player on the treasure
        moment(9, n - 1, 0, (0, 0)),  # the player on a TNT, as in final_state
        moment(30, 0, 0, (0, 0), 100),  # the treasure claimed
    ]


def without_treasure(frames):
    for color in (TREASURE, *FACETS):
        frames = repaint(color, GROUND)(frames)
    return frames


FAMILY = Family(
    limits=tuple(n * n for n in SIZES),
    fields=fields,
    bounds=lambda level: (-1 + 0.5 / SIZES[level] ** 2, 1 - 0.5 / SIZES[level] ** 2),
    score_color=SCORE,
    name_color=NAME,
    palette=frozenset({CANVAS, GROUND, LINES, PLAYER, TREASURE, BOMB, SCORE, NAME}),
    extra_colors=frozenset({*FACETS, SPARK}),
    step=step,
    check_fresh=check_fresh,
    draws=draws,
    games=games,
    possible=possible,
    equal_secrets=no_secrets,
    hidden=hidden,
    shown=shown,
    cues={"the treasure": without_treasure, "the player": repaint(PLAYER, GROUND)},
    gallery=gallery,
)
