"""Tetris: clear ten lines (section 11 of the specification)."""

import jax
import jax.numpy as jnp
import numpy as np

from families import chances
from families.base import DOWN, FIRE, LEFT, RIGHT, UP, Family, Game, blank, one, pad

ROWS, COLUMNS, LIMIT, GOAL = 20, 10, 3000, 10
PREVIEWS, GRAVITY, SOFT_DROP = (3, 2, 1), (1, 1, 2), (2, 2, 3)
I, O, T, S, Z, J, L = range(7)  # noqa: E741

GREY, BLACK, WHITE = (128, 128, 128), (0, 0, 0), (255, 255, 255)
COLORS = ((0, 203, 225), (225, 206, 0), (187, 0, 222), (0, 226, 64), (208, 0, 0), (0, 119, 220), (215, 144, 0))
SCORE, NAME = (255, 48, 71), (255, 255, 0)

# Every orientation written out: (row, column) in the 4 x 4 box, by piece and rotation.
SHAPES = {
    I: ("1011 1213", "0212 2232", "2021 2223", "0111 2131"),
    O: ("1112 2122", "1112 2122", "1112 2122", "1112 2122"),
    T: ("1120 2122", "1121 2231", "2021 2231", "1120 2131"),
    S: ("1112 2021", "1121 2232", "2122 3031", "1020 2131"),
    Z: ("1011 2122", "1221 2231", "2021 3132", "1120 2130"),
    J: ("1020 2122", "1112 2131", "2021 2232", "1121 3031"),
    L: ("1220 2122", "1121 3132", "2021 2230", "1011 2131"),
}


def cells_of(piece, rotation, x, y):
    """(row, column) of the four cells of a piece; they may lie outside the board."""
    digits = SHAPES[int(piece)][int(rotation)].replace(" ", "")
    return [(int(y) + int(row), int(x) + int(column)) for row, column in zip(digits[::2], digits[1::2], strict=True)]


def collides(board, piece, rotation, x, y):
    return any(
        not (0 <= row < ROWS and 0 <= column < COLUMNS) or board[row, column]
        for row, column in cells_of(piece, rotation, x, y)
    )


def fields(level):
    whole = ((), np.int32)
    return {
        "time": whole,
        "score": whole,
        "board": ((ROWS, COLUMNS), np.int8),
        "piece": whole,
        "rotation": whole,
        "x": whole,
        "y": whole,
        "next_pieces": ((PREVIEWS[level],), np.int32),
        "bag": ((7,), np.int32),
        "bag_index": whole,
    }


def step(level, state, action, limit):
    action = min(max(int(action), 0), 4)
    state["time"] += 1
    board = state["board"]
    piece, rotation, x, y = (int(state[name]) for name in ("piece", "rotation", "x", "y"))

    wanted = {UP: ((rotation + 1) % 4, x), LEFT: (rotation, x - 1), RIGHT: (rotation, x + 1)}.get(action)
    if wanted and not collides(board, piece, *wanted, y):
        rotation, x = wanted
    for _ in range(max(GRAVITY[level], SOFT_DROP[level]) if action == DOWN else GRAVITY[level]):
        if not collides(board, piece, rotation, x, y + 1):
            y += 1
    reward, over = 0.0, False
    if collides(board, piece, rotation, x, y + 1):
        for cell in cells_of(piece, rotation, x, y):
            board[cell] = piece + 1
        kept = [row.copy() for row in board if not row.all()]
        cleared = ROWS - len(kept)
        board[...] = np.array([np.zeros(COLUMNS, np.int8)] * cleared + kept)
        lines = int(state["score"])
        reward += 0.1 * min(cleared, GOAL - lines)
        state["score"][...] = min(lines + cleared, GOAL)
        if state["score"] == GOAL:
            over = True
        else:
            piece, rotation, x, y = int(state["next_pieces"][0]), 0, 3, 0
            state["next_pieces"][...] = [*state["next_pieces"][1:], state["bag"][state["bag_index"]]]
            state["bag_index"] += 1
            if state["bag_index"] == 7:
                state["bag_index"][...] = 0  # (and a new bag, which is drawn)
            if collides(board, piece, rotation, x, y):
                reward -= 1
                over = True
    for name, value in (("piece", piece), ("rotation", rotation), ("x", x), ("y", y)):
        state[name][...] = value
    return state, reward, over


def check_fresh(level, states):
    previews = PREVIEWS[level]
    for name in ("time", "score", "board", "rotation", "y"):
        assert not getattr(states, name).any(), name
    assert (states.x == 3).all()
    assert (np.sort(states.bag, axis=1) == np.arange(7)).all(), "not a permutation"
    np.testing.assert_array_equal(states.piece, states.bag[:, 0])
    np.testing.assert_array_equal(states.next_pieces, states.bag[:, 1 : 1 + previews])
    assert (states.bag_index == 1 + previews).all()


def permutations(bags):
    """p-values for int[draws, 7], each row a uniform permutation."""
    found = {"piece by place": chances.permutation(bags, 7)}
    for first, second in ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (0, 6), (2, 5)):
        one, other = bags[:, first], bags[:, second]
        found[f"places {first} and {second}"] = chances.table(one, other - (other > one), (7, 6))
    found["order of the last three"] = chances.choice(_order(bags[:, 4:]), 6)
    found["order of the first three"] = chances.choice(_order(bags[:, :3]), 6)
    return found


def _order(triples):
    """Which of the six orders three different numbers are in."""
    first, second, third = triples.T
    smallest = triples.argmin(1)
    rest = np.where(smallest == 0, second > third, np.where(smallest == 1, first > third, first > second))
    return 2 * smallest + rest


def draws(level, states):
    return permutations(states.bag)


# Experts. In plans, besides the five actions: a greedy player.
GREEDY = 5

_CELLS = np.array([[cells_of(piece, rotation, 0, 0) for rotation in range(4)] for piece in range(7)])
_COVERED = np.zeros((7, 4, 4, 4), bool)
_COVERED[np.arange(7)[:, None, None], np.arange(4)[:, None], _CELLS[..., 0], _CELLS[..., 1]] = True
_XS = np.arange(-2, 9)


def policy(plan, state):
    return jnp.where(plan[state.time] == GREEDY, greedy(state), plan[state.time])


def greedy(state):
    """Choose the place that leaves a low, even stack with few holes; turn, shift, drop.

    A function of the piece and the stack alone, so that it is stuck to while the piece falls.
    """
    gravity = 2 if state.next_pieces.shape[-1] == 1 else 1
    filled = state.board > 0
    top = jnp.where(filled.any(0), jnp.argmax(filled, axis=0), ROWS)  # first filled row of each column
    columns = _XS[:, None] + np.arange(4)  # [x, column of the box]
    inside = (columns >= 0) & (columns < COLUMNS)
    covered = jnp.asarray(_COVERED)[state.piece]  # [rotation, row of the box, column of the box]
    used = covered.any(1)[:, None]  # [rotation, 1, column of the box]
    possible = (~used | inside).all(-1)
    under = top[np.clip(columns, 0, COLUMNS - 1)]  # [x, column of the box]
    lowest = jnp.where(used, 3 - jnp.argmax(covered[:, ::-1], axis=1)[:, None], 0)
    highest = jnp.where(used, jnp.argmax(covered, axis=1)[:, None], 0)
    y = jnp.where(used, under - 1 - lowest, ROWS).min(-1)  # [rotation, x], where the box comes to rest
    holes = jnp.where(used, under - 1 - lowest - y[..., None], 0).sum(-1)
    here = (columns[:, :, None] == np.arange(COLUMNS)) & used[..., None]  # [rotation, x, column of the box, column]
    after = jnp.where(here.any(2), jnp.where(here, (y[..., None] + highest)[..., None], 0).sum(2), top)
    uneven = (jnp.diff(after, axis=-1) ** 2).sum(-1)
    # cells in each row with the piece, [rotation, x, row]
    at = np.arange(ROWS) - y[..., None]
    mine = sum(jnp.where(at == row, covered[:, row].sum(-1)[:, None, None], 0) for row in range(4))
    lines = (mine + filled.sum(1) == COLUMNS).sum(-1)
    # On its way it must not come to rest: from `_XS[5]` it first turns, then moves, and falls by `gravity` each step.
    # All but the last move must leave it free to fall on, the last must still find room.
    moves = np.arange(4)[:, None] + np.abs(_XS - 3)
    rests = gravity * moves + 1 - y
    turning = jax.lax.cummax(jnp.pad(rests[:-1, 5], (1, 0)), axis=0)[:, None]  # by the turns before
    right = jax.lax.cummax(jnp.maximum(rests, turning)[:, 5:-1], axis=1)
    left = jax.lax.cummax(jnp.maximum(rests, turning)[:, 5:0:-1], axis=1)[:, ::-1]
    before = jnp.concatenate([left, turning, right], axis=1)
    late = jnp.maximum(jnp.maximum(before, gravity * (moves - 1) - y), 0)
    height = (ROWS - after).sum(-1) - COLUMNS * lines
    cost = 0.51 * height + 0.7 * holes + 0.1 * uneven - 0.76 * lines + 50 * late + 0.01 * moves + 1000 * ~possible
    best = jnp.argmin(cost)
    rotation, x = best // len(_XS), _XS[0] + best % len(_XS)
    shift = jnp.where(state.x > x, LEFT, jnp.where(state.x < x, RIGHT, DOWN))
    return jnp.where(state.rotation != rotation, UP, shift)


def well(state, rows, column=0, piece=J):
    """The state with the lowest `rows` rows full but for one column."""
    board = np.zeros((ROWS, COLUMNS), np.int8)
    board[ROWS - rows :] = piece + 1
    board[ROWS - rows :, column] = 0
    return state.replace(board=board)


def games(level, fresh):
    found = []
    greedy, wait = pad([], LIMIT, GREEDY), pad([], LIMIT, FIRE)
    for i in range(20):
        found.append(Game("greedy", one(fresh, i), greedy, 1.0))
        found.append(Game("never moves", one(fresh, i), wait, -1.0))
        found.append(Game("turns for ever", one(fresh, i), pad([], LIMIT, UP), -1.0))
    # An upright I into a well: box column 2, so x = -2 is the first column.
    upright = one(fresh, 0).replace(piece=np.int32(I))
    into_the_well = [UP] + [LEFT] * 5
    found.append(Game("four rows at once, then never moves", well(upright, 4), pad(into_the_well, LIMIT, FIRE), -0.6))
    found.append(Game("four rows, greedy afterwards", well(upright, 4), pad(into_the_well, LIMIT, GREEDY), 1.0))
    for lines in (6, 7, 8, 9):
        state = well(upright, 4).replace(score=np.int32(lines))
        found.append(Game(f"four rows after {lines}", state, pad(into_the_well, LIMIT, FIRE), 0.1 * (GOAL - lines)))
    return found


def possible(level, states):
    """Nothing collides, nothing is full; the bag is one."""
    ok = (states.score >= 0) & (states.score < GOAL) & (states.bag_index >= 0) & (states.bag_index < 7)
    ok &= (np.sort(states.bag, axis=1) == np.arange(7)).all(1)
    ok &= (states.piece >= 0) & (states.piece < 7) & (states.rotation >= 0) & (states.rotation < 4)
    ok &= ((states.next_pieces >= 0) & (states.next_pieces < 7)).all(1) & ~(states.board != 0).all(2).any(1)
    for i in np.flatnonzero(ok):
        ok[i] = not collides(states.board[i], states.piece[i], states.rotation[i], states.x[i], states.y[i])
    return ok


def equal_secrets(level, states, others):
    """The order of what is left in the bag: `others` deal the same pieces in the order of `states`, then the rest."""
    bags = others.bag.copy()
    for i in range(len(bags)):
        order = states.bag[i, states.bag_index[i] :].tolist()
        left = bags[i, others.bag_index[i] :].tolist()
        bags[i, others.bag_index[i] :] = [p for p in order if p in left] + [p for p in left if p not in order]
    return others.replace(bag=bags)


def hidden(level, states, rng):
    shuffled = rng.permuted(states.board, axis=2)
    bags = states.bag.copy()
    dealt = states.bag.copy()
    for bag, past, index in zip(bags, dealt, states.bag_index, strict=True):
        bag[index:] = rng.permutation(bag[index:])
        past[:index] = rng.permutation(past[:index])
    return {
        "the stack": states.replace(board=np.where(shuffled > 0, (shuffled + 2) % 7 + 1, 0).astype(np.int8)),
        "no stack": states.replace(board=np.zeros_like(states.board)),
        "the order of the bag": states.replace(bag=bags),
        "the order of what was dealt": states.replace(bag=dealt),
    }


def shown(level, states, rng):
    turns = states.piece != O  # O looks the same however it is turned, and is
    previews = {}
    for place in range(PREVIEWS[level]):
        pieces = states.next_pieces.copy()
        pieces[:, place] = (pieces[:, place] + rng.integers(1, 7, len(pieces))) % 7
        previews[f"preview {place}"] = states.replace(next_pieces=pieces)
    return {
        "piece": states.replace(piece=(states.piece + 1) % 7),
        "rotation": states.replace(
            rotation=np.where(turns, (states.rotation + 1) % 4, states.rotation),
            x=np.where(turns, states.x, states.x ^ 1),
        ),
        "half a turn": states.replace(
            rotation=np.where(turns, (states.rotation + 2) % 4, states.rotation),
            y=np.where(turns, states.y, states.y ^ 1),
        ),
        "x": states.replace(x=states.x + np.where(states.x > 3, -1, 1).astype(np.int32)),
        "y": states.replace(y=states.y + np.where(states.y > 3, -1, 1).astype(np.int32)),
        "score": states.replace(score=states.score + 1),
        "the bag": states.replace(bag_index=np.where(states.bag_index > 0, states.bag_index - 1, 1).astype(np.int32)),
        **previews,
    }


def gallery(level, state):
    board = np.zeros((ROWS, COLUMNS), np.int8)
    rows = ["JJJ.......", "J.OO..SS..", "LLOO.SSTTT", "LZZ.IIIIT.", "L.ZZJJJ.OO", ".TTTLLJ.OO"]
    for row, text in enumerate(rows, ROWS - len(rows)):
        board[row] = [".IOTSZJL".index(letter) for letter in text]
    tower = board.copy()
    tower[2:15, 3:7] = np.arange(13)[:, None] % 7 + 1
    bag = np.array([S, I, O, Z, T, L, J], np.int32)

    def moment(time, piece, rotation, x, y, index, board=board, score=0):
        numbers = {
            "time": time,
            "piece": piece,
            "rotation": rotation,
            "x": x,
            "y": y,
            "bag_index": index,
            "score": score,
        }
        next_pieces = np.array([T, I, Z], np.int32)[: PREVIEWS[level]]
        return state.replace(
            board=board, bag=bag, next_pieces=next_pieces, **{name: np.int32(value) for name, value in numbers.items()}
        )

    return [
        moment(0, S, 0, 3, 0, 1 + PREVIEWS[level], board * 0),
        moment(300, T, 2, 7, 12, 0, score=4),  # on cells of its own colour
        moment(700, I, 1, -2, 5, 6, score=9),
        moment(950, L, 0, 3, 0, 3, tower, score=7),  # topped out
    ]


def without_falling_mark(frames):
    """Fill the white middle of a cell of the board with the cell's colour."""
    frames = frames.copy()
    cells = frames[:, 14:114, 39:89].reshape(-1, ROWS, 5, COLUMNS, 5, 3)
    marked = (cells[:, :, 2, :, 2] == WHITE).all(-1)
    corner = cells[:, :, :1, :, :1]
    frames[:, 14:114, 39:89] = np.where(marked[:, :, None, :, None, None], corner, cells).reshape(-1, 100, 50, 3)
    return frames


FAMILY = Family(
    limits=(LIMIT,) * 3,
    fields=fields,
    bounds=lambda level: (-1.0, 1.0),
    score_color=SCORE,
    name_color=NAME,
    palette=frozenset({GREY, BLACK, WHITE, SCORE, NAME, *COLORS}),
    step=step,
    drawn=("bag",),
    check_fresh=check_fresh,
    draws=draws,
    games=games,
    policy=policy,
    possible=possible,
    equal_secrets=equal_secrets,
    hidden=hidden,
    shown=shown,
    cues={
        "stack and falling piece": blank(39, 14, 89, 114),
        "the previews": blank(91, 14, 114, 114),
        "the bag": blank(14, 14, 38, 114),
    },
    gallery=gallery,
)
