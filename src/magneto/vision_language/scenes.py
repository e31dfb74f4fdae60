"""Built-in scenes of shapes with captions, questions and statements.

For each question, all answers are equally frequent. Each statement is as often true as false. Each
pair of images has one true and one false statement. Neither the images alone nor the texts alone
are enough for right answers. The recipe's seed does not change the scenes. Each data set has two
tables, "train" and "validation".

A scene has 3 x 3 cells of 16 x 16 pixels. A cell is empty or contains a coloured shape. A scene is
an int64 array (CELLS,). Its values are `EMPTY` for an empty cell, else shape * (number of colours)
+ colour.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from magneto.data.table import Table, table_of_columns
from magneto.vision.decoding import Pixels
from magneto.vision_language.config import BUILTIN

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
# Largest number of objects in a scene.
MOST_OBJECTS = 4
# Grey of the background. It has no noise, since k-means would cluster empty patches by their noise.
GROUND = 230
# Number of images with captions. There are as many images alone, and a quarter more texts alone.
PAIRS = {"train": 4000, "validation": 400}
# Scenes for each of the 96 pairs of question and answer.
ANSWERED = {"train": 60, "validation": 8}
# Rounds. In each round, every kind of statement and every thing has six pairs of scenes for which
# the statement about the thing is true.
ROUNDS = {"train": 30, "validation": 5}
THINGS = len(SHAPES) + len(COLOURS)
# Number of scenes from which the scenes of statements are taken.
POOL = 32768
NUMBERS = ("0", "1", "2", "3")
# Number of scenes generated at a time. Only suitable scenes are used.
DRAWN = 4096
# Seeds of the splits and of the sets.
SPLITS = {"train": 1, "validation": 2}
PAIR_SET, IMAGE_SET, TEXT_SET, QUESTION_SET, STATEMENT_SET = range(5)

Condition = Callable[[np.ndarray], np.ndarray]
"""Function that tests scenes (count, CELLS) for a condition, and returns booleans (count,)."""


# Statements about a thing, and their truth given whether the left and right image have it.
STATEMENT_KINDS: dict[str, Callable[[bool, bool], bool]] = {
    "both images have": lambda left, right: left and right,
    "some image has": lambda left, right: left or right,
}


def scene_pairs(which: int = PAIR_SET) -> dict[str, Table]:
    """Return images, each with a "caption" that names all objects and their positions.

    `which` selects one of two sets of images, `PAIR_SET` or `IMAGE_SET`.
    """
    found = {}
    for split, count in PAIRS.items():
        scenes = draw_scenes(count, generator(split, which))
        columns = {"image": Pixels(render(scenes)), "caption": [*map(describe, scenes)]}
        found[split] = table_of_columns(columns, BUILTIN)
    return found


def scene_texts() -> dict[str, list[str]]:
    """Return texts for "train" and "validation": questions, statements, and captions of scenes."""
    asked = [question for question, _, _ in question_kinds()]
    others = list(dict.fromkeys(asked + statements()))
    found = {}
    for split, count in PAIRS.items():
        random = generator(split, TEXT_SET)
        texts = [describe(scene) for scene in draw_scenes(count, random)]
        texts += others * (count // (4 * len(others)))
        found[split] = [texts[number] for number in random.permutation(len(texts))]
    return found


def scene_questions() -> dict[str, Table]:
    """Return images, each with a "question" and an "answer"."""
    found = {}
    for split, each in ANSWERED.items():
        random = generator(split, QUESTION_SET)
        kinds = question_kinds()
        scenes = np.concatenate([draw_where(holds, each, random) for _, _, holds in kinds])
        order = random.permutation(len(scenes))
        images = Pixels(render(scenes[order]))
        questions, answers = ([kinds[row // each][part] for row in order] for part in (0, 1))
        columns = {"image": images, "question": questions, "answer": answers}
        found[split] = table_of_columns(columns, BUILTIN)
    return found


def scene_statements() -> dict[str, Table]:
    """Return rows with a "left" and a "right" image, a "statement" about both, and its "truth".

    The two statements about a pair of images differ only in the thing that they name.
    """
    found = {}
    for split, rounds in ROUNDS.items():
        random = generator(split, STATEMENT_SET)
        pool, things = draw_scenes(POOL, random), conditions()
        has = np.stack([condition(pool) for _, condition in things], 1)
        scenes, rows = [], []
        for _, (words, holds) in product(range(rounds), STATEMENT_KINDS.items()):
            # Whether the left and the right image have a thing, for true and false statements.
            patterns = [*product((True, False), repeat=2)]
            true = [pattern for pattern in patterns if holds(*pattern)]
            false = [pattern for pattern in patterns if not holds(*pattern)]
            for first, step in product(range(THINGS), range(THINGS - 1)):
                second, pair = (first + 1 + step) % THINGS, len(scenes) // 2
                rows += [(pair, f"{words} {things[first][0]}", True)]
                rows += [(pair, f"{words} {things[second][0]}", False)]
                both = true[step % len(true)], false[step % len(false)]
                for wanted in zip(*both, strict=True):
                    fitting = np.flatnonzero((has[:, [first, second]] == wanted).all(1))
                    scenes.append(pool[random.choice(fitting)])
        mixed = [rows[number] for number in random.permutation(len(rows))]
        pairs, sentences, truths = zip(*mixed, strict=True)
        left, right = (Pixels(render(np.stack(scenes[side::2]))[[*pairs]]) for side in (0, 1))
        columns = {"left": left, "right": right, "statement": [*sentences], "truth": [*truths],
                   "group": [*pairs]}  # fmt: skip
        found[split] = table_of_columns(columns, BUILTIN)
    return found


def statements() -> list[str]:
    return [f"{words} {thing}" for words in STATEMENT_KINDS for thing, _ in conditions()]


def question_kinds() -> list[tuple[str, str, Condition]]:
    kinds: list[tuple[str, str, Condition]] = []
    for (i, shape), (j, colour) in product(enumerate(SHAPES), enumerate(COLOURS)):
        thing = i * len(COLOURS) + j
        kinds += [
            (f"what colour is the {shape}", colour, alone(shapes_of, i, thing)),
            (f"what shape is {colour}", shape, alone(colours_of, j, thing)),
            (f"is there a {colour} {shape}", "yes", lambda s, t=thing: (s == t).any(1)),
            (f"is there a {colour} {shape}", "no", apart(i, j, thing)),
        ]
    for (i, shape), (n, number) in product(enumerate(SHAPES), enumerate(NUMBERS)):
        plural = f"{shape}es" if shape.endswith("s") else f"{shape}s"
        kinds.append((f"how many {plural} are there", number,
                      lambda s, i=i, n=n: (shapes_of(s) == i).sum(1) == n))  # fmt: skip
    for (p, place), (j, colour) in product(enumerate(PLACES), enumerate(COLOURS)):
        kinds.append((f"what colour is at the {place}", colour,
                      lambda s, p=p, j=j: colours_of(s)[:, p] == j))  # fmt: skip
    return kinds


def conditions() -> list[tuple[str, Condition]]:
    shapes = [(f"a {shape}", lambda s, i=i: (shapes_of(s) == i).any(1))
              for i, shape in enumerate(SHAPES)]  # fmt: skip
    colours = [(f"something {colour}", lambda s, j=j: (colours_of(s) == j).any(1))
               for j, colour in enumerate(COLOURS)]  # fmt: skip
    return [*shapes, *colours]


def alone(feature: Callable[[np.ndarray], np.ndarray], value: int, thing: int) -> Condition:
    return lambda scenes: ((feature(scenes) == value).sum(1) == 1) & (scenes == thing).any(1)


def apart(shape: int, colour: int, thing: int) -> Condition:
    return lambda scenes: (
        (shapes_of(scenes) == shape).any(1)
        & (colours_of(scenes) == colour).any(1)
        & ~(scenes == thing).any(1)
    )


def generator(split: str, which: int) -> np.random.Generator:
    return np.random.default_rng([SPLITS[split], which])


def draw_where(holds: Condition, count: int, random: np.random.Generator) -> np.ndarray:
    found = np.zeros((0, CELLS), np.int64)
    while len(found) < count:
        scenes = draw_scenes(DRAWN, random)
        found = np.concatenate([found, scenes[holds(scenes)]])
    return found[:count]


def draw_scenes(count: int, random: np.random.Generator) -> np.ndarray:
    objects = random.integers(1, MOST_OBJECTS + 1, (count, 1))
    rank = random.random((count, CELLS)).argsort(1)
    things = random.integers(0, len(SHAPES) * len(COLOURS), (count, CELLS))
    return np.where(rank < objects, things, EMPTY)


def shapes_of(scenes: np.ndarray) -> np.ndarray:
    return np.where(scenes == EMPTY, EMPTY, scenes // len(COLOURS))


def colours_of(scenes: np.ndarray) -> np.ndarray:
    return np.where(scenes == EMPTY, EMPTY, scenes % len(COLOURS))


def describe(scene: np.ndarray) -> str:
    return " and ".join(
        f"a {COLOURS[thing % len(COLOURS)]} {SHAPES[thing // len(COLOURS)]} at the {PLACES[cell]}"
        for cell, thing in enumerate(scene.tolist())
        if thing != EMPTY
    )


def silhouettes() -> np.ndarray:
    y, x = np.mgrid[:CELL, :CELL] - (CELL - 1) / 2
    half, thick = CELL * 0.38, CELL * 0.13
    near, far = np.minimum(abs(x), abs(y)), np.maximum(abs(x), abs(y))
    circle = x**2 + y**2 <= half**2
    square = far <= half * 0.9
    cross = (near <= thick) & (far <= half)
    return np.stack([circle, square, cross, np.zeros((CELL, CELL), bool)])


def render(scenes: np.ndarray) -> np.ndarray:
    """Draw scenes as images, uint8 (count, SIZE, SIZE, 3)."""
    cells = scenes.reshape(-1, GRID, GRID)
    # EMPTY indexes the last mask and the last colour.
    painted = silhouettes()[shapes_of(cells)]
    paint = np.array([*PAINT, (0, 0, 0)], np.uint8)[colours_of(cells)]
    tiles = np.where(painted[..., None], paint[:, :, :, None, None], np.uint8(GROUND))
    return tiles.transpose(0, 1, 3, 2, 4, 5).reshape(-1, SIZE, SIZE, 3)
