"""Tetris: clear ten lines."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments.environment import EnvParams

from popgym_arcade.environments.arcade import DOWN, LEFT, RIGHT, UP, ArcadeEnvironment, ArcadeState
from popgym_arcade.environments.cards import shuffled
from popgym_arcade.environments.draw_utils import draw_rectangle, draw_x
from popgym_arcade.environments.screen import SCORE_BOX, Screen, Sprites, blank, grid, number, titled

CANVAS, GROUND, WALL = (128, 128, 128), (0, 0, 0), (255, 255, 255)
COLORS = ((0, 203, 225), (225, 206, 0), (187, 0, 222), (0, 226, 64), (208, 0, 0), (0, 119, 220), (215, 144, 0))
MARK = (255, 255, 255)
SCORE, NAME = (255, 48, 71), (255, 255, 0)

ROWS, COLUMNS, GOAL = 20, 10, 10
I, O, T, S, Z, J, L = range(7)  # noqa: E741  (the pieces' own names)
PIECES = 7
SPAWN_X = 3
# The pieces as they spawn, in their 4 x 4 boxes. `*` is the cell with a mark, which turns with the piece: without it,
# I, S and Z would look the same after half a turn, although the next turn moves them to different places.
_SPAWNED = (
    "....  ....  ....  ....  ....  ....  ....",
    "#*##  .##.  .#..  .##.  ##..  #...  ..#.",
    "....  .##.  #*#.  #*..  .*#.  #*#.  #*#.",
    "....  ....  ....  ....  ....  ....  ....",
)

# Pictures of a cell: empty; the stack, the falling piece and its marked cell, seven of each; both at once.
EMPTY, STACK, FALLING, MARKED, CRASHED = 0, 1, 1 + PIECES, 1 + 2 * PIECES, 1 + 3 * PIECES

CELL, BLOCK = {128: 5, 256: 10}, {128: 2, 256: 5}  # pixels: a cell of the board, and of a piece in preview and bag
AREA = 20  # cells: the play area is square, with the board in its middle
BOARD_LEFT, PREVIEW_LEFT, BAG_LEFT = 5, 16, 2  # cells from the left of the play area
PREVIEW_TOP, PREVIEW_PITCH, BAG_TOP, BAG_PITCH = 3, 3, 3, 2  # cells from its top, and from one piece to the next
MARGIN = 2  # pixels above a piece in preview and bag


def _shapes() -> tuple[np.ndarray, np.ndarray]:
    """The cells that each piece covers in its box, and the marked one: bool[piece, rotation, 4, 4] each."""
    boxes = np.array([[list(box) for box in row.split()] for row in _SPAWNED]).swapaxes(0, 1)
    turned = [boxes]
    for _ in range(3):
        boxes = boxes.copy()
        for piece, box in enumerate(boxes):
            if piece == I:
                box[:] = np.rot90(box, -1)
            elif piece != O:
                box[1:, :3] = np.rot90(box[1:, :3], -1)
        turned.append(boxes)
    turned = np.stack(turned, axis=1)
    return turned != ".", turned == "*"


COVERED, MARKS = _shapes()

# `transition` packs a row of the board into one int32: column c is bit c + OUTSIDE, walls and floor are ones.
OUTSIDE = 3  # how far a box can reach beyond the left wall
_BIT = (1 << (np.arange(COLUMNS) + OUTSIDE)).astype(np.int32)
_WALLS = np.int32(~_BIT.sum())
_FULL = np.int32(-1)
_SHAPE_BITS = (COVERED << np.arange(4)).sum(-1).astype(np.int32)  # [piece, rotation, 4], for a box at x = -OUTSIDE
_MARK_BITS = (MARKS << np.arange(4)).sum(-1).astype(np.int32)
_ROW = np.arange(ROWS, dtype=np.int32)


@struct.dataclass
class TetrisState(ArcadeState):
    """A board of 20 x 10 cells. Pieces are 0 I, 1 O, 2 T, 3 S, 4 Z, 5 J, 6 L.

    score: int32 in 0..10, lines.
    board: int8[20, 10], the stack by row and column: 0 where empty, else a piece + 1.
    piece, rotation: int32 in 0..6 and 0..3 (quarter turns clockwise), the falling piece.
    x, y: int32, column and row of its 4 x 4 box's top left corner; x may be negative.
    next_pieces: int32[previews], the first comes next.
    bag: int32[7], a permutation of the pieces in the order in which they are dealt.
    bag_index: int32 in 0..6, how many of them have been dealt (to the previews).
    """

    score: jax.Array
    board: jax.Array
    piece: jax.Array
    rotation: jax.Array
    x: jax.Array
    y: jax.Array
    next_pieces: jax.Array
    bag: jax.Array
    bag_index: jax.Array


class Tetris(ArcadeEnvironment):
    """Turn (up), shift (left, right) and drop (down) the falling piece so that it fills rows.

    Full rows are cleared and pay 0.1 each; ten of them end the episode. A new piece without room also ends it, and
    costs 1. The piece falls `gravity` cells per step, or `soft_drop` with down, and locks once there is no room below
    it. The time limit is 3000. The partially observable twin hides the stack.
    """

    max_steps = 3000
    previews: int
    gravity: int
    soft_drop: int

    def __init__(self, partial_obs: bool = False, obs_size: int = 128):
        super().__init__(partial_obs, obs_size)
        cell, block = CELL[obs_size], BLOCK[obs_size]
        corner = (obs_size - AREA * cell) // 2

        def place(column: int, row: int) -> tuple[int, int]:
            return corner + column * cell, corner + row * cell

        canvas = titled(obs_size, CANVAS, "Tetris", NAME)
        canvas = draw_rectangle(place(0, 0), place(AREA, AREA), GROUND, canvas)
        (left, top), (right, bottom) = place(BOARD_LEFT, 0), place(BOARD_LEFT + COLUMNS, ROWS)
        canvas = draw_rectangle((left - 1, top), (left, bottom), WALL, canvas)
        canvas = draw_rectangle((right, top), (right + 1, bottom), WALL, canvas)
        # Previews and bag are padded to whole rows of the board, because every other edge would add a band to draw.
        previews = grid(place(PREVIEW_LEFT, PREVIEW_TOP), (self.previews, 1), PREVIEW_PITCH * cell)[:, 0]
        bag = grid(place(BAG_LEFT, BAG_TOP), (PIECES, 1), BAG_PITCH * cell)[:, 0]
        next_pieces = [_small(piece, PREVIEW_PITCH * cell, 0, block, COLORS[piece]) for piece in range(PIECES)]
        # (without the box's empty first row)
        left_in_bag = [
            _small(piece, BAG_PITCH * cell, 1, block, color)
            for piece in range(PIECES)
            for color in (CANVAS, COLORS[piece])
        ]
        self.screen = Screen(
            canvas,
            {
                "board": Sprites(grid(place(BOARD_LEFT, 0), (ROWS, COLUMNS), cell), _cells(cell)),
                "next": Sprites(previews, np.stack(next_pieces)),
                "bag": Sprites(bag, np.stack(left_in_bag)),
                "score": number(SCORE_BOX[obs_size], SCORE, canvas, largest=GOAL),
            },
        )

    def reset_state(self, key: jax.Array, params: EnvParams) -> TetrisState:
        """An empty board; the falling piece and the previews are the first pieces of a bag."""
        bag = _permutation(key)
        return TetrisState(
            time=jnp.int32(0),
            score=jnp.int32(0),
            board=jnp.zeros((ROWS, COLUMNS), jnp.int8),
            piece=bag[0],
            rotation=jnp.int32(0),
            x=jnp.int32(SPAWN_X),
            y=jnp.int32(0),
            next_pieces=bag[1 : 1 + self.previews],
            bag=bag,
            bag_index=jnp.int32(1 + self.previews),
        )

    def transition(
        self, key: jax.Array, state: TetrisState, action: jax.Array, params: EnvParams
    ) -> tuple[TetrisState, jax.Array, jax.Array]:
        """Move, descend, and if there is no room below: lock, clear rows, and spawn the next piece."""
        rows = jnp.sum(jnp.where(state.board > 0, _BIT[None], 0), axis=1, dtype=jnp.int32) | _WALLS
        rows = jnp.concatenate([rows, jnp.full(3, _FULL)])
        # blocked(shape)[y]: whether a box with its top in row y, whose rows are the four numbers of `shape`, is blocked
        windows = jnp.stack([rows[k : k + ROWS] for k in range(4)])

        def blocked(shape: jax.Array) -> jax.Array:
            return jnp.any((windows & shape[:, None]) != 0, axis=0)

        rotation = (state.rotation + (action == UP)) % 4
        x = state.x + (action == RIGHT) - (action == LEFT)
        unmoved, moved = _box_bits(_SHAPE_BITS, state), _box_bits(_SHAPE_BITS, state.replace(rotation=rotation, x=x))
        obstacles = blocked(moved)
        refused = jnp.any(obstacles & (_ROW == state.y))
        rotation = jnp.where(refused, state.rotation, rotation)
        x = jnp.where(refused, state.x, x)
        shape = jnp.where(refused, unmoved, moved)
        obstacles = jnp.where(refused, blocked(unmoved), obstacles)

        lowest = jnp.min(jnp.where(obstacles & (_ROW > state.y), _ROW, ROWS)) - 1  # before the first obstacle
        fall = jnp.where(action == DOWN, max(self.gravity, self.soft_drop), self.gravity)
        y = jnp.minimum(state.y + fall, lowest)
        locks = y == lowest

        board = jnp.where(_cells_of(shape, y) & locks, (state.piece + 1).astype(jnp.int8), state.board)
        around = jnp.sum(jnp.where(_ROW == y, windows, 0), axis=1)
        full = ((around | shape) == _FULL) & (shape != 0) & locks  # bool[4], for the rows of the box
        # Where the rows of the new board come from: one row higher for each cleared row at or below.
        source = _ROW
        for k in (3, 2, 1, 0):
            source = source - ((source <= y + k) & full[k])
        board = jnp.where(source[:, None] >= 0, board[jnp.maximum(source, 0)], jnp.int8(0))
        lines = jnp.minimum(jnp.sum(full, dtype=jnp.int32), GOAL - state.score)
        score = state.score + lines
        won = score == GOAL

        spawns = locks & ~won
        piece = jnp.where(spawns, state.next_pieces[0], state.piece)
        dealt = jnp.concatenate([state.next_pieces[1:], state.bag[state.bag_index][None]])
        bag_index = (state.bag_index + spawns) % PIECES
        used_up = spawns & (bag_index == 0)
        # a piece spawns in rows 1 and 2 of its box
        entrance = board[1:3, SPAWN_X : SPAWN_X + 4] > 0
        lost = spawns & jnp.any(entrance & jnp.asarray(COVERED[:, 0, 1:3])[piece])
        state = state.replace(
            score=score,
            board=board,
            piece=piece,
            rotation=jnp.where(spawns, 0, rotation),
            x=jnp.where(spawns, SPAWN_X, x),
            y=jnp.where(spawns, 0, y),
            next_pieces=jnp.where(spawns, dealt, state.next_pieces),
            bag=jnp.where(used_up, _permutation(key), state.bag),
            bag_index=bag_index,
        )
        return state, 0.1 * lines - lost, won | lost

    def render(self, state: TetrisState, params: EnvParams | None = None) -> jax.Array:
        """The stack (in the full frame), the falling piece, the previews, and which pieces are left in the bag."""
        stack = jnp.where(self.shows_all(state), state.board, EMPTY).astype(jnp.int32)
        falling = _cells_of(_box_bits(_SHAPE_BITS, state), state.y)
        marked = _cells_of(_box_bits(_MARK_BITS, state), state.y)
        picture = jnp.where(stack > 0, CRASHED, state.piece + jnp.where(marked, MARKED, FALLING))
        # After the tenth line there is no falling piece: the last one is part of the stack.
        board = jnp.where(falling & (state.score < GOAL), picture, stack)
        left = (state.bag[:, None] == np.arange(PIECES)[None]) & (np.arange(PIECES)[:, None] >= state.bag_index)
        return self.screen.draw(
            {
                "board": board,
                "next": state.next_pieces,
                "bag": 2 * np.arange(PIECES) + jnp.any(left, axis=0),
                "score": state.score,
            }
        )


class TetrisEasy(Tetris):
    """Three previews, one cell a step, two with down."""

    previews, gravity, soft_drop = 3, 1, 2


class TetrisMedium(Tetris):
    """Two previews, one cell a step, two with down."""

    previews, gravity, soft_drop = 2, 1, 2


class TetrisHard(Tetris):
    """One preview, two cells a step, three with down."""

    previews, gravity, soft_drop = 1, 2, 3


def _box_bits(bits: np.ndarray, state: TetrisState) -> jax.Array:
    """The four rows of the falling piece's box as bits of a board's row, int32[4]."""
    return jnp.asarray(bits)[state.piece, state.rotation] << (state.x + OUTSIDE)


def _cells_of(box_bits: jax.Array, y: jax.Array) -> jax.Array:
    """The cells of the board that a box with its top in row y covers, bool[ROWS, COLUMNS]."""
    rows = jnp.sum(jnp.where(_ROW[None] == y + np.arange(4)[:, None], box_bits[:, None], 0), axis=0)
    return (rows[:, None] & _BIT[None]) != 0


def _permutation(key: jax.Array) -> jax.Array:
    """A uniform permutation of the pieces, int32[7]."""
    return shuffled(key, PIECES, PIECES).astype(jnp.int32)


def _cells(cell: int) -> np.ndarray:
    """Every picture of a cell of the board, uint8[22, cell, cell, 3].

    The stack has gaps between its cells and the falling piece has none, so that the two can be told apart where they
    touch and have the same colour.
    """
    gap, rim = (cell + 4) // 8, cell // 3
    empty = blank(cell, GROUND)
    stack = [draw_rectangle((0, 0), (cell - gap, cell - gap), color, empty) for color in COLORS]
    falling = [blank(cell, color) for color in COLORS]
    marked = [draw_rectangle((rim, rim), (cell - rim, cell - rim), MARK, picture) for picture in falling]
    crashed = draw_x((0, 0), (cell, cell), cell / 5, MARK, empty)
    return np.stack([empty, *stack, *falling, *marked, crashed])


def _small(piece: int, height: int, first: int, block: int, color: tuple[int, int, int]) -> np.ndarray:
    """A piece as it spawns, from row `first` of its box on: uint8[height, 4 * block, 3]."""
    picture = blank((height, 4 * block), GROUND)
    for row, column in np.argwhere(COVERED[piece, 0]).tolist():
        x, y = column * block, MARGIN + (row - first) * block
        picture = draw_rectangle((x, y), (x + block, y + block), color, picture)
    return picture
