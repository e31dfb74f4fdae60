"""What the data of a task is: facts for people, and the fields of the recipe that follow from it.

Each function takes a task that has been built of its starting recipe and reads its data; nothing is
trained. What is derived is the smallest model input that shows the examples as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from magneto.data.problems import Counts
from magneto.language.labelled_texts import ROWS
from magneto.vision.config import IGNORED
from magneto.vision.input_size import derive_sizes, sample_images
from magneto.vision.segmentation import MaskReading, largest_class

# Share of texts that are read whole.
WHOLE = 0.99
# Characters of text for each word piece of the vocabulary.
CHARACTERS_A_PIECE = 200
# Of texts with labels: their words, not what is between them, tell the label.
LABELLED_CHARACTERS_A_PIECE = 50
# A model that begins from nothing hardly learns to compare texts from fewer pairs.
ENOUGH_PAIRS = 100_000
FEW_PAIRS = ("to compare texts is hardly learnt from so few pairs: begin with a masked-lm run on "
             "more text, --model.pretrained RUN")  # fmt: skip
# Examples for each step, by the epochs that few need and the batch of the recipe; and the least
# steps that train anything, and the most that take minutes.
IMAGES_A_STEP, IMAGE_STEPS = 64 / 60, (500, 2000)
TEXTS_A_STEP, TEXT_STEPS = 32 / 12, (500, 8000)
# Sizes of numbers that are learnt as they are.
FAR = 10
# Of fewer examples to validate on it is said how much an accuracy of them tells.
FEW_HELD = 200
VOCABULARIES = (512, 8192)
# Classes whose counts are shown.
SHOWN = 6


@dataclass(frozen=True)
class Finding:
    """What is known of a task's data.

    Attributes:
        facts: For people: what about, and what is so.
        options: Of the recipe, by its dotted fields.
        remarks: What a user should look at, in a sentence each.
    """

    facts: Sequence[tuple[str, str]]
    options: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()


Given = Mapping[str, Any]
"""Fields that the user sets, by their dotted names."""
Look = Callable[[Any, Given], Finding]


def parts(train: int, validation: int, unit: str) -> tuple[str, str]:
    """Return the row that says how much there is."""
    return f"{unit}s", f"{train:,} to train on, {validation:,} to validate on"


def steps_of(examples: int, each: float, limits: tuple[int, int]) -> int:
    """Return the steps for so many examples: some hundreds, a step for `each` of them."""
    wanted = 500 * round(examples / each / 500)
    return int(np.clip(wanted, *limits))


def few_held(count: int) -> list[str]:
    """Say how little few examples tell."""
    error = 0.5 / max(count, 1) ** 0.5
    line = f"{count} examples to validate on: an accuracy's standard error is up to {error:.2f}"
    return [line] if count < FEW_HELD else []


def far_from_units(numbers: np.ndarray) -> list[str]:
    """Say what to do with numbers whose mean and deviation are far from 0 and 1."""
    mean, deviation = numbers.mean(), numbers.std()
    if abs(mean) + deviation < FAR and deviation * FAR > 1:
        return []
    return [f"a model learns slowly to answer numbers of this size: subtract {mean:.4g} from each "
            f"and divide by {deviation:.4g} before training"]  # fmt: skip


def left_out(counts: Counts) -> list[tuple[str, str]]:
    """Return the row that says what was odd; none where nothing was."""
    said = counts.describe()
    return [("but", said.strip(" ()"))] if said.strip() else []


def balance(names: Iterable[str]) -> tuple[str, str]:
    """Return the row that says which classes there are and how often each comes."""
    counts = Counter(names).most_common()
    shown = [f"{name} {count:,}" for name, count in counts[:SHOWN]]
    rest = f", ... {counts[-1][0]} {counts[-1][1]:,}" if len(counts) > SHOWN else ""
    return "classes", f"{len(counts)}: {', '.join(shown)}{rest}"


def image_input(split: Any, given: Given) -> Finding:
    """Return how images are and how a model will see them: a square of at most 64 pixels a side.

    Raises:
        ValueError: If none of the images can be read, or one is so large that training would wait.
    """
    sample = sample_images(split)
    if sample.huge:
        raise ValueError(f"{sample.huge}, which are decoded each time it is drawn: shrink such "
                         "images first, to 512 pixels a side or so")  # fmt: skip
    smallest, largest = sample.sizes.min(0), sample.sizes.max(0)
    # What is given and no whole number is refused when the recipe is built of it.
    words = (str(given.get(f"model.{name}")) for name in ("image_size", "patch_size"))
    own = (int(word) if word.isdecimal() and int(word) else None for word in words)
    side, patch = derive_sizes(sample.median_side, *own)
    as_is = " x ".join(map(str, smallest[::-1]))
    if (smallest != largest).any():
        as_is += " to " + " x ".join(map(str, largest[::-1]))
    count = (side // patch) ** 2
    seen = f"{as_is}{', grey' if sample.grey else ''}; read as {side} x {side} in {count} patches"
    remarks = []
    if sample.median_side > 2 * side:
        remarks.append(f"images are shrunk to {side} x {side}, so that training takes minutes: "
                       f"--model.image_size {2 * side} --model.patch_size {2 * patch} shows more "
                       "at the same cost for the Transformer")  # fmt: skip
    options = {"model.image_size": side, "model.patch_size": patch, "model.max_length": count,
               "model.channels": 1 if sample.grey else 3}  # fmt: skip
    return Finding([("size", seen)], options, remarks)


def labelled_images(task: Any, given: Given) -> Finding:
    """Look at images with labels."""
    splits = task.splits
    seen = image_input(splits.train, given)
    names = [splits.classes[n] for n in splits.train.labels_of().tolist() if n >= 0]
    facts = [parts(len(splits.train), len(splits.validation), "image"), balance(names), *seen.facts]
    facts += left_out(splits.counts)
    # Left and right may be exchanged in pictures of things, not in signs that are drawn.
    flip = {} if seen.options["model.channels"] == 1 else {"data.augmentation.flip": 0.5}
    steps = steps_of(len(splits.train), IMAGES_A_STEP, IMAGE_STEPS)
    options = {**seen.options, **flip, "training.steps": steps}
    return Finding(facts, options, [*seen.remarks, *few_held(len(splits.validation))])


def plain_images(task: Any, given: Given) -> Finding:
    """Look at images without labels."""
    splits = task.splits
    seen = image_input(splits.train, given)
    options = {**seen.options, "model.max_length": seen.options["model.max_length"] + 1}
    facts = [parts(len(splits.train), len(splits.validation), "image"), *seen.facts]
    return Finding([*facts, *left_out(splits.counts)], options, seen.remarks)


def masked_images(task: Any, given: Given) -> Finding:
    """Look at images with masks."""
    splits = task.splits
    seen = image_input(splits.train, given)
    largest = largest_class(splits.train, MaskReading(IGNORED))
    side = seen.options["model.image_size"]
    facts = [parts(len(splits.train), len(splits.validation), "image"),
             ("classes", f"{largest + 1}, by the numbers in the masks; 255 is no class"),
             *seen.facts, *left_out(splits.counts)]  # fmt: skip
    options = {**seen.options, "model.channels": 3, "model.classes": largest + 1,
               "model.stride": side}  # fmt: skip
    return Finding(facts, options, seen.remarks)


def vocabulary_of(characters: int, each: int = CHARACTERS_A_PIECE) -> int:
    """Return the size of a vocabulary with a piece for each so many characters: a power of two."""
    wanted = characters / each
    return int(np.clip(2 ** round(np.log2(max(wanted, 1))), *VOCABULARIES))


def words_in(texts: Sequence[str]) -> str:
    """Say how many words texts have."""
    counts = np.array([len(text.split()) for text in texts] or [0])
    return f"{np.median(counts):.0f} words, {counts.max():,} at most"


def labelled_texts(task: Any, given: Given) -> Finding:
    """Look at texts with labels."""
    train, held = task.texts.train, task.texts.validation
    texts, labels = train.values("text"), train.values("label")
    pairs = train.values("pair") if "pair" in train.columns else []
    characters = sum(map(len, texts)) + sum(map(len, pairs))
    remarks = [FEW_PAIRS] if pairs and len(train) < ENOUGH_PAIRS else []
    if task.data_config.regression:
        numbers = np.array(labels, float)
        remarks += far_from_units(numbers)
        answer = ("numbers", f"{numbers.min():g} to {numbers.max():g}, {numbers.mean():.4g} on "
                             f"average, standard deviation {numbers.std():.4g}")  # fmt: skip
    else:
        answer = balance(labels)
        remarks += few_held(sum(map(len, held.values())))
    lengths = np.array([len(a) + len(b) for a, b in zip(texts, pairs or [""] * len(texts),
                                                        strict=True)])  # fmt: skip
    # A word piece of a small vocabulary has about three characters; two tokens frame a text.
    tokens = int(np.quantile(lengths, WHOLE) / 2.5) + 8
    longest = int(np.clip(8 * -(-tokens // 8), 16, 256))
    size = vocabulary_of(characters, LABELLED_CHARACTERS_A_PIECE)
    facts = [
        parts(len(train), sum(map(len, held.values())), "text"),
        answer,
        ("length", f"{words_in(texts)}; read up to {longest} of {size:,} word pieces"),
    ]
    options = {"data.max_length": longest, "data.vocab_size": size}
    options["training.steps"] = steps_of(len(train), TEXTS_A_STEP, TEXT_STEPS)
    odd = Counts(task.texts.counts)
    del odd[ROWS]
    return Finding([*facts, *left_out(odd)], options, remarks)


def running_text(task: Any, given: Given) -> Finding:
    """Look at text without labels."""
    train, held = (task.documents(split) for split in ("train", "validation"))
    characters = sum(map(len, train))
    size = vocabulary_of(characters)
    facts = [
        ("documents", f"{len(train):,} to train on, {len(held):,} to validate on"),
        ("text", f"{characters:,} characters to train on, in {size:,} word pieces"),
    ]
    return Finding(facts, {"data.vocab_size": size})


def images_with_words(column: str) -> Look:
    """Return what looks at images with words: questions, statements, captions.

    Args:
        column: That has the words.
    """

    def look(task: Any, given: Given) -> Finding:
        train, held = task.splits.train, task.splits.validation
        seen = image_input(train.images[0], given)
        texts = list(train.values(column))
        words = [text for each in texts for text in ([each] if isinstance(each, str) else each)]
        longest = int(np.quantile([len(text) for text in words], WHOLE) / 2) + 8
        size = int(np.clip(vocabulary_of(sum(map(len, words))), 512, 2048))
        options = {**seen.options, "model.channels": 3, "data.vocab_size": size,
                   "model.max_length": int(np.clip(8 * -(-longest // 8), 16, 128))}  # fmt: skip
        facts = [parts(len(train), len(held), "row"), *seen.facts, (f"{column}s", words_in(words))]
        return Finding(facts, options, seen.remarks)

    return look


def recordings(task: Any, given: Given) -> Finding:
    """Look at recordings with transcripts."""
    splits = task.speech.splits
    train, held = splits.train, splits.validation
    seconds, texts = train.seconds, train.texts
    words = Counter(word for text in texts for word in text.split())
    facts = [
        parts(len(train), len(held), "recording"),
        ("sound", f"{seconds.sum() / 3600:.2f} hours to train on, {np.median(seconds):.1f} s each, "
         f"{seconds.max():.1f} s at most"),
        ("words", f"{words_in(texts)}; {len(words):,} different ones"),
    ]  # fmt: skip
    return Finding(facts)


def parallel_text(task: Any, given: Given) -> Finding:
    """Look at lines in two languages or more."""
    lines = task.text.describe(task.data_config.source)
    directions = ", ".join(f"{a} to {b}" for a, b in task.text.directions)
    return Finding([("directions", directions), ("lines", "; ".join(lines))])
