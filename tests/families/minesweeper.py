"""MineSweeper: reveal every safe cell (section 9 of the specification)."""

import numpy as np

from families import chances
from families.base import DOWN, FIRE, LEFT, RIGHT, UP, Family, Game, blank, one, pad, repaint

SIZES = (4, 6, 8)
MINES = (2, 6, 10)
MOVES = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}  # (rows, columns)

CANVAS, OPEN, NUMBERS = (229, 234, 242), (0, 0, 0), (255, 255, 255)
COVER, LIGHT, SHADOW = (170, 176, 186), (224, 228, 236), (112, 116, 124)  # of a covered cell
CURSOR, LINES, SCORE, NAME = (255, 127, 0), (102, 102, 102), (153, 0, 204), (0, 51, 102)


def fields(level):
    n = SIZES[level]
    whole, board = ((), np.int32), ((n, n), np.bool_)
    return {
        "time": whole,
        "score": whole,
        "x": whole,
        "y": whole,
        "mines": board,
        "revealed": board,
        "repeats": whole,
    }


def step(level, state, action, limit):
    n, mines = SIZES[level], MINES[level]
    action = min(max(int(action), 0), 4)
    state["time"] += 1
    if action != FIRE:
        rows, columns = MOVES[action]
        state["y"] = np.clip(state["y"] + rows, 0, n - 1)
        state["x"] = np.clip(state["x"] + columns, 0, n - 1)
        return state, 0.0, False
    cell = int(state["y"]), int(state["x"])
    if state["revealed"][cell]:
        state["repeats"] += 1
        return state, -2 / n**2, bool(state["repeats"] >= n**2 / 2)
    state["revealed"][cell] = True
    if state["mines"][cell]:
        return state, 0.0, True
    state["score"] += 1
    return state, 1 / (n**2 - mines), bool(state["score"] == n**2 - mines)


def numbers(mines):
    """int[n, n]: the mines in the window of 3 x 3 cells around each."""
    n = len(mines)
    return np.array([[mines[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2].sum() for x in range(n)] for y in range(n)])


def check_fresh(level, states):
    n = SIZES[level]
    for name in ("time", "score", "repeats"):
        assert (getattr(states, name) == 0).all(), name
    for name in ("x", "y"):
        assert ((getattr(states, name) >= 0) & (getattr(states, name) < n)).all(), name
    assert not states.revealed.any()
    assert (states.mines.sum((1, 2)) == MINES[level]).all(), "a wrong number of mines"


def draws(level, states):
    n, m = SIZES[level], MINES[level]
    start, cells = states.y * n + states.x, states.mines.reshape(-1, n * n)
    row, column = np.divmod(np.arange(n * n), n)
    # Both of a pair of cells are mined equally often: two pairs of neighbours, and all pairs of the first six.
    board = states.mines
    across, down = board[:, :, 1:] & board[:, :, :-1], board[:, 1:] & board[:, :-1]
    both = m * (m - 1) / (n**2 * (n**2 - 1))
    pairs = {f"cells {i} and {j} are mined": cells[:, i] & cells[:, j] for i in range(6) for j in range(i)}
    pairs["neighbours in the middle row"] = across[:, n // 2, n // 2 - 1]
    pairs["neighbours in the middle column"] = down[:, n // 2 - 1, n // 2]
    return {
        "mines over cells": chances.subset_members(cells),
        "mines in the left half": chances.subset_share(cells, column < n // 2),
        "mines in the top rows": chances.subset_share(cells, row < n // 2),
        "mines on white squares": chances.subset_share(cells, (row + column) % 2 == 0),
        "mines at the border": chances.subset_share(cells, (row % (n - 1) == 0) | (column % (n - 1) == 0)),
        "start over cells": chances.choice(start, n * n),
        "row and column of the start": chances.table(states.y, states.x, (n, n)),
        "start on a mine": chances.share(cells[np.arange(len(start)), start], m / n**2),
        "mines and the row of the start": chances.same_means(cells[states.y < n // 2], cells[states.y >= n // 2]),
        "mines and the column of the start": chances.same_means(cells[states.x < n // 2], cells[states.x >= n // 2]),
        **{name: chances.share(events, both) for name, events in pairs.items()},
    }


# Experts


def way(start, goal):
    """Moves from one cell (y, x) to another."""
    down, right = goal[0] - start[0], goal[1] - start[1]
    return [DOWN if down > 0 else UP] * abs(down) + [RIGHT if right > 0 else LEFT] * abs(right)


def nearest(start, cells):
    return min(map(tuple, cells), key=lambda cell: abs(cell[0] - start[0]) + abs(cell[1] - start[1]))


def sweep(level, start, mines):
    """To the nearest corner, then row by row over the board; each safe cell is revealed. Always within the limit.

    The cells in the order of their being revealed, and the moves as a list per cell, the fire last.
    """
    n = SIZES[level]
    rows = range(n) if start[0] < n / 2 else range(n - 1, -1, -1)
    columns = range(n) if start[1] < n / 2 else range(n - 1, -1, -1)
    order, legs = [], []
    for turn, y in enumerate(rows):
        for x in columns if turn % 2 == 0 else reversed(columns):
            if not mines[y, x]:
                legs.append([*way(order[-1] if order else start, (y, x)), FIRE])
                order.append((y, x))
    return order, legs


def late(plan, limit):
    """Wait in the top left corner, where LEFT moves nothing, so that the last action is the last permitted one."""
    return np.array([LEFT] * (limit - len(plan)) + plan, np.int32)


def games(level, fresh):
    n = SIZES[level]
    limit, half, safe = 2 * n**2, n**2 // 2, n**2 - MINES[level]
    found = []
    for i in range(len(fresh.time)):
        state = one(fresh, i)
        start = int(state.y), int(state.x)
        mines, ground = np.argwhere(state.mines), np.argwhere(~state.mines)
        order, legs = sweep(level, start, state.mines)
        found.append(Game("reveals all", state, pad(sum(legs, []), limit, LEFT), 1.0))

        free = nearest(start, ground)
        found.append(Game("reveals one again and again", state, pad(way(start, free), limit, FIRE), 1 / safe - 1))
        if i >= 16:
            continue
        plan = [*way(start, nearest(start, mines)), FIRE]
        found.append(Game("a mine at once", state, pad(plan, limit, LEFT), 0.0))
        # All but the last safe cell, then a mine; this may be too long a way at the smallest size.
        plan = [*sum(legs[:-1], []), *way(order[-2], nearest(order[-2], mines)), FIRE]
        if len(plan) <= limit:
            found.append(Game("a mine at last", state, pad(plan, limit, LEFT), 1 - 1 / safe))
        plan = way(start, free) + [FIRE] * half  # one repeat less than ends the game
        value = 1 / safe - 1 + 2 / n**2
        found.append(Game("one repeat short of the end", state, pad(plan, limit, LEFT), value))
        plan += way(free, nearest(free, mines)) + [FIRE]
        found.append(Game("then a mine", state, pad(plan, limit, LEFT), value))
        found.append(Game("never fires", state, pad([UP, LEFT], limit, RIGHT), 0.0))

        corner = state.replace(x=np.int32(0), y=np.int32(0))
        _, legs = sweep(level, (0, 0), state.mines)
        found.append(Game("last cell on the last permitted step", corner, late(sum(legs, []), limit), 1.0))
        plan = [*way((0, 0), nearest((0, 0), ground)), FIRE]
        found.append(Game("first cell on the last permitted step", corner, late(plan, limit), 1 / safe))
        plan = [*way((0, 0), nearest((0, 0), mines)), FIRE]
        found.append(Game("a mine on the last permitted step", corner, late(plan, limit), 0.0))
        plan = way((0, 0), nearest((0, 0), ground)) + [FIRE] * (half + 1)
        found.append(Game("last repeat on the last permitted step", corner, late(plan, limit), 1 / safe - 1))
    return found


# Twins and the Markov property


def possible(level, states):
    n, m = SIZES[level], MINES[level]
    inside = (states.x >= 0) & (states.x < n) & (states.y >= 0) & (states.y < n)
    ok = inside & (states.mines.sum((1, 2)) == m) & ~(states.mines & states.revealed).any((1, 2))
    ok &= (states.score == states.revealed.sum((1, 2))) & (states.score < n**2 - m)
    return ok & (states.repeats >= 0) & (states.repeats < n**2 / 2)


def equal_secrets(level, states, others):
    """Where the mines are is secret; what the revealed cells tell of it is in the frame.

    Where `others` has revealed a cell that is mined in `states` (their frames are equal only with something painted
    over), no field of mines fits both, and the pair is given up: the two are made the same.
    """
    unlike = (states.mines & others.revealed).any((1, 2))
    values = {}
    for name in fields(level):
        mine, theirs = getattr(states, name), getattr(others, name)
        values[name] = np.where(unlike.reshape(-1, *[1] * (mine.ndim - 1)), mine, theirs)
    return others.replace(**{**values, "mines": states.mines})


def around(level, states, reach):
    """bool[count, n, n], the cells at most `reach` rows and columns from the cursor."""
    y, x = np.indices((SIZES[level], SIZES[level]))
    down, right = np.abs(y - states.y[:, None, None]), np.abs(x - states.x[:, None, None])
    return (down <= reach) & (right <= reach)


def hidden(level, states, rng):
    cursor, window = around(level, states, 0), around(level, states, 1)
    noise = rng.random(states.mines.shape) < 0.5
    told = (states.revealed & cursor).any((1, 2))[:, None, None]
    return {
        "mines": states.replace(mines=np.where(window & told, states.mines, noise)),
        "numbers elsewhere": states.replace(revealed=np.where(cursor, states.revealed, noise)),
    }


def shown(level, states, rng):
    n = SIZES[level]
    cursor = around(level, states, 0)
    # A number changes by the mine under it; a cell without a number gets one.
    told = states.revealed & cursor
    return {
        "x": states.replace(x=(states.x + 1) % n),
        "y": states.replace(y=(states.y + n - 1) % n),
        "score": states.replace(score=(states.score + 1).astype(np.int32)),
        "repeats": states.replace(repeats=(states.repeats + 1).astype(np.int32)),
        "number under the cursor": states.replace(mines=states.mines ^ told, revealed=states.revealed | cursor),
        "whether it is revealed": states.replace(revealed=states.revealed ^ cursor),
    }


def gallery(level, state):
    n = SIZES[level]
    row, column = np.indices((n, n))
    mines = np.zeros((n, n), bool)
    mines[[0, 1], [1, 0]] = True
    crowd = mines.copy()
    if n > 4:  # as many as can be around one cell
        crowd[:3, :3] = True
        mines[[0, 1, 2, 2], [2, 2, 0, 1]] = True

    def moment(time, y, x, mines, revealed, repeats):
        numbers = {"time": time, "y": y, "x": x, "repeats": repeats, "score": (revealed & ~mines).sum()}
        return state.replace(mines=mines, revealed=revealed, **{name: np.int32(v) for name, v in numbers.items()})

    return [
        moment(0, n - 1, n - 1, mines, np.zeros((n, n), bool), 0),
        moment(12, 1, 1, mines, ~mines & ((row < 2) | (column % 2 == 1)), 7),  # the cursor on a number
        moment(20, 0, n - 1, mines, ~mines & (row + column < n), n**2 // 2 - 1),  # the cursor on a 0
        moment(31, 1, 1, crowd, crowd | (row > 1), n**2 // 2),  # revealed mines, as many as there can be in a window
    ]


def without_revealed(frames):
    """Covered cells and numbers look like empty open cells."""
    for color in (NUMBERS, COVER, LIGHT, SHADOW):
        frames = repaint(color, OPEN)(frames)
    return frames


def without_cursor(frames):
    """Covered cells are flat, and the cursor's frame has the colour next to it. Not the gauge, which has its colour."""
    frames = repaint(SHADOW, COVER)(repaint(LIGHT, COVER)(frames))
    board = frames[:, 17:111]
    for axis, way in ((1, 1), (1, -1), (2, 1), (2, -1)) * 2:  # the frame is two pixels broad at most
        beside = np.roll(board, way, axis)
        fill = (board == CURSOR).all(-1) & ((beside == COVER) | (beside == OPEN)).all(-1)
        board[fill] = beside[fill]
    return frames


FAMILY = Family(
    limits=tuple(2 * n**2 for n in SIZES),
    fields=fields,
    bounds=lambda level: (1 / (SIZES[level] ** 2 - MINES[level]) - 1, 1.0),
    score_color=SCORE,
    name_color=NAME,
    palette=frozenset({CANVAS, OPEN, NUMBERS, COVER, LIGHT, SHADOW, CURSOR, LINES, SCORE, NAME}),
    step=step,
    check_fresh=check_fresh,
    draws=draws,
    games=games,
    possible=possible,
    equal_secrets=equal_secrets,
    hidden=hidden,
    shown=shown,
    cues={
        "what is revealed": without_revealed,
        "the cursor": without_cursor,
        "the repeats": blank(86, 0, 128, 16),
    },
    gallery=gallery,
)
