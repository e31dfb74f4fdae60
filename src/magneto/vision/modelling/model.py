"""Masked image models: an encoder over patches that guesses the codes of the hidden ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from magneto.functional.cross_entropy import CrossEntropyLoss, linear_cross_entropy
from magneto.nn.embedding import ClassToken, MaskToken, PatchEmbedding
from magneto.nn.init import NORMAL_STD, NormalLinear
from magneto.nn.transformer import Encoder
from magneto.vision.modelling.config import ImageModelConfig


class NoAggregation(nn.Module):
    """What stands where there is no second guess."""

    layers: tuple[int, ...] = ()

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """Return no further features."""
        return []


class PatchAggregation(nn.Module):
    """Patches of a middle layer beside the last layer's class token, in a small stack of their own.

    What the hidden patches need and the middle layer lacks has to come through the class token
    (arXiv 2208.06366, section 3.2). Unlike in the released code its last norm, and a shared
    relative bias where the model has one, are its own.
    """

    def __init__(self, config: ImageModelConfig, layer: int) -> None:
        super().__init__()
        # From the numbers of layers to those that are read, which count from 0.
        self.layers = (layer - 1,)
        shape = replace(config, layers=config.aggregation_depth, aggregation_layer=None)
        self.encoder = Encoder(replace(shape, positions="none", drop_path=0.0))

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """From features of the middle and the last layer to those of the second guess."""
        middle, last = features
        return [self.encoder(torch.cat((last[:, :1], middle[:, 1:]), dim=1))]


@dataclass(frozen=True)
class Guesses:
    """Losses of a batch of masked images.

    Attributes:
        loss: Of the model's guesses.
        others: Of the second guess, if there is one.
    """

    loss: CrossEntropyLoss
    others: list[CrossEntropyLoss]


class MaskedImageModel(nn.Module):
    """Patches, some of them hidden, an encoder, and a head over the codes.

    The head, the stack's last norm and one linear layer, sees the hidden places alone.
    """

    def __init__(self, config: ImageModelConfig) -> None:
        super().__init__()
        if config.codes is None:
            raise ValueError("codes are not known: prepare the task, which asks the tokenizer")
        self.config = config
        self.embedding = PatchEmbedding(config.channels, config.patch_size, config.width)
        self.mask_token = MaskToken(config.width)
        learned = config.class_token == "learned"
        self.class_token = ClassToken(config.width) if learned else nn.Identity()
        self.encoder = Encoder(config)
        middle = config.aggregation_layer
        self.aggregation = NoAggregation() if middle is None else PatchAggregation(config, middle)
        self.read = (*self.aggregation.layers, config.layers - 1)
        self.head = NormalLinear(config.width, config.codes, bias=True, std=NORMAL_STD)
        self.prefix = int(learned)

    def embed(self, images: Tensor, hidden: Tensor) -> Tensor:
        """Return the patches, (batch, patches, width), the hidden ones replaced; see `features`."""
        patches = self.embedding(images)
        places = torch.zeros(patches.shape[:2], dtype=torch.bool, device=patches.device)
        return self.mask_token(patches, places.scatter(1, hidden, True))

    def features(self, images: Tensor, hidden: Tensor) -> list[Tensor]:
        """Return what the head reads at the hidden places: of the guess, and of a second one.

        Args:
            images: (batch, channels, height, width).
            hidden: Numbers of the hidden patches, (batch, count).

        Returns:
            Each (batch, count, width).
        """
        x = self.class_token(self.embed(images, hidden))
        read = self.encoder.features(x, self.read)
        found = [self.encoder.final_norm(read[-1]), *self.aggregation(read)]
        index = (hidden + self.prefix)[..., None].expand(-1, -1, x.shape[-1])
        return [features.gather(1, index) for features in found]

    def forward(self, images: Tensor, hidden: Tensor, codes: Tensor | None = None) -> Any:
        """Return logits, or with codes the losses, whose logits never exist all at once.

        Args:
            images: (batch, channels, height, width).
            hidden: Numbers of the hidden patches, (batch, count).
            codes: That are to be guessed there, (batch, count).

        Returns:
            Of the model's own guess (batch, count, codes), or `Guesses`.
        """
        if codes is None:
            return self.head(self.features(images, hidden)[0])
        weight, bias, chunk = self.head.weight, self.head.bias, self.config.loss_chunk
        first, *others = (
            linear_cross_entropy(features, weight, codes, bias, chunk=chunk)
            for features in self.features(images, hidden)
        )
        return Guesses(first, others)
