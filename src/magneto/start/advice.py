"""Advice for a source: facts about its data, a derived recipe, and baselines.

The facts come from the data, without any training. To train fast, the derived recipe makes inputs
as small as the examples allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from magneto.data.documents import DOCUMENTS
from magneto.data.problems import Counts
from magneto.language.labelled_texts import ROWS
from magneto.language.text import derive_length
from magneto.progress import Progress
from magneto.recipe import Recipe, load_recipe
from magneto.speech.data import KEPT, READ
from magneto.start import baselines
from magneto.start.baselines import Baseline, Scored
from magneto.start.candidates import Candidate
from magneto.training.task import Task
from magneto.vision.config import derive_sizes
from magneto.vision.input_size import sample_images

# Longest labelled text in tokens that trains in minutes.
LONGEST_LABELLED_TEXT = 256
# Characters of text per token of the vocabulary.
CHARACTERS_A_PIECE = 200
# The same for labelled texts, whose label depends on words.
LABELLED_CHARACTERS_A_PIECE = 50
# Pairs below which a model without pre-training hardly learns to compare texts.
ENOUGH_PAIRS = 100_000
FEW_PAIRS = ("too few pairs to learn to compare texts: start from a masked-lm run on more text "
             "(--model.pretrained RUN)")  # fmt: skip
# Examples in the data for each step of the training (the recipe's batch size divided by the epochs
# that small sets need), and the smallest and largest number of steps.
IMAGES_A_STEP, IMAGE_STEPS = 64 / 60, (500, 2000)
TEXTS_A_STEP, TEXT_STEPS = 32 / 12, (500, 8000)
# Mean or deviation from which numbers should be normalised.
LARGE_NUMBER = 10
# Validation examples below which the standard error is reported.
SMALL_VALIDATION_SET = 200
VOCABULARIES = (512, 8192)
# Classes with counts in the summary.
SHOWN_CLASSES = 6


@dataclass(frozen=True)
class DataSummary:
    """Facts (topic, fact) about a task's data, derived options of the recipe, and warnings."""

    facts: Sequence[tuple[str, str]]
    options: Mapping[str, Any] = field(default_factory=dict)
    remarks: Sequence[str] = ()


Summarise = Callable[[Any], DataSummary]


def split_sizes(train: int, validation: int, unit: str) -> tuple[str, str]:
    return f"{unit}s", f"{train:,} for training, {validation:,} for validation"


def steps_for(examples: int, each: float, limits: tuple[int, int]) -> int:
    wanted = 500 * round(examples / each / 500)
    return int(np.clip(wanted, *limits))


def small_validation_set(count: int) -> list[str]:
    error = 0.5 / max(count, 1) ** 0.5
    line = f"with {count} validation examples the standard error of accuracy is up to {error:.2f}"
    return [line] if count < SMALL_VALIDATION_SET else []


def badly_scaled(numbers: np.ndarray) -> list[str]:
    mean, deviation = numbers.mean(), numbers.std()
    if abs(mean) + deviation < LARGE_NUMBER and deviation * LARGE_NUMBER > 1:
        return []
    return [f"the numbers are badly scaled for training: subtract {mean:.4g} and divide by "
            f"{deviation:.4g}"]  # fmt: skip


def problem_rows(counts: Counts, *units: str) -> list[tuple[str, str]]:
    problems = counts.describe(*units).partition(" (")[2]
    return [("problems", problems.removesuffix(")"))] if problems else []


def class_counts(names: Iterable[str]) -> tuple[str, str]:
    counts = Counter(names).most_common()
    shown = [f"{name} {count:,}" for name, count in counts[:SHOWN_CLASSES]]
    rest = f", ... {counts[-1][0]} {counts[-1][1]:,}" if len(counts) > SHOWN_CLASSES else ""
    return "classes", f"{len(counts)}: {', '.join(shown)}{rest}"


def image_input(split: Any, config: Any) -> DataSummary:
    """Summarise the sizes of images, and derive image size and patch size (see `derive_sizes`)."""
    sample = sample_images(split)
    if sample.huge:
        raise ValueError(f"{sample.huge}. Images of this size take too long to decode in every "
                         "epoch. Shrink large images to about 512 pixels a side.")  # fmt: skip
    smallest, largest = sample.sizes.min(0), sample.sizes.max(0)
    side, patch = derive_sizes(sample.median_side, config.image_size, config.patch_size)
    as_is = " x ".join(map(str, smallest[::-1]))
    if (smallest != largest).any():
        as_is += " to " + " x ".join(map(str, largest[::-1]))
    count = (side // patch) ** 2
    seen = f"{as_is}{', grey' if sample.grey else ''}; read as {side} x {side} in {count} patches"
    remarks = []
    if sample.median_side > 2 * side:
        remarks.append(f"images are resized to {side} x {side}, so that training takes minutes. "
                       f"--model.image_size {2 * side} --model.patch_size {2 * patch} keeps more "
                       "detail with the same number of patches")  # fmt: skip
    options = {"model.image_size": side, "model.patch_size": patch, "model.max_length": count,
               "model.channels": 1 if sample.grey else 3}  # fmt: skip
    return DataSummary([("size", seen)], options, remarks)


def images_of(task: Any, *classes: tuple[str, str]) -> DataSummary:
    splits = task.splits
    seen = image_input(splits.train, task.model_config)
    sizes = split_sizes(len(splits.train), len(splits.validation), "image")
    facts = [sizes, *classes, *seen.facts, *problem_rows(splits.counts)]
    return replace(seen, facts=facts)


def labelled_images(task: Any) -> DataSummary:
    splits = task.splits
    names = [splits.classes[n] for n in splits.train.labels_of().tolist() if n >= 0]
    found = images_of(task, class_counts(names))
    # Flipping suits photographs and not drawn symbols.
    flip = {} if found.options["model.channels"] == 1 else {"data.augmentation.flip": 0.5}
    steps = steps_for(len(splits.train), IMAGES_A_STEP, IMAGE_STEPS)
    remarks = [*found.remarks, *small_validation_set(len(splits.validation))]
    options = {**found.options, **flip, "training.steps": steps}
    return replace(found, options=options, remarks=remarks)


def plain_images(task: Any) -> DataSummary:
    found = images_of(task)
    length = found.options["model.max_length"] + 1
    return replace(found, options={**found.options, "model.max_length": length})


def masked_images(task: Any) -> DataSummary:
    classes = f"{task.classes}, from the values in the masks (255 is ignored)"
    found = images_of(task, ("classes", classes))
    own = {"model.classes": task.classes, "model.stride": found.options["model.image_size"]}
    return replace(found, options={**found.options, **own})


def vocabulary_size(characters: int, each: int = CHARACTERS_A_PIECE) -> int:
    wanted = characters / each
    return int(np.clip(2 ** round(np.log2(max(wanted, 1))), *VOCABULARIES))


def words_in(texts: Sequence[str]) -> str:
    counts = np.array([len(text.split()) for text in texts] or [0])
    return f"{np.median(counts):.0f} words (median), {counts.max():,} at most"


def labelled_texts(task: Any) -> DataSummary:
    train, held = task.texts.train, task.texts.validation
    texts, labels = train.values("text"), train.values("label")
    pairs = train.values("pair") if "pair" in train.columns else []
    characters = sum(map(len, texts)) + sum(map(len, pairs))
    remarks = [FEW_PAIRS] if pairs and len(train) < ENOUGH_PAIRS else []
    if task.data_config.regression:
        numbers = np.array(labels, float)
        remarks += badly_scaled(numbers)
        answer = ("numbers", f"{numbers.min():g} to {numbers.max():g}, {numbers.mean():.4g} on "
                             f"average, standard deviation {numbers.std():.4g}")  # fmt: skip
    else:
        answer = class_counts(labels)
        remarks += small_validation_set(sum(map(len, held.values())))
    lengths = np.array([len(a) + len(b) for a, b in zip(texts, pairs or [""] * len(texts),
                                                        strict=True)])  # fmt: skip
    # A token of a small vocabulary has about three characters, and a text has two special tokens.
    longest = derive_length(lengths // 2.5 + 8, LONGEST_LABELLED_TEXT)
    size = vocabulary_size(characters, LABELLED_CHARACTERS_A_PIECE)
    facts = [
        split_sizes(len(train), sum(map(len, held.values())), "text"),
        answer,
        ("length", f"{words_in(texts)}; up to {longest} tokens, vocabulary {size:,}"),
    ]
    options = {"data.max_length": longest, "data.vocab_size": size}
    options["training.steps"] = steps_for(len(train), TEXTS_A_STEP, TEXT_STEPS)
    return DataSummary([*facts, *problem_rows(task.texts.counts, ROWS)], options, remarks)


def running_text(task: Any) -> DataSummary:
    counts = Counts()
    train, held = list(task.documents("train", counts)), list(task.documents("validation"))
    characters = sum(map(len, train))
    size = vocabulary_size(characters)
    facts = [
        split_sizes(len(train), len(held), "document"),
        ("text", f"{characters:,} characters for training, vocabulary {size:,}"),
        *problem_rows(counts, DOCUMENTS),
    ]
    return DataSummary(facts, {"data.vocab_size": size})


def images_with_words(column: str, plural: str) -> Summarise:
    def look(task: Any) -> DataSummary:
        train, held = task.splits.train, task.splits.validation
        seen = image_input(train, task.model_config)
        texts = list(train.values(column))
        words = [text for each in texts for text in ([each] if isinstance(each, str) else each)]
        lengths = np.array([len(text) for text in words]) // 2 + 8
        longest = task.model_config.longest_text
        size = int(np.clip(vocabulary_size(sum(map(len, words))), 512, 2048))
        options = {**seen.options, "model.channels": 3, "data.vocab_size": size,
                   "model.max_length": derive_length(lengths, longest)}  # fmt: skip
        lines = (plural, words_in(words))
        sizes, problems = split_sizes(len(train), len(held), "row"), task.splits.counts
        facts = [sizes, *seen.facts, lines, *problem_rows(problems)]
        return DataSummary(facts, options, seen.remarks)

    return look


def recordings(task: Any) -> DataSummary:
    splits = task.speech.splits
    train, held = splits.train, splits.validation
    seconds, texts = train.values("seconds"), train.values("text")
    words = Counter(word for text in texts for word in text.split())
    facts = [
        split_sizes(len(train), len(held), "recording"),
        ("sound", f"{seconds.sum() / 3600:.2f} hours for training, {np.median(seconds):.1f} s "
         f"(median), {seconds.max():.1f} s at most"),
        ("words", f"{words_in(texts)}; {len(words):,} distinct"),
        *problem_rows(splits.counts["train"], KEPT, READ),
    ]  # fmt: skip
    return DataSummary(facts)


def parallel_text(task: Any) -> DataSummary:
    lines = task.text.describe(task.data_config.source)
    directions = ", ".join(f"{a} to {b}" for a, b in task.text.directions)
    return DataSummary([("directions", directions), ("lines", "; ".join(lines))])


@dataclass(frozen=True)
class Guide:
    """Functions for the advice on one task: a summary of the data, and a simple baseline.

    `trivial` is the name of the trivial prediction whose score `Task.baseline` returns.
    """

    summarise: Summarise
    baseline: Baseline | None = None
    trivial: str = "the most frequent answer"


FREQUENCIES = "token frequencies"
GUIDES = {
    "causal-lm": Guide(running_text, baselines.n_grams, FREQUENCIES),
    "masked-lm": Guide(running_text, trivial=FREQUENCIES),
    "text-classification": Guide(labelled_texts, baselines.bag_of_words),
    "translation": Guide(parallel_text, trivial=FREQUENCIES),
    "transducer": Guide(recordings, trivial="always the most frequent word"),
    "image-classification": Guide(labelled_images, baselines.pixel_regression),
    "image-modelling": Guide(plain_images, trivial="code frequencies"),
    "segmentation": Guide(masked_images, baselines.colour_and_place, "always one class"),
    "visual-question-answering": Guide(
        images_with_words("question", "questions"), trivial="the question alone"
    ),
    "visual-reasoning": Guide(
        images_with_words("statement", "statements"),
        baselines.statement_alone,
        "always the majority",
    ),
    "image-captioning": Guide(
        images_with_words("captions", "captions"), trivial="always one caption"
    ),
    "image-text-retrieval": Guide(images_with_words("captions", "captions"), trivial="chance"),
}


@dataclass(frozen=True)
class Advice:
    """Derived recipe for a task, with the changed options, a summary of the data, and baselines."""

    recipe: Recipe
    options: Mapping[str, Any]
    summary: DataSummary
    baselines: Sequence[Scored]
    task: Task


def advise(
    source: str, candidate: Candidate, given: Mapping[str, Any], progress: Progress
) -> Advice:
    """Read a source for a task, derive a recipe, and score baselines.

    The user's `given` fields override derived fields.

    Raises:
        ConfigError: If a given field is invalid.
        ValueError: If the data does not fit the task.
    """
    name, guide = f"{candidate.task}/start", GUIDES[candidate.task]
    # Other fields of the model may need the sizes that are derived from the data.
    first = {key: value for key, value in given.items()
             if key.startswith(("data.", "model.image_size", "model.patch_size"))}  # fmt: skip
    fields = {"data.source": source, **candidate.options, **first}
    summary = guide.summarise(load_recipe(name, fields).build_task())
    options = {**candidate.options, **summary.options, **given}
    recipe = load_recipe(name, {"data.source": source, **options})
    task = recipe.build_task()
    task.prepare(progress)
    progress.update("measuring baselines", 0, None)
    trivial = task.baseline()
    label = "always the mean" if options.get("data.target") == "number" else guide.trivial
    scores = [(label, trivial)] if trivial else []
    others = guide.baseline(task) if guide.baseline else ()
    return Advice(recipe, options, summary, [*scores, *others], task)
