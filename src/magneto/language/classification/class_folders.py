"""Folders that say labels by names: a file of lines per class, or a folder of texts per class."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from magneto.data.counts import Counts
from magneto.data.files import has_ending, open_text, unpacked_name
from magneto.data.records import decoded, read_lines
from magneto.data.splits import SPLITS

TEXT = (".txt",)


def class_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each class of a folder, by the classes' names; {} for another shape.

    pos/*.txt and neg/*.txt come before pos.txt and neg.txt. Names of splits, such as test, are no
    classes, and there are at least two.
    """
    folders: dict[str, list[Path]] = {}
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and (inside := _texts(path)):
            folders[path.name] = inside
        elif has_ending(path, TEXT):
            files.setdefault(Path(unpacked_name(path)).stem, []).append(path)
    for found in (folders, files):
        classes = {name: paths for name, paths in found.items() if name not in SPLITS}
        if len(classes) > 1:
            return classes
    return {}


def _texts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if has_ending(path, TEXT))


def read_class_folder(folder: Path, counts: Counts) -> Iterator[tuple[str, None, str]]:
    """Yield (text, None, label): a class's folder has a text per file, its file one per line.

    Args:
        folder: That has both.
        counts: Filled while reading.

    Raises:
        ValueError: If it has no such shape.
    """
    classes = class_files(folder)
    if not classes:
        raise ValueError(f"{folder} has neither a .txt file nor a folder of them for two classes")
    for label, paths in classes.items():
        for path in paths:
            if path.parent == folder:
                yield from ((line.strip(), None, label) for line in read_lines(path, counts))
            else:
                with open_text(path) as file:
                    yield decoded(file.read(), counts, path, 1).strip(), None, label
