"""From a source to a recipe that learns from it, and what is easy there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magneto.progress import Progress
from magneto.recipe import Recipe, load_recipe
from magneto.start import look, obvious
from magneto.start.kinds import Candidate
from magneto.start.look import Finding, Look
from magneto.start.obvious import Obvious, Scored
from magneto.training.task import Task


@dataclass(frozen=True)
class Field:
    """What is known of a task beyond the task itself.

    Attributes:
        look: Reads its data.
        obvious: Fits the model that anybody would try first.
        trivial: What `Task.baseline` answers, in a few words.
    """

    look: Look
    obvious: Obvious = obvious.nothing
    trivial: str = "the commonest answer"


FREQUENCIES = "frequencies of the tokens"
FIELDS = {
    "causal-lm": Field(look.running_text, obvious.n_grams, FREQUENCIES),
    "masked-lm": Field(look.running_text, trivial=FREQUENCIES),
    "text-classification": Field(look.labelled_texts, obvious.bag_of_words),
    "translation": Field(look.parallel_text, trivial=FREQUENCIES),
    "transducer": Field(look.recordings, trivial="always the commonest word"),
    "image-classification": Field(look.labelled_images, obvious.pixels),
    "image-modelling": Field(look.plain_images, trivial="frequencies of the codes"),
    "segmentation": Field(look.masked_images, obvious.colour_and_place, "always one class"),
    "visual-question-answering": Field(
        look.images_with_words("question"), trivial="the question alone"
    ),
    "visual-reasoning": Field(
        look.images_with_words("statement"), obvious.statement_alone, "always the commoner truth"
    ),
    "image-captioning": Field(look.images_with_words("text"), trivial="always one caption"),
    "image-text-retrieval": Field(look.images_with_words("text"), trivial="chance"),
}
"""By the name of the task."""


@dataclass(frozen=True)
class Advice:
    """What to train on a source.

    Attributes:
        recipe: Resolved, with all that was derived.
        options: What differs from the starting recipe, by dotted fields.
        finding: What the data is.
        simple: What simple answers and models score.
        task: Prepared.
    """

    recipe: Recipe
    options: Mapping[str, Any]
    finding: Finding
    simple: Sequence[Scored]
    task: Task


def advise(
    source: str, candidate: Candidate, given: Mapping[str, Any], progress: Progress
) -> Advice:
    """Read a source for a task; derive the recipe; measure what is easy.

    Args:
        source: Of the data.
        candidate: The task, and what it must be told.
        given: Fields of the recipe that the user sets: they count before what is derived.
        progress: Told of long work.

    Raises:
        ConfigError: If a field that is given is wrong.
        ValueError: If the data is none for the task.
    """
    name, known = f"{candidate.task}/start", FIELDS[candidate.task]
    of_data = {name: value for name, value in given.items() if name.startswith("data.")}
    asked = {"data.source": source, **candidate.options, **of_data}
    first = load_recipe(name, asked).build_task()
    finding = known.look(first, given)
    options = {**candidate.options, **finding.options, **given}
    recipe = load_recipe(name, {"data.source": source, **options})
    task = recipe.build_task()
    task.prepare(progress)
    progress.update("measuring what is easy", 0, None)
    trivial = task.baseline()
    words = "always the mean" if options.get("data.target") == "number" else known.trivial
    simple = [(words, trivial)] if trivial else []
    return Advice(recipe, options, finding, [*simple, *known.obvious(task)], task)
