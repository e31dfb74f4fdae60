"""NLVR2 as its authors give it (arXiv 1811.00491): a .json file per split, a JSON object per line.

An identifier is SPLIT-SET-PAIR-SENTENCE; the images are SPLIT-SET-PAIR-img0.png and -img1.png; a
label is "True" or "False".
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from magneto.config import shown
from magneto.data.counts import EMPTY, Counts
from magneto.data.files import (
    Record,
    existing_path,
    has_ending,
    read_objects,
    unpacked_name,
    walk_files,
)
from magneto.data.problems import BadRecord
from magneto.vision_language.image_files import SEVERAL, NamedImages
from magneto.vision_language.reasoning.config import IMAGES
from magneto.vision_language.reasoning.statements import MISSING, Statement, StatementSplit

STATEMENTS = "statements"
DUPLICATES = "statements with an identifier met before left out"
UNLABELLED = "statements without a label left out"
WITHOUT_IMAGES = "statements with a missing image"
ENDINGS = (".json", ".jsonl")
# Names of a split's file, without its ending, best first.
FILES = {
    "train": ("train",),
    "dev": ("dev", "val", "validation"),
    "test": ("test1", "test"),
    "hidden": ("test2", "hidden"),
}
LABELS = {"true": 1, "false": 0}


def find_statement_files(folder: Path) -> dict[str, Path]:
    """Return the files of statements below a folder by split: "train", "dev", "test", "hidden".

    The authors' repository has another set beside NLVR2; then NLVR2 is read.

    Raises:
        ValueError: If there is none, or several for one split.
    """
    stems = {stem: split for split, names in FILES.items() for stem in names}
    found: dict[str, dict[str, Path]] = {}
    paths = [path for path in walk_files(folder) if has_ending(path, ENDINGS)]
    newer = [path for path in paths if "nlvr2" in path.relative_to(folder).parts]
    for path in newer or paths:
        stem = Path(unpacked_name(path)).stem.lower()
        if stem not in stems:
            continue
        others = found.setdefault(stems[stem], {})
        if stem in others:
            raise ValueError(f"{folder} has two files of {stem} statements, {others[stem]} and "
                             f"{path}: name the folder of one (data.source), and of the images "
                             "(data.image_folder)")  # fmt: skip
        others[stem] = path
    if not found:
        known = ", ".join(f"{stem}.json" for stem in stems)
        raise ValueError(f"no statements below {folder}: none of {known}")
    return {split: next(found[split][n] for n in FILES[split] if n in found[split])
            for split in FILES if split in found}  # fmt: skip


def read_statements(path: Path, images: NamedImages, counts: Counts) -> StatementSplit:
    """Read a file of statements.

    What is malformed, or has no sentence or no label, is counted and left out, also of a set to
    validate on; statements whose images are missing stay.

    Args:
        path: The file, maybe packed.
        images: Those that there are.
        counts: Is added to.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If there is not one statement in it, or none of the images is there.
    """
    path, known = existing_path(str(path)), set[str]()
    statements: list[Statement] = []
    missing: dict[str, None] = {}
    read = partial(_statement, images=images, counts=counts, missing=missing)
    for one in read_objects(path, counts, read):
        if one.identifier in known:
            counts.met(DUPLICATES, str(path), one.identifier)
            continue
        known.add(one.identifier)
        statements.append(one)
    if not statements:
        raise ValueError(f"no statements in {path}: {counts.describe(STATEMENTS)}")
    incomplete = sum(MISSING in one.images for one in statements)
    if incomplete == len(statements):
        raise ValueError(f"{path}: no statement has all its images in {images.where}, for "
                         f"example {next(iter(missing))}: name their folder, "
                         "data.image_folder")  # fmt: skip
    counts[STATEMENTS] += len(statements)
    counts[WITHOUT_IMAGES] += incomplete
    if several := images.several(number for one in statements for number in one.images):
        counts[SEVERAL] += several
    return StatementSplit(images.store, statements, tuple(missing))


def _statement(
    record: Record, images: NamedImages, counts: Counts, missing: dict[str, None]
) -> Statement | None:
    """Return a record as a statement, None if it is empty; note images that are not there.

    Raises:
        BadRecord: If it has no sentence, or no identifier.
    """
    sentence, identifier = record.get("sentence"), record.get("identifier")
    if not isinstance(sentence, str) or not isinstance(identifier, str):
        raise BadRecord("no sentence, or no identifier")
    if not sentence.strip():
        counts[EMPTY] += 1
        return None
    label = LABELS.get(str(record.get("label")).lower())
    if label is None:
        counts[UNLABELLED] += 1
        return None
    *pair, number = identifier.split("-")
    if len(pair) != 3:
        raise BadRecord(f"identifier {shown(identifier)}, not SPLIT-SET-PAIR-SENTENCE")
    names = [f"{'-'.join(pair)}-img{side}.png" for side in range(IMAGES)]
    missing.update(dict.fromkeys(name for name in names if name not in images.numbers))
    there = tuple(images.numbers.get(name, MISSING) for name in names)
    group = "-".join(pair[:2])
    return Statement(identifier, sentence.strip(), label, there, group, f"{group}-{number}")
