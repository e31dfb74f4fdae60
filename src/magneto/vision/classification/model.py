"""Image classifiers: patches in, an encoder, its features pooled, the classes out."""

from __future__ import annotations

from torch import Tensor, nn

from magneto.nn.embedding import ClassToken, PatchEmbedding
from magneto.nn.init import NormalLinear
from magneto.nn.transformer import Encoder
from magneto.vision.classification.config import ImageClassifierConfig


class TwoHeads(nn.Module):
    """DeiT's heads: one for the class token, one for the distillation token; their mean answers."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.class_head = NormalLinear(width, classes, bias=True, std=0.001)
        self.distillation_head = NormalLinear(width, classes, bias=True, std=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 2, width) to logits (batch, classes)."""
        return (self.class_head(x[:, 0]) + self.distillation_head(x[:, 1])) / 2


class Mean(nn.Module):
    """The mean of a sequence's features."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to (batch, width)."""
        return x.mean(dim=1)


class TwoTokens(nn.Module):
    """DeiT's class token and, after it, its distillation token; zero at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = ClassToken(width), ClassToken(width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, patches, width) to (batch, 2 + patches, width)."""
        return self.first(self.second(x))


def new_head(config: ImageClassifierConfig) -> nn.Module:
    """Draw a head small: the first loss is ln classes."""
    if config.pooling == "first_two":
        return TwoHeads(config.width, config.classes)
    return NormalLinear(config.width, config.classes, bias=True, std=0.001)


def new_tokens(config: ImageClassifierConfig) -> nn.Module:
    """Return what puts learned vectors before the patches, if there are any."""
    if config.class_token == "none":
        return nn.Identity()
    return ClassToken(config.width) if config.prefix == 1 else TwoTokens(config.width)


def pooled_features(config: ImageClassifierConfig) -> slice:
    """Return which of the features the head reads."""
    ends = {"first": 1, "first_two": 2}
    return slice(0, ends[config.pooling]) if config.pooling in ends else slice(config.prefix, None)


class ImageClassifier(nn.Module):
    """Patches, encoder, pooling, a head drawn small: the first loss is ln classes."""

    def __init__(self, config: ImageClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = PatchEmbedding(config.channels, config.patch_size, config.width)
        self.class_token = new_tokens(config)
        self.encoder = Encoder(config)
        # The parameters are the same wherever the last norm stands.
        self.pooled_norm: nn.Module = nn.Identity()
        if config.pooling == "mean_then_norm":
            self.pooled_norm, self.encoder.final_norm = self.encoder.final_norm, nn.Identity()
        self.pooled = pooled_features(config)
        self.pool = nn.Identity() if config.pooling == "first_two" else Mean()
        self.head = new_head(config)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to logits (batch, classes)."""
        features = self.encoder(self.class_token(self.embedding(images)))
        return self.head(self.pooled_norm(self.pool(features[:, self.pooled])))
