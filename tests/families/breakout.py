"""Breakout: MinAtar's game on 20 rows by 10 columns (section 5 of the specification)."""

import functools

import numpy as np

from families import chances
from families.base import LEFT, RIGHT, UP, Family, Game, blank, no_secrets, one, pad, repaint

WIDTHS = (6, 5, 4)  # of the paddle
LIMIT = 2000
ROWS, COLUMNS = 20, 10
PAY = {1: 0.025, 2: 0.0216667, 3: 0.0183333, 4: 0.015, 5: 0.0116667, 6: 0.0083333}
STEPS = {0: (-1, -1), 1: (-1, 1), 2: (1, 1), 3: (1, -1)}  # (rows, columns) by direction

CANVAS, BOARD, BALL, TRAIL = (119, 122, 127), (0, 0, 0), (255, 255, 255), (150, 150, 150)
BRICKS = ((200, 72, 72), (198, 108, 58), (255, 122, 48), (162, 162, 42), (72, 255, 72), (66, 72, 200))
SCORE, NAME = (255, 48, 71), (255, 255, 0)
PADDLE = BRICKS[0]
STRIKE = (0, 160, 255)  # the ball's outline


def fields(level):
    names = ("time", "score", "ball_y", "ball_x", "ball_dir", "paddle_x", "last_y", "last_x")
    return {
        **{name: ((), np.int32) for name in names},
        "bricks": ((ROWS, COLUMNS), np.bool_),
        "strike": ((), np.bool_),
    }


class Model:
    """The rules, on plain numbers and a set of bricks (row, column)."""

    def __init__(self, width, ball, direction, paddle, bricks, strike):
        self.width, self.ball, self.direction = width, ball, direction
        self.paddle, self.bricks, self.strike = paddle, set(bricks), strike
        self.last = ball
        self.over = False

    def step(self, action):
        """Moves on and returns the reward."""
        if action == LEFT and self.paddle > 0:
            self.paddle -= 1
        if action == RIGHT and self.paddle + self.width < COLUMNS:
            self.paddle += 1
        on_paddle = range(self.paddle, self.paddle + self.width)

        old_row, old_column = self.last = self.ball
        rows, columns = STEPS[self.direction]
        row, column = old_row + rows, old_column + columns
        if column in (-1, COLUMNS):
            column = old_column
            columns = -columns

        reward, contact = 0.0, False
        if row == -1:
            row, rows = 0, 1
        elif (row, column) in self.bricks:
            contact = True
            if not self.strike:
                self.bricks.remove((row, column))
                reward += PAY[row]
                row, rows = old_row, -rows
        elif row == ROWS - 1:
            if old_column in on_paddle:
                row, rows = old_row, -1
            elif column in on_paddle:
                row, rows, columns = old_row, -1, -columns
            else:
                reward -= len(self.bricks) / 60
                self.over = True
        self.strike = contact
        self.ball = (row, column)
        self.direction = next(name for name, way in STEPS.items() if way == (rows, columns))
        self.over |= not self.bricks
        return reward


def step(level, state, action, limit):
    bricks = {tuple(cell) for cell in np.argwhere(state["bricks"]).tolist()}
    ball, direction = (int(state["ball_y"]), int(state["ball_x"])), int(state["ball_dir"])
    model = Model(WIDTHS[level], ball, direction, int(state["paddle_x"]), bricks, bool(state["strike"]))
    reward = model.step(min(max(int(action), 0), 4))
    left = np.zeros((ROWS, COLUMNS), bool)
    for cell in model.bricks:
        left[cell] = True
    state.update(
        time=state["time"] + 1,
        score=state["score"] + len(bricks) - len(model.bricks),
        ball_y=model.ball[0],
        ball_x=model.ball[1],
        ball_dir=model.direction,
        last_y=model.last[0],
        last_x=model.last[1],
        paddle_x=model.paddle,
        bricks=left,
        strike=model.strike,
    )
    return state, reward, model.over


def check_fresh(level, states):
    full = np.zeros((ROWS, COLUMNS), bool)
    full[1:7] = True
    assert (states.bricks == full).all()
    assert (states.time == 0).all() and (states.score == 0).all() and not states.strike.any()
    assert (states.paddle_x == (4, 5, 5)[level]).all()
    assert (states.ball_y == 13).all() and np.isin(states.ball_x, (0, 9)).all()
    assert (states.ball_dir == (states.ball_x == 9)).all()
    assert (states.last_y == states.ball_y).all() and (states.last_x == states.ball_x).all()


def draws(level, states):
    return {"side": chances.choice(states.ball_dir, 2)}


# Experts: plans worked out on the model above. Neither the game nor the search for a plan is random.


def start(level, side):
    bricks = [(row, column) for row in range(1, 7) for column in range(COLUMNS)]
    return Model(WIDTHS[level], (13, 9 * side), side, (4, 5, 5)[level], bricks, False)


def aim(model, edge):
    """One move of the paddle to where the ball comes down: under it, or with `edge` (if there is room) just ahead of
    it, so that the paddle's edge sends the ball back where it came from."""
    (row, column), (rows, columns) = model.ball, STEPS[model.direction]
    for _ in range(18 - row if rows == 1 else 0):  # until it is in row 18, if it meets no brick
        column += columns
        if column in (-1, COLUMNS):
            column, columns = column - columns, -columns
    room = COLUMNS - model.width
    left = column + 1 if columns == 1 else column - model.width
    if not edge or not 0 <= left <= room:
        left = min(max(column - model.width // 2, 0), room)
    return LEFT if left < model.paddle else RIGHT if left > model.paddle else UP


@functools.cache
def played(level, side, habit, seed=0):
    """An expert's plan, what it is worth by the model, and the model at the end."""
    rng = np.random.default_rng(seed)
    model = start(level, side)
    plan, value, fell, edge = [], 0.0, False, False
    while not model.over and len(plan) < LIMIT:
        falls = STEPS[model.direction][0] == 1
        if falls and not fell:
            edge = habit == "uses the edges" and rng.random() < 0.3
        fell = falls
        action = habit if isinstance(habit, int) else aim(model, edge)
        plan.append(action)
        value += model.step(action)
    return plan, value, model


SEEDS = range(4)  # of the players who use the edges: by the model some clear the board and some run out of time


def games(level, fresh):
    found = []
    for side in (0, 1):
        state = one(fresh, np.flatnonzero(fresh.ball_dir == side)[0])

        def add(name, habit, seed=0, state=state, side=side):
            plan, value, _ = played(level, side, habit, seed)
            found.append(Game(name, state, pad(plan, LIMIT, UP), value))

        plan, _, _ = played(level, side, "follows the ball")
        found.append(Game("clears the board", state, pad(plan, LIMIT, UP), 1.0))
        late = state.replace(time=np.int32(LIMIT - len(plan)))
        found.append(Game("the last brick on the last permitted step", late, np.array([UP] * late.time + plan), 1.0))
        away = (RIGHT, LEFT)[side]  # the ball comes back to the side where it began
        found.append(Game("lets the ball fall after a brick", state, pad([], LIMIT, away), -0.975))
        add("waits at the ball's first side", (LEFT, RIGHT)[side])
        add("stands still", UP)
        for seed in SEEDS:
            add("uses the edges", "uses the edges", seed)
    return found


def on_brick(states):
    rows = np.arange(len(states.time))
    return states.bricks[rows, np.clip(states.ball_y, 0, ROWS - 1), np.clip(states.ball_x, 0, COLUMNS - 1)]


def possible(level, states):
    ok = (states.paddle_x >= 0) & (states.paddle_x <= COLUMNS - WIDTHS[level])
    for row, column in ((states.ball_y, states.ball_x), (states.last_y, states.last_x)):
        ok &= (row >= 0) & (row <= 18) & (column >= 0) & (column < COLUMNS)
    ok &= (states.ball_dir >= 0) & (states.ball_dir < 4)
    wall = states.bricks[:, 1:7].sum((1, 2))
    ok &= (wall > 0) & (wall == states.bricks.sum((1, 2)))
    # The score is left free, although it is 60 - wall: else no brick could be altered alone.
    return ok & (states.score >= 0) & (states.score <= 60) & (states.strike | ~on_brick(states))


def other_cell(row, column, rng):
    return rng.integers(19, size=len(row)).astype(np.int32), ((column + 1) % COLUMNS).astype(np.int32)


def hidden(level, states, rng):
    last_y, last_x = other_cell(states.last_y, states.last_x, rng)
    ball_y, ball_x = other_cell(states.ball_y, states.ball_x, rng)
    falls = states.ball_dir >= 2
    return {
        "trail": states.replace(last_y=last_y, last_x=last_x),
        "sideways direction": states.replace(ball_dir=states.ball_dir ^ 1),  # 0, 1 are up and 2, 3 down
        "strike": states.replace(strike=~states.strike),
        "falling ball": states.replace(
            ball_y=np.where(falls, ball_y, states.ball_y), ball_x=np.where(falls, ball_x, states.ball_x)
        ),
    }


def shown(level, states, rng):
    bricks = states.bricks.copy()
    rows = np.arange(len(bricks))
    cell = rng.integers(1, 7, size=len(bricks)), rng.integers(COLUMNS, size=len(bricks))
    bricks[rows, *cell] ^= True
    rises = states.replace(ball_dir=(states.ball_dir & 1).astype(np.int32), ball_x=(states.ball_x + 1) % COLUMNS)
    return {
        "bricks": states.replace(bricks=bricks),
        "paddle": states.replace(paddle_x=(states.paddle_x + 1) % (COLUMNS - WIDTHS[level] + 1)),
        "whether the ball rises": states.replace(ball_dir=(states.ball_dir + 2) % 4),
        "where the rising ball is": rises,
        "score": states.replace(score=(states.score + 1) % 61),
    }


def without_notch(frames):
    """Fill the ball's cell outside the rows of bricks."""
    frames = frames.copy()
    cells = frames[:, 14:114, 14:114].reshape(-1, ROWS, 5, COLUMNS, 10, 3)
    filled = ((cells == BALL).all(-1) | (cells == STRIKE).all(-1)).any((2, 4), keepdims=True)
    filled[:, 1:7] = False
    cells = np.where(filled[..., None] & (cells == BOARD).all(-1, keepdims=True), np.uint8(BALL), cells)
    # (a ball with another outline keeps it)
    frames[:, 14:114, 14:114] = cells.reshape(-1, 100, 100, 3)
    return frames


def gallery(level, state):
    full = state.bricks.copy()
    worn = full.copy()
    worn[1, 2:5] = worn[2, [0, 3, 4]] = worn[3, 3:6] = worn[4, 7:] = worn[5, [1, 6, 7]] = worn[6, ::2] = False
    worn_out = np.zeros_like(full)
    worn_out[1, 4] = worn_out[4, [2, 8]] = True

    def moment(bricks, time, ball, direction, last, paddle, strike=False):
        names = ("time", "ball_y", "ball_x", "ball_dir", "last_y", "last_x", "paddle_x", "score")
        values = (time, *ball, direction, *last, paddle, 60 - bricks.sum())
        numbers = {name: np.int32(value) for name, value in zip(names, values, strict=True)}
        return state.replace(bricks=bricks, strike=np.bool_(strike), **numbers)

    return [
        moment(full, 0, (13, 0), 0, (13, 0), 10 - WIDTHS[level]),
        moment(worn, 100, (7, 5), 2, (7, 4), 0, strike=True),  # down again from a brick
        moment(worn, 200, (4, 3), 1, (5, 2), 3, strike=True),  # up through a brick
        moment(worn_out, 900, (0, 9), 3, (1, 8), 2),  # at the ceiling
    ]


FAMILY = Family(
    limits=(LIMIT,) * 3,
    fields=fields,
    bounds=lambda level: (-0.975, 1.0),
    score_color=SCORE,
    name_color=NAME,
    palette=frozenset({CANVAS, BOARD, BALL, TRAIL, *BRICKS, SCORE, NAME}),
    extra_colors=frozenset({STRIKE}),
    starts=lambda level: 2,
    step=step,
    check_fresh=check_fresh,
    draws=draws,
    games=games,
    possible=possible,
    equal_secrets=no_secrets,
    hidden=hidden,
    shown=shown,
    # The trail is not among them: it tells nothing about the future that the notch does not.
    cues={
        "the bricks": blank(14, 19, 114, 49),
        "the ball": blank(14, 49, 114, 109),
        "the paddle": blank(14, 109, 114, 114),
        "the direction": without_notch,
        "the strike": repaint(STRIKE, BALL),
    },
    gallery=gallery,
)
