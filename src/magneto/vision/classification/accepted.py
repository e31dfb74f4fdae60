"""Which classes are right for an image: its label's, or several (ReaL, arXiv 2006.07159)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from magneto.data.files import existing_path
from magneto.files import read_json
from magneto.vision.images import ImageSplit

# The number at the end of a name: ILSVRC2012_val_00000293.JPEG, in some sets with a wnid after it.
NUMBER = re.compile(r"_(\d+)(?:_n\d{8})?\.\w+$")


def accepted_classes(split: ImageSplit, classes: int, path: str | None) -> list[np.ndarray]:
    """Return the numbers of the classes that are right, for each image of a split.

    Args:
        split: Its images' names end with their number in the file.
        classes: That the model has.
        path: Of a JSON list of lists of class numbers; None for each image's own label.

    Raises:
        FileNotFoundError: If there is no such file; names the nearest.
        ValueError: If it is none for these images.
    """
    if path is None:
        return list(split.labels_of()[:, None])
    file = existing_path(path)
    known = read_json(file)
    if not is_list_of_classes(known, classes):
        raise ValueError(f"{file} is no list of lists of class numbers below {classes}")
    found = []
    for index in range(len(split)):
        match = NUMBER.search(split.images.key(int(split.numbers[index])))
        number = int(match[1]) if match else 0
        if not 1 <= number <= len(known):
            raise ValueError(f"{split.name(index)}: its name does not end with a number of 1 to "
                             f"{len(known)}, its place in {file}")  # fmt: skip
        found.append(np.array(known[number - 1], np.int64))
    return found


def is_list_of_classes(value: object, classes: int) -> bool:
    """Return whether a value is a list of lists of class numbers."""
    return isinstance(value, list) and all(
        isinstance(entry, list) and all(isinstance(n, int) and 0 <= n < classes for n in entry)
        for entry in value
    )


def accepted_mask(accepted: Sequence[np.ndarray], rows: np.ndarray, classes: int) -> Tensor:
    """Return (rows, classes), True where a class is right."""
    mask = torch.zeros(len(rows), classes, dtype=torch.bool)
    for place, row in enumerate(rows.tolist()):
        mask[place, torch.from_numpy(accepted[row])] = True
    return mask
