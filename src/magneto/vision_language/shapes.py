"""Drawn scenes: 3 x 3 cells of 16 x 16 pixels, each empty or with a coloured shape.

A scene is a row of numbers, (CELLS,) int64: `EMPTY`, or shape * colours + colour.
"""

from __future__ import annotations

import numpy as np

GRID, CELL = 3, 16
SIZE = GRID * CELL
CELLS = GRID * GRID
PLACES = (
    *("top left", "top", "top right"),
    *("left", "middle", "right"),
    *("bottom left", "bottom", "bottom right"),
)
SHAPES = ("circle", "square", "cross")
COLOURS = ("red", "green", "blue", "yellow")
PAINT = ((205, 40, 40), (40, 150, 60), (50, 80, 200), (225, 190, 30))
EMPTY = -1
# Objects of a scene.
MOST_OBJECTS = 4
# Grey of the ground. There is no noise: k-means of patches would tell grounds apart by it.
GROUND = 230


def draw_scenes(count: int, random: np.random.Generator) -> np.ndarray:
    """Draw scenes of 1 to `MOST_OBJECTS` objects, in other cells each, (count, CELLS)."""
    objects = random.integers(1, MOST_OBJECTS + 1, (count, 1))
    rank = random.random((count, CELLS)).argsort(1)
    things = random.integers(0, len(SHAPES) * len(COLOURS), (count, CELLS))
    return np.where(rank < objects, things, EMPTY)


def shapes_of(scenes: np.ndarray) -> np.ndarray:
    """Return the number of the shape in each cell, `EMPTY` where there is none."""
    return np.where(scenes == EMPTY, EMPTY, scenes // len(COLOURS))


def colours_of(scenes: np.ndarray) -> np.ndarray:
    """Return the number of the colour in each cell, `EMPTY` where there is none."""
    return np.where(scenes == EMPTY, EMPTY, scenes % len(COLOURS))


def describe(scene: np.ndarray) -> str:
    """Return a caption: "a red circle at the top left and a blue cross at the right"."""
    return " and ".join(
        f"a {COLOURS[thing % len(COLOURS)]} {SHAPES[thing // len(COLOURS)]} at the {PLACES[cell]}"
        for cell, thing in enumerate(scene.tolist())
        if thing != EMPTY
    )


def silhouettes() -> np.ndarray:
    """Return where each shape, and at last nothing, has paint: (shapes + 1, CELL, CELL) boolean."""
    y, x = np.mgrid[:CELL, :CELL] - (CELL - 1) / 2
    half, thick = CELL * 0.38, CELL * 0.13
    near, far = np.minimum(abs(x), abs(y)), np.maximum(abs(x), abs(y))
    circle = x**2 + y**2 <= half**2
    square = far <= half * 0.9
    cross = (near <= thick) & (far <= half)
    return np.stack([circle, square, cross, np.zeros((CELL, CELL), bool)])


def render(scenes: np.ndarray) -> np.ndarray:
    """Return images of scenes, (count, CELLS), as uint8 (count, SIZE, SIZE, 3)."""
    cells = scenes.reshape(-1, GRID, GRID)
    # EMPTY is the last of both.
    painted = silhouettes()[shapes_of(cells)]
    paint = np.array([*PAINT, (0, 0, 0)], np.uint8)[colours_of(cells)]
    tiles = np.where(painted[..., None], paint[:, :, :, None, None], np.uint8(GROUND))
    return tiles.transpose(0, 1, 3, 2, 4, 5).reshape(-1, SIZE, SIZE, 3)
