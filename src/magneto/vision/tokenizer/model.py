"""The visual tokenizer, and the decoder that it is trained with (VQ-KD, arXiv 2208.06366)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn import functional as F

from magneto.functional.precision import without_autocast
from magneto.nn.embedding import ClassToken, PatchEmbedding
from magneto.nn.init import Projection
from magneto.nn.transformer import Encoder
from magneto.vision.tokenizer.codebook import Codebook
from magneto.vision.tokenizer.config import ImageTokenizerConfig


def two_layers(width: int, outputs: int) -> nn.Sequential:
    """Return linear, tanh, linear: from the stack's width to the outputs."""
    return nn.Sequential(
        Projection(width, [("hidden", width)], bias=True),
        nn.Tanh(),
        Projection(width, [("out", outputs)], bias=True),
    )


class ImageTokenizer(nn.Module):
    """From an image to a code per patch: an encoder, and the nearest of a codebook's directions."""

    def __init__(self, config: ImageTokenizerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = PatchEmbedding(config.channels, config.patch_size, config.width)
        learned = config.class_token == "learned"
        self.class_token = ClassToken(config.width) if learned else nn.Identity()
        self.encoder = Encoder(config)
        self.head = two_layers(config.width, config.code_width)
        self.codebook = Codebook(config.codes, config.code_width, config.decay, config.revive_below)
        self.patches = slice(int(learned), None)

    def features(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, patches, code_width), of length 1."""
        x = self.encoder(self.class_token(self.embedding(images)))[:, self.patches]
        # In the weights' precision also under autocast: a code is a comparison of near numbers.
        with without_autocast(images):
            return F.normalize(self.head(x.to(self.codebook.vectors.dtype)), dim=-1)

    def quantise(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the code of each feature and its vector; see `Codebook.forward`."""
        with without_autocast(features):
            return self.codebook(features)

    def encode(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) in [-1, 1] to codes (batch, patches), int64."""
        return self.quantise(self.features(images))[0]


class FeatureDecoder(nn.Module):
    """A small encoder stack over the codes' vectors, which a teacher's features are read from."""

    def __init__(self, config: ImageTokenizerConfig, target_width: int) -> None:
        super().__init__()
        self.embedding = Projection(config.code_width, [("embed", config.width)], bias=True)
        learned = config.class_token == "learned"
        self.class_token = ClassToken(config.width) if learned else nn.Identity()
        self.encoder = Encoder(replace(config, layers=config.decoder_depth))
        self.head = two_layers(config.width, target_width)
        self.patches = slice(int(learned), None)

    def forward(self, vectors: Tensor) -> Tensor:
        """(batch, patches, code_width) to (batch, patches, target_width)."""
        x = self.encoder(self.class_token(self.embedding(vectors)))
        return self.head(x[:, self.patches])


@dataclass(frozen=True)
class Distilled:
    """What a batch of images becomes.

    Attributes:
        predictions: Of the teacher's features, (batch, patches, target_width).
        codes: (batch, patches).
        distances: Mean squared difference of a feature and its code's vector, (batch, patches);
            only the feature has a gradient.
    """

    predictions: Tensor
    codes: Tensor
    distances: Tensor


class TokenizerDistillation(nn.Module):
    """A tokenizer with the decoder that trains it; afterwards only the tokenizer is used."""

    def __init__(self, config: ImageTokenizerConfig) -> None:
        super().__init__()
        if config.target_width is None:
            raise ValueError("target_width is not known: prepare the task, which asks the teacher")
        self.config = config
        self.tokenizer = ImageTokenizer(config)
        self.decoder = FeatureDecoder(config, config.target_width)

    def forward(self, images: Tensor) -> Distilled:
        """Encode, quantise, decode (batch, channels, height, width)."""
        features = self.tokenizer.features(images)
        codes, vectors = self.tokenizer.quantise(features)
        distances = (features - vectors).square().mean(-1)
        # Straight through: forwards the code, backwards as if it were the feature.
        passed = features + (vectors - features).detach()
        return Distilled(self.decoder(passed), codes, distances)
