"""Training and validation statements of a source: NLVR2, or built-in scenes."""

from __future__ import annotations

from pathlib import Path

from magneto.data.counts import Counts
from magneto.data.files import existing_path
from magneto.data.sources import parse_source
from magneto.vision_language.image_files import find_images
from magneto.vision_language.reasoning.config import StatementDataConfig
from magneto.vision_language.reasoning.files import find_statement_files, read_statements
from magneto.vision_language.reasoning.statements import (
    Statement,
    StatementSplit,
    StatementSplits,
    hold_out,
)
from magneto.vision_language.scenes import SceneStatements, scene_statements

NAMED = "one file"
"""In place of a split's name: a source that is a file, whatever it is of."""


def load_statements(config: StatementDataConfig) -> StatementSplits:
    """Read the statements of a source, and find their images.

    Trained on is "train", or, where there is none, "dev". What is validated on is the split that
    `validation_split` names, of the source or of another; or statements that are held out.

    Raises:
        FileNotFoundError: If there is no such path.
        ValueError: If there are no statements or no images, or not the split that is asked for.
    """
    counts = Counts()
    there = read_source(config.source, config, counts)
    train = there.get("train", there.get("dev", next(iter(there.values()))))
    if config.validation_source is not None:
        same = config.validation_source == config.source
        other = there if same else read_source(config.validation_source, config, counts)
        held = wanted(other, config, config.validation_source)
    elif config.validation_split in there and there[config.validation_split] is not train:
        held = there[config.validation_split]
    elif config.validation_split in there and config.validation_split != "dev":
        raise ValueError(f"{config.source} has nothing to train on but its "
                         f"{config.validation_split} split, which is to be validated on: name "
                         "the statements to train on, data.source, and these, "
                         "data.validation_source")  # fmt: skip
    elif config.validation_split != "dev":
        raise ValueError(no_split(config.source, config.validation_split))
    else:
        train, held = hold_out(train, config.validation_fraction)
    complete = train.complete
    if not len(complete) or not len(held):
        raise ValueError(f"{config.source} has {len(complete)} statements to train on and "
                         f"{len(held)} to validate on: set data.validation_fraction or "
                         "data.validation_source")  # fmt: skip
    return StatementSplits(complete, held, counts)


def wanted(
    there: dict[str, StatementSplit], config: StatementDataConfig, source: str
) -> StatementSplit:
    """Return the split to validate on; all of a source that names one file.

    Raises:
        ValueError: If it is not there.
    """
    if list(split_files(source)) == [NAMED]:
        return there[NAMED]
    if config.validation_split not in there:
        raise ValueError(no_split(source, config.validation_split))
    return there[config.validation_split]


def no_split(source: str, split: str) -> str:
    """Return a message on a split that is not there, with all that are."""
    there = list(split_files(source)) or ["train", "dev"]
    field = "validation_split" if {*there} - {"train", NAMED} else "validation_source"
    return f"{source} has no {split} split, it has {', '.join(there)}: set data.{field}"


def split_files(source: str) -> dict[str, Path]:
    """Return a source's files by split; of one that names a file, it; {} of what is built in."""
    if parse_source(source).kind == "builtin":
        return {}
    path = existing_path(source)
    return {NAMED: path} if path.is_file() else find_statement_files(path)


def read_source(
    source: str, config: StatementDataConfig, counts: Counts
) -> dict[str, StatementSplit]:
    """Return the splits of a source that are of use: "train", "dev" and the one validated on."""
    files = split_files(source)
    if not files:
        found = scene_statements()
        return {"train": scene_split(found["train"]), "dev": scene_split(found["validation"])}
    images = find_images(config.image_folder or source)
    used = {"train", "dev", config.validation_split} if len(files) > 1 else set(files)
    return {split: read_statements(file, images, counts)
            for split, file in files.items() if split in used}  # fmt: skip


def scene_split(scenes: SceneStatements) -> StatementSplit:
    """Return statements about scenes as those of any source."""
    rows = zip(scenes.statements, scenes.truths.tolist(), scenes.pictures.tolist(), strict=True)
    statements = [
        Statement(str(number), said, int(true), tuple(pair), f"{pair}", said)
        for number, (said, true, pair) in enumerate(rows)
    ]
    return StatementSplit(scenes.images, statements)
