"""`magneto predict` of images: what a run's model says of them, or answers to a question."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magneto.commands.arguments import print_json
from magneto.commands.standard_input import STDIN, is_standard_input, read_input
from magneto.config import ConfigError
from magneto.data.counts import Counts
from magneto.data.files import existing_path
from magneto.data.formats import media_names
from magneto.data.media import IMAGE_ENDINGS
from magneto.data.problems import BadRecord, guarded
from magneto.files import write_bytes
from magneto.progress import ProgressBars
from magneto.runs import load_run, run_task
from magneto.vision.decoding import EncodedPicture, PixelPicture

if TYPE_CHECKING:
    from magneto.vision.prediction import Prediction

# Images, or groups of images that belong together, that the model reads at once.
BATCH = 32


@dataclass(frozen=True)
class Answer:
    """What is said of one file.

    Attributes:
        path: Of the image.
        labels: Names and shares, the largest first.
        pictures: Files that were written.
    """

    path: Path
    labels: Sequence[tuple[str, float]]
    pictures: Sequence[Path]


def predict(given: argparse.Namespace, overrides: Mapping[str, str]) -> int:
    """Run the command for a run whose model sees images.

    Raises:
        ConfigError: If no image is named, or a question is lacking.
        FileNotFoundError: If a file or folder is not there.
        ValueError: If nothing among them is an image that can be read.
    """
    if not given.inputs:
        raise ConfigError(["name images, or folders of them: magneto predict RUN photo.jpg"])
    kind = run_task(given.run, overrides, "predict").predict_text
    names, text = split_words(given.inputs, kind)
    paths = [path for name in names for path in image_paths(name)]
    opened: Any = load_run(given.run, given.weights, overrides, verb="predict")
    together = opened.task.images_together() if kind else 1
    if len(paths) % together:
        raise ConfigError([f"a {kind} is about {together} images, and there are {len(paths)}: "
                           "name them one after the other"])  # fmt: skip
    ask = partial(opened.task.predict, text=text) if kind else opened.task.predict
    report, broken = ProgressBars(), dict[Path, str]()
    groups = [paths[start : start + together] for start in range(0, len(paths), together)]
    answers = list(read_images(partial(ask, opened.model), groups, given.out, broken, report))
    report.finish()
    for path, why in broken.items():
        report.say(f"{path}: {why}")
    if broken and answers:
        report.say(f"{len(broken)} of {len(paths)} could not be read")
    if not answers:
        raise ValueError(f"none of {len(paths)} files could be read as an image")
    if given.json:
        print_json(described(given, opened.weights, answers, broken))
    else:
        print("\n".join(table(answers, given.top)))
    return 0


def image_paths(name: str) -> list[Path]:
    """Return a file, or the images in a folder.

    Raises:
        FileNotFoundError: If there is neither; names the nearest.
        ValueError: If the folder has no images.
    """
    if is_standard_input(name):
        return [Path(STDIN)]
    path = existing_path(name)
    if not path.is_dir():
        return [path]
    inside = [path / image for image in media_names(path, "image", Counts())]
    if not inside:
        raise ValueError(f"no images in {path}")
    return inside


def split_words(words: Sequence[str], kind: str) -> tuple[Sequence[str], str]:
    """Return the names of images and what is asked about them; "" where nothing is.

    Args:
        words: Of the command line.
        kind: What the run's task takes after the images; "" for nothing.

    Raises:
        ConfigError: If it is not there.
    """
    if not kind:
        return words, ""
    text = words[-1].strip()
    if len(words) < 2 or not text or os.path.exists(text) or is_image_name(text):
        image = next(filter(is_image_name, words[:-1]), "photo.jpg")
        raise ConfigError([f"the run takes a {kind} after the images, in quotes: "
                           f'magneto predict RUN {image} "..."'])  # fmt: skip
    return words[:-1], text


def is_image_name(word: str) -> bool:
    """Return whether a word is the name of an image, not a sentence."""
    return word.lower().endswith(IMAGE_ENDINGS) and " " not in word


def read_images(
    say: Callable[[list[PixelPicture]], Sequence[Prediction]],
    groups: Sequence[Sequence[Path]],
    out: Path,
    broken: dict[Path, str],
    report: ProgressBars,
) -> Iterator[Answer]:
    """Yield what a run's model says of files, some at a time.

    Args:
        say: From pictures to what the model says of each.
        groups: Paths of the images, those together that one thing is said of: where one of them
            can't be read, nothing is said of the others.
        out: Where pictures are written.
        broken: Is given the files that can't be read, and why.
        report: Shows how far it is.
    """
    taken: set[str] = set()
    for start in range(0, len(groups), BATCH):
        some = groups[start : start + BATCH]
        read = [pair for group in some for pair in decoded_group(group, broken)]
        said = say([picture for _, picture in read]) if read else []
        for (path, _), prediction in zip(read, said, strict=True):
            yield Answer(path, prediction.labels, written(path, prediction, out, taken))
        report.update("reading images", start + len(some), len(groups))


def decoded_group(
    paths: Sequence[Path], broken: dict[Path, str]
) -> list[tuple[Path, PixelPicture]]:
    """Decode the images that belong together; none of them if one can't be read."""
    found = [(path, decoded(path, broken)) for path in paths]
    lost = [path for path, picture in found if picture is None]
    for path, picture in found:
        if lost and picture is not None:
            broken.setdefault(path, f"belongs to {lost[0]}")
    return [] if lost else [(path, picture) for path, picture in found if picture is not None]


def decoded(path: Path, broken: dict[Path, str]) -> PixelPicture | None:
    """Decode an image, or note why it can't be."""
    try:
        with guarded():
            return PixelPicture(EncodedPicture(read_input(path)).pixels())
    except BadRecord as error:
        broken[path] = str(error)
    return None


def written(path: Path, prediction: Prediction, out: Path, taken: set[str]) -> list[Path]:
    """Write the pictures of a prediction, each under a name of its own."""
    files = []
    for kind, content in prediction.pictures.items():
        name, number = f"{path.stem}-{kind}.png", 1
        while name in taken:
            number += 1
            name = f"{path.stem}-{number}-{kind}.png"
        taken.add(name)
        out.mkdir(parents=True, exist_ok=True)
        write_bytes(out / name, content)
        files.append(out / name)
    return files


def described(
    given: Any, weights: Path, answers: Sequence[Answer], broken: dict[Path, str]
) -> dict[str, Any]:
    """Return the answers as plain values."""
    return {
        "run": str(given.run),
        "weights": str(weights),
        "images": [
            {
                "path": str(answer.path),
                "labels": [{"label": n, "share": s} for n, s in answer.labels[: given.top]],
                "pictures": [str(file) for file in answer.pictures],
            }
            for answer in answers
        ],
        "broken": [{"path": str(path), "why": why} for path, why in broken.items()],
    }


def table(answers: Sequence[Answer], top: int) -> Iterator[str]:
    """Yield a line per image: its path, its likeliest labels, its pictures."""
    wide = max(len(str(answer.path)) for answer in answers)
    for answer in answers:
        shares = (f"{share:7.1%} {name}" for name, share in answer.labels[:top])
        files = (f"  {file}" for file in answer.pictures)
        yield f"{answer.path!s:<{wide}}{''.join(shares)}{''.join(files)}"
