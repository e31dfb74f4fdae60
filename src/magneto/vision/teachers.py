"""What the tokenizer's decoder learns to predict: a vector for each patch of an image.

A teacher is a frozen module with a `width`, a `digest` that names what it is made of, and a
`forward` from images (batch, channels, height, width) in [-1, 1] to (batch, patches, width).
Only a vector's direction counts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.config import error_line
from magneto.data.cache import content_digest
from magneto.files import import_extra
from magneto.functional.cross_entropy import without_autocast
from magneto.vision.config import ImageEncoderConfig, ImageTokenizerConfig

ORIENTATIONS = 9

# A constant beside what is measured, so that a flat patch has a direction too, and a faint one is
# nearer to it than a strong one. In gradients of pixels from 0 to 1.
FLAT = 0.05


def gradient_histograms(images: Tensor, cell: int) -> Tensor:
    """Count gradients by their direction, each by its length, in square cells.

    As scikit-image's `hog` without its normalisation: central differences, 0 at the border; of
    several channels the one with the longest gradient; directions without sign, each in one bin.

    Args:
        images: (batch, channels, height, width); the cell divides height and width.
        cell: Pixels of a cell's side.

    Returns:
        Mean over a cell's pixels, (batch, 9, height / cell, width / cell).
    """
    down, across = torch.zeros_like(images), torch.zeros_like(images)
    down[..., 1:-1, :] = images[..., 2:, :] - images[..., :-2, :]
    across[..., 1:-1] = images[..., 2:] - images[..., :-2]
    length, channel = torch.hypot(down, across).max(1, keepdim=True)
    angle = torch.atan2(down.gather(1, channel), across.gather(1, channel)) % math.pi
    # An angle just below 0 rounds to pi.
    number = (angle * (ORIENTATIONS / math.pi)).long().clamp(max=ORIENTATIONS - 1)
    shape = (len(images), ORIENTATIONS, *images.shape[-2:])
    by_direction = images.new_zeros(shape).scatter_(1, number, length)
    return F.avg_pool2d(by_direction, cell)


def weights_digest(module: nn.Module) -> str:
    """Return a short name for the values of a module's tensors."""
    tensors = (tensor for _, tensor in sorted(module.state_dict().items()))
    return content_digest(*(tensor.detach().cpu().reshape(-1).numpy() for tensor in tensors))


class Teacher(nn.Module):
    """Gives the features that are to be predicted.

    Attributes:
        width: Of a patch's features.
    """

    width: int

    def digest(self) -> str:
        """Return what names its content: a run is not resumed with another one."""
        raise NotImplementedError


class HogTeacher(Teacher):
    """Histograms of gradients of the image itself, as MaskFeat predicts (arXiv 2112.09133).

    A patch of 8 pixels or more has four cells, a smaller one a single cell.
    """

    def __init__(self, config: ImageEncoderConfig) -> None:
        super().__init__()
        size = config.patch_size
        self.cells = 2 if size >= 8 and size % 2 == 0 else 1
        self.cell = size // self.cells
        self.width = (ORIENTATIONS + 1) * self.cells**2

    def digest(self) -> str:
        """Return its name."""
        return "hog"

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, patches, width)."""
        with without_autocast(images):
            found = gradient_histograms((images + 1) / 2, self.cell)
            directed = F.normalize(F.pad(found, (0, 0, 0, 0, 0, 1), value=FLAT), dim=1)
            return F.pixel_unshuffle(directed, self.cells).flatten(2).transpose(1, 2)


class PixelTeacher(Teacher):
    """The pixels of each patch, and a constant that makes brightness a matter of direction."""

    def __init__(self, config: ImageEncoderConfig) -> None:
        super().__init__()
        self.patch_size = config.patch_size
        self.width = config.channels * config.patch_size**2 + 1

    def digest(self) -> str:
        """Return its name."""
        return "pixels"

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, patches, width)."""
        patches = F.pixel_unshuffle(images, self.patch_size).flatten(2).transpose(1, 2)
        return F.pad(patches, (0, 1), value=(self.width - 1) ** 0.5 / 2)


class PretrainedTeacher(Teacher):
    """The features of a model of transformers, from images of its own size and normalisation.

    Of CLIP's image encoder (arXiv 2103.00020) the patches after its last norm and its projection;
    of DINO's or DINOv2's (arXiv 2104.14294, 2304.07193) those after its last norm.

    Args:
        kind: "clip" or "dino".
        path: A folder, or a name on the hub.
        config: Of the tokenizer, whose grid of patches the model must have.

    Raises:
        ModuleNotFoundError: If transformers is not installed.
        ValueError: If there is no such model, or it has another grid.
    """

    image_mean: Tensor
    image_std: Tensor

    def __init__(self, kind: str, path: str, config: ImageEncoderConfig) -> None:
        super().__init__()
        library = import_extra("transformers", "hf", "a teacher of transformers needs it")
        self.projects = kind == "clip"
        auto = library.CLIPVisionModelWithProjection if self.projects else library.AutoModel
        try:
            self.model: Any = auto.from_pretrained(
                path, dtype=torch.float32, trust_remote_code=False
            )
            reader = library.image_processing_base.ImageProcessingMixin
            found = reader.get_image_processor_dict(path)[0]
        except (OSError, ValueError) as error:
            raise ValueError(f"model.teacher {path}: {error_line(error)}") from error
        vision = self.model.config
        self.image_size, self.patches = vision.image_size, config.patches
        side = vision.image_size // vision.patch_size
        if side**2 != config.patches:
            raise ValueError(f"the teacher {path} has a grid of {side} x {side} patches, the model "
                             f"{config.grid.rows} x {config.grid.columns}: set model.image_size "
                             "and model.patch_size")  # fmt: skip
        if config.channels != vision.num_channels:
            raise ValueError(f"the teacher {path} takes {vision.num_channels} channels: set "
                             "model.channels")  # fmt: skip
        for name in ("image_mean", "image_std"):
            values = torch.tensor(found[name]).view(-1, 1, 1)
            self.register_buffer(name, values, persistent=False)
        self.width = vision.projection_dim if self.projects else vision.hidden_size

    def digest(self) -> str:
        """Return the digest of its weights."""
        return weights_digest(self.model)

    def tokens(self, images: Tensor) -> Tensor:
        """Return the features of all tokens of normalised images; those of patches are the last."""
        if not self.projects:
            return self.model(images).last_hidden_state
        vision = self.model.vision_model
        features = vision(images).last_hidden_state
        return self.model.visual_projection(vision.post_layernorm(features))

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, patches, width)."""
        size = (self.image_size, self.image_size)
        if images.shape[-2:] != size:
            images = F.interpolate(images, size, mode="bicubic", antialias=True)
        images = ((images + 1) / 2 - self.image_mean) / self.image_std
        return self.tokens(images)[:, -self.patches :]


def build_teacher(config: ImageTokenizerConfig) -> Teacher:
    """Build the teacher that a configuration names; see the classes for what they raise."""
    kind, _, path = config.teacher.partition(":")
    if path:
        return PretrainedTeacher(kind, path, config)
    return {"hog": HogTeacher, "pixels": PixelTeacher}[kind](config)
