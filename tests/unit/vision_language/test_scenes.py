"""The built-in scenes: what is said is so; no text and no image alone gives an answer away."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from magneto.data.table import Table
from magneto.vision_language import scenes
from tests.shrunken import draw_few


@pytest.fixture(autouse=True, scope="module")
def few_scenes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        draw_few(patch)
        yield


questions = cache(scenes.scene_questions)
statements = cache(scenes.scene_statements)
pairs = cache(scenes.scene_pairs)


def seen(image: np.ndarray) -> dict[str, tuple[str, str]]:
    """Read an image without the code that drew it: place to colour and shape."""
    found = {}
    for number, place in enumerate(scenes.PLACES):
        top, left = scenes.CELL * (number // 3), scenes.CELL * (number % 3)
        cell = image[top : top + scenes.CELL, left : left + scenes.CELL].astype(int)
        ink = (cell != scenes.GROUND).any(-1)
        if not ink.any():
            continue
        colour = scenes.COLOURS[scenes.PAINT.index(tuple(cell[ink][0]))]
        rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
        box = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        # A square fills its box, a circle most of it, a cross a middle row and a middle column.
        share = box.mean()
        shape = "square" if share == 1 else "circle" if share > 0.65 else "cross"
        found[place] = (colour, shape)
    return found


def answer(image: np.ndarray, question: str) -> str:
    """Answer a question by looking."""
    objects, words = seen(image), question.split()
    things = list(objects.values())
    if question.startswith("what colour is the "):
        return next(colour for colour, shape in things if shape == words[-1])
    if question.startswith("what shape is"):
        return next(shape for colour, shape in things if colour == words[-1])
    if question.startswith("is there a"):
        return "yes" if (words[-2], words[-1]) in things else "no"
    if question.startswith("how many"):
        plurals = {shape + ("es" if shape == "cross" else "s"): shape for shape in scenes.SHAPES}
        return str(sum(shape == plurals[words[2]] for _, shape in things))
    return objects[question.removeprefix("what colour is at the ")][0]


def test_a_cross_has_four_thin_arms() -> None:
    cross = scenes.silhouettes()[2]
    middle = scenes.CELL // 2
    inside, arm, outside = (middle + round(scenes.CELL * part) for part in (0.15, 0.3, 0.45))
    assert cross[middle, arm] and cross[arm, middle]
    assert not cross[inside, inside] and not cross[middle, outside]


def test_captions_and_answers_are_right() -> None:
    for split in ("train", "validation"):
        found, asked = pairs()[split], questions()[split]
        for number in range(0, len(found), 2):
            objects = seen(found[number]["image"].pixels())
            described = {part.split(" at the ")[1]: tuple(part.split(" at the ")[0].split()[1:])
                    for part in found[number]["caption"].split(" and ")}  # fmt: skip
            assert described == objects and 1 <= len(objects) <= scenes.MOST_OBJECTS
        for number in range(0, len(asked), 17):
            row = asked[number]
            assert answer(row["image"].pixels(), row["question"]) == row["answer"]


def test_scenes_to_validate_on_are_not_those_to_train_on() -> None:
    for found, side in ((pairs(), "image"), (questions(), "image"), (statements(), "left")):
        train, held = ({image.tobytes() for image in found[split].columns[side].all}
                       for split in ("train", "validation"))  # fmt: skip
        assert len(held & train) < len(held) / 2  # few scenes have one thing


def of(table: Table, *names: str) -> list[tuple]:
    """Return what some columns have in each row."""
    return list(zip(*(table.values(name) for name in names), strict=True))


def test_the_best_guess_from_text_alone_is_chance() -> None:
    """The commonest answer in training to each question, or to each statement, whatever is seen."""
    asked = {split: of(found, "question", "answer") for split, found in questions().items()}
    rows = {split: of(found, "statement", "truth") for split, found in statements().items()}
    assert guessed(rows) == 0.5
    answers: dict[str, set] = defaultdict(set)
    for question, word in asked["train"]:
        answers[question].add(word)
    chance = np.mean([1 / len(answers[question]) for question, _ in asked["validation"]])
    assert guessed(asked) == pytest.approx(chance) and chance < 0.34


def guessed(rows: dict[str, list]) -> float:
    counts: dict = defaultdict(Counter)
    for text, word in rows["train"]:
        counts[text][word] += 1
    return float(np.mean([counts[text].most_common(1)[0][0] == word
                          for text, word in rows["validation"]]))  # fmt: skip


def test_statements_are_right_and_no_pair_of_images_tells() -> None:
    rules = {"both images have": all, "some image has": any}
    for split in ("train", "validation"):
        found = statements()[split]
        truths = defaultdict(list)
        for pair, truth in of(found, "group", "truth"):
            truths[pair].append(truth)
        assert all(sorted(both) == [False, True] for both in truths.values())
        for number in range(0, len(found), 5):
            row = found[number]
            words = next(words for words in rules if row["statement"].startswith(words))
            thing = row["statement"].split()[-1]
            has = [thing in {word for each in seen(row[side].pixels()).values() for word in each}
                   for side in ("left", "right")]  # fmt: skip
            assert row["truth"] == rules[words](has), row["statement"]
