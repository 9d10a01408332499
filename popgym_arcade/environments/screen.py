"""The drawing engine: a background, sprites at fixed places, one frame.

A `Screen` is built once, in numpy, from a background and a few groups of `Sprites`: places on the canvas that each
show one of a set of pictures. To draw a frame, a game says which picture goes where, as small integer arrays:

    screen = Screen(background, {"board": Sprites(grid(...), tiles), "score": number(...)})
    frame = screen.draw({"board": tile_map, "score": state.score})

**How it draws.** A frame is cut into strips of 8 pixels, 16 or 32 per row, and one table holds all strips that can ever
appear. Drawing is one gather of strips from it: each byte of the frame is written once and nothing is drawn over, so it
runs at about the speed of memory and costs the same however many tiles there are and whatever they show. All strips
have the same width, so that they follow each other in memory as the frame's pixels do. A strip may therefore meet the
edges of two or three sprites, and the table holds every combination of their pictures (equal ones once). The indices
cost little, because the rows from one sprite edge to the next (a band) share theirs.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from popgym_arcade.environments.draw_utils import draw_digit, draw_grid, draw_str, draw_sub_canvas

STRIP = 8  # pixels; divides every frame size, and few sprites are so narrow that more than two meet in one strip
MOST_COMBINATIONS = 100_000  # of pictures in one strip, to keep the table small

# Places by frame size, as (x0, y0), (x1, y1); right and bottom are exclusive.
SCORE_BOX = {128: ((43, 1), (85, 15)), 256: ((86, 2), (171, 30))}
GAUGE_BOX = {128: ((86, 1), (128, 15)), 256: ((171, 2), (256, 30))}  # right of the score, for a second number
NAME_BOX = {128: ((0, 115), (128, 128)), 256: ((0, 231), (256, 256))}
# Pixels of the board and of a cell of n x n grids with 2-pixel lines, by frame size and n.
GRID_BOARDS = {
    128: {4: (94, 21), 6: (92, 13), 8: (90, 9), 10: (92, 7), 12: (98, 6)},
    256: {4: (186, 44), 6: (182, 28), 8: (186, 21), 10: (192, 17), 12: (182, 13)},
}
GRID_LINE = 2

Box = tuple[tuple[int, int], tuple[int, int]]
Color = tuple[int, int, int]


class Sprites(NamedTuple):
    """Places that each show one of the same pictures.

    corners: int[*shape, 2], the top left pixel (x, y) of each place; `shape` is the shape of the indices to draw.
    pictures: uint8[K, height, width, 3].
    """

    corners: np.ndarray
    pictures: np.ndarray


def blank(size: int | tuple[int, int], color: Color) -> np.ndarray:
    """A canvas of one colour, uint8[height, width, 3]; `size` is (height, width), or one number for a square."""
    height, width = (size, size) if isinstance(size, int) else size
    return np.full((height, width, 3), color, np.uint8)


def titled(obs_size: int, color: Color, name: str, name_color: Color) -> np.ndarray:
    """The empty screen of a game: a canvas with the family's name in capitals at the bottom."""
    return draw_str(*NAME_BOX[obs_size], name_color, blank(obs_size, color), name.upper())


def with_lined_board(cells: int, ground: Color, lines: Color, canvas: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Put an n x n board with lines between and around its cells in the middle of a screen.

    Returns the canvas, the corners int[n, n, 2] of the cells, and the width of a cell in pixels.
    """
    board, cell = GRID_BOARDS[len(canvas)][cells]
    canvas = draw_sub_canvas(draw_grid(cell, GRID_LINE, lines, blank(board, ground)), canvas)
    first = (len(canvas) - board) // 2 + GRID_LINE
    return canvas, grid((first, first), (cells, cells), cell + GRID_LINE), cell


def grid(top_left: tuple[int, int], shape: tuple[int, int], pitch: int | tuple[int, int]) -> np.ndarray:
    """Corners int[rows, columns, 2] of cells `pitch` pixels apart: (to the right, down), or one number for both."""
    x, y = np.meshgrid(np.arange(shape[1]), np.arange(shape[0]))
    return np.stack([x, y], -1) * pitch + np.array(top_left)


def number(box: Box, color: Color, canvas: np.ndarray, largest: int = 999) -> Sprites:
    """The numbers 0..largest, written as `draw_number` writes them in `box` on `canvas`; larger ones show `largest`.

    The place covers just the digits of `largest`, so that boxes may overlap where nothing is written.
    """
    (left, top), (right, bottom) = box
    dot = (bottom - top - 2) // 5
    height, width = 5 * dot, 5 * (dot // 2 + 1)
    pitch = width + 2
    black = blank((height, width), (0, 0, 0))
    digits = np.stack([draw_digit((0, 0), (width, height), (1, 1, 1), black, digit) for digit in range(10)])

    def start(count: int) -> int:
        return left + (right - left - count * pitch + 2) // 2

    count = len(str(largest))
    corner = np.array([start(count), top + (bottom - top - height) // 2])
    ground = canvas[corner[1] : corner[1] + height, corner[0] : corner[0] + count * pitch - 2]
    pictures = np.tile(ground, (largest + 1, 1, 1, 1))
    numbers = np.arange(largest + 1)
    lengths = np.array([len(str(value)) for value in numbers])
    for length in range(1, count + 1):
        mine = numbers[lengths == length]
        for place in range(length):
            x = start(length) - corner[0] + place * pitch
            dots = digits[mine // 10 ** (length - 1 - place) % 10]
            pictures[mine, :, x : x + width] = np.where(dots, np.uint8(color), pictures[mine, :, x : x + width])
    return Sprites(corner, pictures)


class Screen:
    """Draws frames uint8[S, S, 3] from a background and groups of sprites, see the module's docstring.

    The background is uint8[S, S, 3], S a multiple of 8. Raises ValueError if a place lies partly outside of it, if two
    places overlap, or if places with too many pictures meet in one strip.
    """

    def __init__(self, background: np.ndarray, groups: Mapping[str, Sprites]):
        self.size = len(background)
        self._shapes = {name: sprites.corners.shape[:-1] for name, sprites in groups.items()}
        self._last = {name: len(sprites.pictures) - 1 for name, sprites in groups.items()}
        table = _StripTable(background, groups)
        self._strips = np.concatenate(table.blocks).reshape(-1, STRIP * 3)
        self._starts = np.array(table.starts, np.int32)
        self._place, self._stride = table.place, table.stride
        heights = [stop - start for start, stop in table.bands]
        self._offsets = np.arange(max(heights), dtype=np.int32)[:, None, None]
        # For every row of the frame, its position among the rows of all bands as `draw` lays them out.
        band, row = np.repeat(np.arange(len(heights)), heights), np.concatenate([np.arange(h) for h in heights])
        self._row = (row * len(heights) + band).astype(np.int32)

    def draw(self, indices: Mapping[str, jax.Array]) -> jax.Array:
        """Draw the frame in which every place of every group shows the picture with its index.

        `indices` holds for each group an integer array of its places' shape; values outside 0..K-1 are clipped.
        Raises ValueError for other groups or another shape.
        """
        shapes = {name: np.shape(index) for name, index in indices.items()}
        if shapes != self._shapes:
            raise ValueError(f"this screen draws indices of the shapes {self._shapes}, not {shapes}")
        shown = [jnp.clip(jnp.asarray(indices[name], jnp.int32), 0, last) for name, last in self._last.items()]
        shown = jnp.concatenate([*map(jnp.ravel, shown), jnp.ones(1, jnp.int32)])
        # XLA on a CPU fuses whatever is used only once into the last gather and recomputes it for every strip. It
        # leaves the game's own arithmetic alone because two gathers or more read `shown`, and the search for a block
        # because each start is used for all rows of its band.
        entry = sum(_take(shown, place) * stride for place, stride in zip(self._place, self._stride, strict=True))
        start = _take(self._starts, entry)
        strips = (start[None] + self._offsets).reshape(-1, start.shape[1])
        return _take(self._strips, _take(strips, self._row)).reshape(self.size, self.size, 3)


def _take(table: np.ndarray | jax.Array, index: np.ndarray | jax.Array) -> jax.Array:
    """`table[index]` for indices known to be in range."""
    return jnp.asarray(table).at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


class _StripTable:
    """Cuts a screen into strips.

    bands: the rows (start, stop) between one edge of a sprite and the next.
    blocks: uint8[rows, STRIP, 3] arrays, the distinct contents of a strip's column over a band's rows; stacked, they
        are the table of strips.
    starts: for each combination of pictures, the row of the table where its block starts.
    place, stride: int32[m, bands, S / STRIP]. With the indices of all places, and a 1 at their end, in one vector, the
        block to show starts at starts[sum over m of indices[place[m]] * stride[m]].
    """

    def __init__(self, background: np.ndarray, groups: Mapping[str, Sprites]):
        self._background = background
        self._places = [(group, x, y) for group in groups.values() for x, y in group.corners.reshape(-1, 2).tolist()]
        self._check(groups)
        self.blocks: list[np.ndarray] = []
        self.starts: list[int] = []
        self._rows = 0  # in all blocks so far
        self._start_of: dict[bytes, int] = {}
        self._base_of: dict[tuple, int] = {}
        edges = {edge for group, _, y in self._places for edge in (y, y + group.pictures.shape[1])}
        edges = sorted(edges | {0, len(background)})
        self.bands = list(zip(edges[:-1], edges[1:], strict=True))
        columns = len(background) // STRIP
        meeting = [[self._meeting(band, column) for column in range(columns)] for band in self.bands]
        most = max(len(places) for row in meeting for places in row)
        self.place = np.full((1 + most, len(self.bands), columns), len(self._places), np.int32)
        self.stride = np.zeros_like(self.place)
        for row, column in np.ndindex(len(self.bands), columns):
            places = meeting[row][column]
            counts = [len(self._places[place][0].pictures) for place in places]
            self.place[1 : 1 + len(places), row, column] = places
            self.stride[0, row, column] = self._add(self.bands[row], column, places)
            self.stride[1 : 1 + len(places), row, column] = [math.prod(counts[m + 1 :]) for m in range(len(counts))]

    def _check(self, groups: Mapping[str, Sprites]) -> None:
        """Raises ValueError for places that overlap or extend beyond the screen."""
        taken = np.zeros(self._background.shape[:2], bool)
        names = [name for name, group in groups.items() for _ in range(group.corners[..., 0].size)]
        for name, (group, x, y) in zip(names, self._places, strict=True):
            height, width = group.pictures.shape[1:3]
            place = taken[max(y, 0) : y + height, max(x, 0) : x + width]
            if place.shape != (height, width):
                raise ValueError(f"a place of {name!r} at {(x, y)} lies partly outside the screen")
            if place.any():
                raise ValueError(f"a place of {name!r} at {(x, y)} overlaps another place")
            place[:] = True

    def _meeting(self, band: tuple[int, int], column: int) -> list[int]:
        """Which places a strip's column meets in a band."""
        left = column * STRIP
        return [
            index
            for index, (group, x, y) in enumerate(self._places)
            if y <= band[0] < y + group.pictures.shape[1] and x < left + STRIP and left < x + group.pictures.shape[2]
        ]

    def _add(self, band: tuple[int, int], column: int, places: list[int]) -> int:
        """Add the blocks for every combination of the places' pictures; return where their starts begin."""
        top, bottom, left = *band, column * STRIP
        ground = self._background[top:bottom, left : left + STRIP]
        met = [(group, x - left, y - top) for group, x, y in (self._places[place] for place in places)]
        signature = (ground.tobytes(), *((id(group.pictures), x, y) for group, x, y in met))
        if signature in self._base_of:
            return self._base_of[signature]
        counts = [len(group.pictures) for group, _, _ in met]
        if math.prod(counts) > MOST_COMBINATIONS:
            raise ValueError(f"places with {' x '.join(map(str, counts))} pictures meet in a strip of {STRIP} pixels")
        combinations = np.broadcast_to(ground, (*counts, *ground.shape)).copy()
        for axis, (group, x, y) in enumerate(met):
            part = group.pictures[:, -y : bottom - top - y, max(-x, 0) : STRIP - x]
            shape = [1] * len(met)
            shape[axis] = counts[axis]
            combinations[..., max(x, 0) : x + group.pictures.shape[2], :] = part.reshape(*shape, *part.shape[1:])
        base = self._base_of[signature] = len(self.starts)
        self.starts.extend(self._start(block) for block in combinations.reshape(-1, *ground.shape))
        return base

    def _start(self, block: np.ndarray) -> int:
        """The table's row where this block starts; a new block is appended."""
        content = block.tobytes()
        if content not in self._start_of:
            self._start_of[content] = self._rows
            self.blocks.append(block)
            self._rows += len(block)
        return self._start_of[content]
