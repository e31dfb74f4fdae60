"""Images for classification, from sets that need no network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from magneto.files import import_extra
from magneto.vision.config import ImageDataConfig


@dataclass(frozen=True)
class LabelledImages:
    """Images (count, channels, height, width) in [-1, 1] and labels (count)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def load_images(config: ImageDataConfig, seed: int) -> tuple[LabelledImages, LabelledImages]:
    """Return the training and the validation split."""
    images, labels = digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    images, labels = images[order], labels[order]
    cut = round(len(labels) * config.validation_fraction)
    return LabelledImages(images[cut:], labels[cut:]), LabelledImages(images[:cut], labels[:cut])


def digits() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits: images (1797, 1, 8, 8) in [-1, 1], labels.

    Raises:
        ModuleNotFoundError: If scikit-learn is not installed; names the extra that has it.
    """
    datasets = import_extra("sklearn.datasets", "vision", "builtin:digits needs scikit-learn")
    pixels, labels = datasets.load_digits(return_X_y=True)
    images = torch.from_numpy(np.asarray(pixels)).float().view(-1, 1, 8, 8) / 8 - 1
    return images, torch.from_numpy(np.asarray(labels)).long()
