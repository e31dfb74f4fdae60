"""That a run is not measured, unawares, on images that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from magneto.data.counts import Counts
from magneto.data.files import read_list
from magneto.files import user_path
from magneto.progress import Progress
from magneto.runs import open_run
from magneto.vision_language.question_answering.config import QuestionAnsweringDataConfig

HELD_OUT_FILE = "validation-images.json"
"""In a run's assets: which images are validated on."""
# Folder of the images of which "held_out" holds some out and trains on the others.
DIVIDED = "val2014/"


def check_held_out(
    config: QuestionAnsweringDataConfig, measured: Sequence[str], progress: Progress
) -> None:
    """See that a run held out what it is measured on.

    In another folder than that of its own data, images with the same names may have other
    questions; so there it is said, and not refused.

    Args:
        config: Of the questions, with the list that the measured run keeps of its images.
        measured: What the images are called that they are about.
        progress: Is told.

    Raises:
        ValueError: If it was trained on some of them; names what measures the others.
    """
    assert config.held_out is not None
    run = Path(config.held_out).parents[1]
    own = open_run(run).data
    held = read_list(Path(config.held_out), None, Counts())
    trained = trained_on(measured, held, own.validation_split)
    if not trained:
        return
    share = f"{len(trained):,} of the {len(measured):,} images"
    if user_path(own.source).resolve() == user_path(config.source).resolve():
        raise ValueError(f"{run} was trained on {share} that it would be measured on: "
                         f"data.validation_split {own.validation_split}, data.validation_images "
                         f"{own.validation_images} and data.validation_seed {own.validation_seed} "
                         "measure what it held out")  # fmt: skip
    progress.say(f"WARNING: {share} in {config.source} have names of images that {run} was trained "
                 f"on, such as {trained[0]}; unless their questions are others, this measures "
                 "training")  # fmt: skip


def trained_on(measured: Sequence[str], held: Sequence[str], split: str) -> list[str]:
    """Return the images of VQA v2 that a run may have been trained on.

    Args:
        measured: What images are called that it is measured on.
        held: What those are called that it held out.
        split: Its own `data.validation_split`.
    """
    if split != "held_out" or not any(name.startswith(DIVIDED) for name in held):
        return []  # it was trained on no image of val2014
    left_out = set(held)
    return [name for name in measured if name.startswith(DIVIDED) and name not in left_out]
