"""What can be said of a drawn scene in a few words: colours, shapes, places, numbers.

How they are read::

    tell(scene, random)    # "the cross is red and the number of squares is 2 and there is no ..."
"""

from __future__ import annotations

import numpy as np

from magneto.vision_language.shapes import COLOURS, EMPTY, PLACES, SHAPES

# Facts of a text, each of another kind.
TOLD = 3

Thing = tuple[int, int, int]
"""Numbers of the place, the shape and the colour of something in a scene."""


def tell(scene: np.ndarray, random: np.random.Generator) -> str:
    """Return some facts of a scene, (CELLS,), in an order that is drawn too."""
    kinds = [kind for kind in facts(scene) if kind]
    chosen = random.permutation(len(kinds))[:TOLD]
    return " and ".join(str(random.choice(kinds[number])) for number in chosen)


def facts(scene: np.ndarray) -> list[list[str]]:
    """Return all facts of a scene by kind; a kind may have none."""
    things: list[Thing] = [
        (cell, thing // len(COLOURS), thing % len(COLOURS))
        for cell, thing in enumerate(scene.tolist())
        if thing != EMPTY
    ]
    return [unlike_others(things), places(things), numbers(things), there(things), lacking(things)]


def unlike_others(things: list[Thing]) -> list[str]:
    """Say "the circle is red" of the only circle, and "red is the circle" of all that is red."""
    shapes = [shape for _, shape, _ in things]
    colours = [colour for _, _, colour in things]
    return [
        *(f"the {SHAPES[s]} is {COLOURS[c]}" for _, s, c in things if shapes.count(s) == 1),
        *(f"{COLOURS[c]} is the {SHAPES[s]}" for _, s, c in things if colours.count(c) == 1),
    ]


def places(things: list[Thing]) -> list[str]:
    """Say "at the top is a red circle" of everything."""
    return [f"at the {PLACES[place]} is a {COLOURS[c]} {SHAPES[s]}" for place, s, c in things]


def numbers(things: list[Thing]) -> list[str]:
    """Say "the number of circles is 2" of every shape."""
    shapes = [shape for _, shape, _ in things]
    return [f"the number of {plural(word)} is {shapes.count(s)}" for s, word in enumerate(SHAPES)]


def there(things: list[Thing]) -> list[str]:
    """Say "there is a red circle" of everything."""
    return [f"there is a {COLOURS[c]} {SHAPES[s]}" for s, c in sorted({t[1:] for t in things})]


def lacking(things: list[Thing]) -> list[str]:
    """Say "there is no red circle" where a circle and something red are."""
    both = {thing[1:] for thing in things}
    return [
        f"there is no {COLOURS[c]} {SHAPES[s]}"
        for s in sorted({shape for _, shape, _ in things})
        for c in sorted({colour for _, _, colour in things})
        if (s, c) not in both
    ]


def plural(shape: str) -> str:
    """Return the word for several of a shape."""
    return f"{shape}es" if shape.endswith("s") else f"{shape}s"
