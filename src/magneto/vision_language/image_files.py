"""Images that a data set calls by file name alone, wherever in a folder they lie."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from magneto.data.counts import Counts
from magneto.data.files import existing_path
from magneto.data.formats import media_names
from magneto.data.media import IMAGE_ENDINGS, Files

# What is said where a name alone does not tell which file is meant.
SEVERAL = "images whose name other files have too (the first by folder is read)"


@dataclass(frozen=True)
class NamedImages:
    """Images by the names of their files.

    Attributes:
        store: Where they lie.
        numbers: Of each in `store`, by the last part of its path.
        where: The folder, for messages.
        twice: Names that several files have.
    """

    store: Files
    numbers: dict[str, int]
    where: str
    twice: frozenset[str] = frozenset()

    def several(self, used: Iterable[int]) -> int:
        """Return how many of the images that are used have the name of another file."""
        return len({self.numbers[name] for name in self.twice} & set(used))


def find_images(folder: str) -> NamedImages:
    """List all images below a folder.

    Sets of photographs are unpacked in more than one way: NLVR2's training images lie in a hundred
    folders or in one. Their names are the same, so that where they lie need not be known. Of two
    files of one name the first in the order of the alphabet is taken.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If there are no images.
    """
    root = existing_path(folder)
    root = root if root.is_dir() else root.parent
    names = list(media_names(root, "image", Counts()))
    if not names:
        raise ValueError(f"no images below {root}: no file ends in {', '.join(IMAGE_ENDINGS)}; "
                         "archives have to be unpacked")  # fmt: skip
    return by_name(Files(root, names), names, root)


def by_name(store: Files, names: list[str], root: Path) -> NamedImages:
    """Number images by the last part of their names; the first of several counts."""
    numbers: dict[str, int] = {}
    twice = set()
    for number, path in enumerate(names):
        name = path.rpartition("/")[2]
        if numbers.setdefault(name, number) != number:
            twice.add(name)
    return NamedImages(store, numbers, str(root), frozenset(twice))
