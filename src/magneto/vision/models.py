"""Image models: an encoder over patches, a classifier, and a segmenter with its evaluation.

The segmenter has UperNet (arXiv 1807.10221), pyramid pooling (arXiv 1612.01105), an FCN head (arXiv
1411.4038), and BEiT's feature pyramid. The heads have group norm, so that micro-batches and ranks
do not change results. BEiT v2's release has batch norm in the heads.

Logits are resized to the image's size, and then classes are chosen. Choosing classes before
resizing costs several points of mIoU (mmsegmentation's issue 1965).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.nn.config import Grid
from magneto.nn.embedding import ClassToken, ConvolutionalStem, PatchEmbedding
from magneto.nn.init import NormalLinear
from magneto.nn.position import resize_positions
from magneto.nn.transformer import Encoder
from magneto.vision.config import (
    ImageClassifierConfig,
    ImageEncoderConfig,
    SegmenterConfig,
    require,
)

STEMS = {"linear": PatchEmbedding, "convolutions": ConvolutionalStem}
# Levels of the feature pyramid, each half as large as the one before.
LEVELS = 4
# Largest number of groups and smallest number of channels in a group (arXiv 1803.08494). In a map
# that is pooled to one position, a group has one value per channel.
GROUPS, GROUP_CHANNELS = 32, 16
# Windows in a batch of sliding-window evaluation.
WINDOWS = 16
Place = tuple[slice, slice]
"""Rows and columns of a window."""


class ImageEncoder(nn.Module):
    """Image encoder: patch embedding, an optional class token, and a Transformer stack."""

    config: Any  # the configuration of the subclass

    def __init__(self, config: ImageEncoderConfig) -> None:
        super().__init__()
        self.config = config
        _, patch_size, channels = config.input_sizes
        self.embedding = STEMS[config.stem](channels, patch_size, config.width)
        self.class_token = ClassToken(config.width) if config.prefix else nn.Identity()
        self.encoder = Encoder(config)

    def embed(self, images: Tensor) -> Tensor:
        """Embed images (batch, channels, height, width) as vectors (batch, length, width)."""
        return self.class_token(self.embedding(images))


class ImageClassifier(ImageEncoder):
    """Image classifier: an encoder, pooling of its features, and a linear head."""

    def __init__(self, config: ImageClassifierConfig) -> None:
        super().__init__(config)
        # With "mean_then_norm", the final norm is applied after the pooling, not before it.
        self.pooled_norm: nn.Module = nn.Identity()
        if config.pooling == "mean_then_norm":
            self.pooled_norm, self.encoder.final_norm = self.encoder.final_norm, nn.Identity()
        self.pooled = slice(0, 1) if config.pooling == "first" else slice(config.prefix, None)
        classes = require(config.classes, "classes")
        # Small initial weights, so that the first loss is ln(classes).
        self.head = NormalLinear(config.width, classes, bias=True, std=0.001)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (batch, classes) of images (batch, channels, height, width)."""
        features = self.encoder(self.embed(images))
        return self.head(self.pooled_norm(features[:, self.pooled].mean(dim=1)))


class GroupNorm(nn.GroupNorm):
    """Group normalisation that keeps the input's dtype."""

    def __init__(self, channels: int) -> None:
        groups = math.gcd(GROUPS, channels)
        while groups > 1 and channels // groups < GROUP_CHANNELS:
            groups //= 2
        super().__init__(groups, channels)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).type_as(input)


class Convolution(nn.Conv2d):
    """Convolution with He normal initialisation (fan-out).

    Attributes:
        std: Standard deviation of the weight's initial values. Maximal update parametrisation
            needs this standard deviation.
    """

    def reset_parameters(self) -> None:
        self.std = math.sqrt(2.0 / (self.out_channels * self.kernel_size[0] ** 2))
        nn.init.normal_(self.weight, std=self.std)


class PixelClassifier(nn.Conv2d):
    """Linear classifier of pixels, with an initial loss near ln(classes)."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__(inputs, classes, 1)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.01)
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]


def resize(x: Tensor, size: Sequence[int]) -> Tensor:
    """Resize maps (batch, channels, height, width) bilinearly to `size` (height, width)."""
    return F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)


def convolution_block(inputs: int, outputs: int, size: int) -> nn.Sequential:
    convolution = Convolution(inputs, outputs, size, padding=size // 2, bias=False)
    return nn.Sequential(convolution, GroupNorm(outputs), nn.ReLU())


class FeaturePyramid(nn.Module):
    """Feature pyramid: resizes four maps of equal size by the factors 4, 2, 1 and 1/2."""

    def __init__(self, width: int) -> None:
        super().__init__()

        def double() -> nn.Module:
            return nn.ConvTranspose2d(width, width, kernel_size=2, stride=2)

        four_times = nn.Sequential(double(), GroupNorm(width), nn.GELU(), double())
        self.levels = nn.ModuleList((four_times, double(), nn.Identity(), nn.MaxPool2d(2)))

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Return four maps (batch, width, rows, columns), the largest first."""
        return [level(x) for level, x in zip(self.levels, features, strict=True)]


class PyramidPooling(nn.Module):
    """Pyramid pooling: joins a map with its means at several scales (arXiv 1612.01105)."""

    def __init__(self, inputs: int, channels: int, scales: Sequence[int]) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(scale), convolution_block(inputs, channels, 1))
            for scale in scales
        )
        self.bottleneck = convolution_block(inputs + len(scales) * channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Pool a map (batch, inputs, height, width) to a map (batch, channels, height, width)."""
        pooled = [resize(scale(x), x.shape[2:]) for scale in self.scales]
        return self.bottleneck(torch.cat((x, *pooled), dim=1))


class UperNetHead(nn.Module):
    """UperNet head: pyramid pooling of the smallest map, then a feature pyramid network.

    The input maps have `width` channels, and the maps inside the head have `channels` channels.
    """

    def __init__(
        self, width: int, channels: int, classes: int, scales: Sequence[int], dropout: float
    ) -> None:
        super().__init__()
        self.pooling = PyramidPooling(width, channels, scales)
        lower = range(LEVELS - 1)
        self.laterals = nn.ModuleList(convolution_block(width, channels, 1) for _ in lower)
        self.smooth = nn.ModuleList(convolution_block(channels, channels, 3) for _ in lower)
        self.fuse = convolution_block(LEVELS * channels, channels, 3)
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = PixelClassifier(channels, classes)

    def forward(self, levels: Sequence[Tensor]) -> Tensor:
        """Return logits (batch, classes, height, width), of the same size as the first map."""
        maps = [self.pooling(levels[-1])]
        for lateral, level in zip(reversed(self.laterals), reversed(levels[:-1]), strict=True):
            maps.insert(0, lateral(level) + resize(maps[0], level.shape[2:]))
        largest = maps[0].shape[2:]
        smooth = [module(x) for module, x in zip(self.smooth, maps[:-1], strict=True)]
        alike = [smooth[0], *(resize(x, largest) for x in (*smooth[1:], maps[-1]))]
        return self.classifier(self.dropout(self.fuse(torch.cat(alike, dim=1))))


class FCNHead(nn.Module):
    """Auxiliary FCN head, used only in training: one convolution and a classifier."""

    def __init__(self, width: int, channels: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.convolution = convolution_block(width, channels, 3)
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = PixelClassifier(channels, classes)

    def forward(self, level: Tensor) -> Tensor:
        """Return logits (batch, classes, rows, columns) of a map (batch, width, rows, columns)."""
        return self.classifier(self.dropout(self.convolution(level)))


class SegmentationLogits(NamedTuple):
    """Logits of both heads of a `Segmenter`, (batch, classes, rows, columns).

    The UperNet head has 4 x 4 logits per patch and class. Only the loss uses the FCN head's logits.
    """

    main: Tensor
    auxiliary: Tensor


class Segmenter(ImageEncoder):
    """Segmenter: an encoder, a feature pyramid over four of its layers, and two heads.

    The encoder has no final norm. The heads read the residual stream, as in BEiT.
    """

    def __init__(self, config: SegmenterConfig) -> None:
        classes = require(config.classes, "classes")
        super().__init__(config)
        self.encoder.final_norm = nn.Identity()
        self.pyramid = FeaturePyramid(config.width)
        width, dropout = config.width, config.head_dropout
        self.head = UperNetHead(width, config.head_channels, classes, config.pool_scales, dropout)
        self.auxiliary_head = FCNHead(width, config.auxiliary_channels, classes, dropout)

    def features(self, images: Tensor) -> list[Tensor]:
        """Return four layers' maps (batch, width, rows, columns).

        Images are (batch, channels, height, width).
        """
        grid = self.config.grid
        found = self.encoder.features(self.embed(images), self.config.read_layers)
        places = (features[:, grid.prefix :].transpose(1, 2) for features in found)
        return [x.unflatten(2, (grid.rows, grid.columns)) for x in places]

    def forward(self, images: Tensor) -> SegmentationLogits:
        """Return logits of images (batch, channels, height, width) of the configured size."""
        levels = self.pyramid(self.features(images))
        auxiliary = self.auxiliary_head(levels[self.config.auxiliary_level])
        return SegmentationLogits(self.head(levels), auxiliary)


def pixel_logits(model: Segmenter, images: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield each image's logits, float32 (classes, height, width).

    Images are (channels, height, width), of any size, on the model's device. The model must be in
    evaluation mode.
    """
    if model.config.inference == "slide":
        return sliding_logits(model, images)
    return (whole_logits(model, image) for image in images)


def sliding_logits(model: Segmenter, images: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield each image's logits, averaged over overlapping windows.

    An image smaller than a window is padded with zeros at the right and the bottom.
    """
    size = (model.config.image_size,) * 2
    stride = model.config.stride or model.config.image_size
    large = [at_least(image, size) for image in images]
    places = [list(window_places(image.shape[1:], size, stride)) for image in large]
    windows = [image[:, *place] for image, own in zip(large, places, strict=True) for place in own]
    pieces = (torch.stack(windows[i : i + WINDOWS]) for i in range(0, len(windows), WINDOWS))
    answers = (resize(logits[None].float(), size)[0] for p in pieces for logits in model(p).main)
    for own, wide, image in zip(places, large, images, strict=True):
        total = torch.zeros(model.config.classes, *wide.shape[1:], device=wide.device)
        count = total.new_zeros(1, *wide.shape[1:])
        for place in own:
            total[:, *place] += next(answers)
            count[:, *place] += 1
        yield (total / count)[:, : image.shape[1], : image.shape[2]]


def window_places(image: Sequence[int], window: Sequence[int], stride: int) -> Iterator[Place]:
    """Yield the positions of windows in an image, row by row.

    The rightmost and lowest windows end at the image's edges. `image` and `window` are (height,
    width). The image must be at least as large as a window.
    """
    rows, columns = (
        [min(step * stride, whole - part) for step in range(math.ceil((whole - part) / stride) + 1)]
        for whole, part in zip(image, window, strict=True)
    )
    for top in rows:
        for left in columns:
            yield slice(top, top + window[0]), slice(left, left + window[1])


def at_least(image: Tensor, size: Sequence[int]) -> Tensor:
    more = [max(wanted - given, 0) for wanted, given in zip(size, image.shape[1:], strict=True)]
    return F.pad(image, (0, more[1], 0, more[0]))


def whole_logits(model: Segmenter, image: Tensor) -> Tensor:
    """Encode a whole image in one pass, and return its logits, (classes, height, width).

    The image is padded with zeros to a multiple of the patch size.
    """
    patch = model.config.patch_size
    rows, columns = (max(2, math.ceil(side / patch)) for side in image.shape[1:])
    size = rows * patch, columns * patch
    answer = for_grid(model, rows, columns)(at_least(image, size)[None]).main.float()
    return resize(answer, size)[0, :, : image.shape[1], : image.shape[2]]


@dataclass(frozen=True, kw_only=True)
class WholeImageConfig(SegmenterConfig):
    """Configuration of a segmenter for `rows` x `columns` patches."""

    rows: int
    columns: int

    @property
    def grid(self) -> Grid:
        return Grid(self.rows, self.columns, super().grid.prefix)


def for_grid(model: Segmenter, rows: int, columns: int) -> Segmenter:
    """Return a model that shares the weights of `model` and reads `rows` x `columns` patches.

    Learned positions and relative biases are not shared. They are interpolated (bicubic).
    """
    length = Grid(rows, columns, model.config.grid.prefix).length
    # The configuration checks the length against its own square grid too.
    length = max(length, model.config.grid.length)
    shape = {**vars(model.config), "max_length": length, "rows": rows, "columns": columns}
    changed = WholeImageConfig(**shape)
    with torch.device("meta"):
        other = Segmenter(changed)
    state = model.state_dict(keep_vars=True)
    other.load_state_dict(resize_positions(state, model.config, changed), assign=True)
    return other.train(model.training)


def classes_of(logits: Tensor, size: Sequence[int]) -> Tensor:
    """Resize logits (classes, rows, columns) to `size`; return each pixel's best class."""
    return resize(logits[None], size)[0].argmax(0)
