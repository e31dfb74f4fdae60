"""Segmentation models: a ViT, features of four of its layers, a pyramid, UperNet."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from magneto.nn.embedding import ClassToken, PatchEmbedding
from magneto.nn.transformer import Encoder
from magneto.vision.segmentation.config import SegmenterConfig
from magneto.vision.segmentation.heads import FCNHead, FeaturePyramid, UperNetHead


class SegmentationLogits(NamedTuple):
    """What a `Segmenter` answers.

    Attributes:
        main: (batch, classes, height, width), of 4 x 4 pixels per patch.
        auxiliary: (batch, classes, rows, columns), for the loss alone.
    """

    main: Tensor
    auxiliary: Tensor


class Segmenter(nn.Module):
    """Patches, encoder, features of four layers, pyramid, heads.

    The stack's last norm is left out: the heads read the residual stream, as BEiT's do.
    """

    def __init__(self, config: SegmenterConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = PatchEmbedding(config.channels, config.patch_size, config.width)
        learned = config.class_token == "learned"
        self.class_token = ClassToken(config.width) if learned else nn.Identity()
        self.encoder = Encoder(config)
        self.encoder.final_norm = nn.Identity()
        self.pyramid = FeaturePyramid(config.width)
        self.head = UperNetHead(
            config.width,
            config.head_channels,
            config.classes,
            config.pool_scales,
            config.head_dropout,
        )
        self.auxiliary_head = FCNHead(
            config.width, config.auxiliary_channels, config.classes, config.head_dropout
        )

    def features(self, images: Tensor) -> list[Tensor]:
        """(batch, channels, height, width) to four maps (batch, width, rows, columns)."""
        grid = self.config.grid
        x = self.class_token(self.embedding(images))
        found = self.encoder.features(x, self.config.feature_layers)
        places = (features[:, grid.prefix :].transpose(1, 2) for features in found)
        return [x.unflatten(2, (grid.rows, grid.columns)) for x in places]

    def forward(self, images: Tensor) -> SegmentationLogits:
        """(batch, channels, height, width) to logits; the size is the configuration's."""
        levels = self.pyramid(self.features(images))
        auxiliary = self.auxiliary_head(levels[self.config.auxiliary_level])
        return SegmentationLogits(self.head(levels), auxiliary)
