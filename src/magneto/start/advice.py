"""Advice for a source: a derived recipe, a summary of the data, and baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magneto.progress import Progress
from magneto.recipe import Recipe, load_recipe
from magneto.start import baselines, summaries
from magneto.start.baselines import Baseline, Scored
from magneto.start.candidates import Candidate
from magneto.start.summaries import DataSummary, Summarise
from magneto.training.task import Task


@dataclass(frozen=True)
class Guide:
    """Analysis for one task; `trivial` says what `Task.baseline` predicts."""

    summarise: Summarise
    baseline: Baseline | None = None
    trivial: str = "the most frequent answer"


FREQUENCIES = "token frequencies"
GUIDES = {
    "causal-lm": Guide(summaries.running_text, baselines.n_grams, FREQUENCIES),
    "masked-lm": Guide(summaries.running_text, trivial=FREQUENCIES),
    "text-classification": Guide(summaries.labelled_texts, baselines.bag_of_words),
    "translation": Guide(summaries.parallel_text, trivial=FREQUENCIES),
    "transducer": Guide(summaries.recordings, trivial="always the most frequent word"),
    "image-classification": Guide(summaries.labelled_images, baselines.pixel_regression),
    "image-modelling": Guide(summaries.plain_images, trivial="code frequencies"),
    "segmentation": Guide(summaries.masked_images, baselines.colour_and_place, "always one class"),
    "visual-question-answering": Guide(
        summaries.images_with_words("question"), trivial="the question alone"
    ),
    "visual-reasoning": Guide(
        summaries.images_with_words("statement"),
        baselines.statement_alone,
        "always the majority",
    ),
    "image-captioning": Guide(summaries.images_with_words("text"), trivial="always one caption"),
    "image-text-retrieval": Guide(summaries.images_with_words("text"), trivial="chance"),
}
"""Guides by task."""


@dataclass(frozen=True)
class Advice:
    """The derived recipe, its differences from the starting recipe, and facts about the data."""

    recipe: Recipe
    options: Mapping[str, Any]
    summary: DataSummary
    baselines: Sequence[Scored]
    task: Task


def advise(
    source: str, candidate: Candidate, given: Mapping[str, Any], progress: Progress
) -> Advice:
    """Read a source for a task, derive a recipe, and score baselines.

    The user's `given` fields override derived ones.

    Raises:
        ConfigError: If a given field is invalid.
        ValueError: If the data does not fit the task.
    """
    name, guide = f"{candidate.task}/start", GUIDES[candidate.task]
    data_fields = {key: value for key, value in given.items() if key.startswith("data.")}
    fields = {"data.source": source, **candidate.options, **data_fields}
    summary = guide.summarise(load_recipe(name, fields).build_task(), given)
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
