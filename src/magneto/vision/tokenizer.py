"""Training a visual tokenizer: its codes must tell a decoder what a teacher sees (VQ-KD)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.stream import BatchStream
from magneto.functional.precision import without_autocast
from magneto.nn.embedding import ClassToken, PatchEmbedding
from magneto.nn.init import Projection
from magneto.nn.transformer import Encoder
from magneto.training.task import Figure, Loss, Scores
from magneto.vision.augmentation import training_transform
from magneto.vision.batches import training_stream
from magneto.vision.codebook import Codebook, k_means
from magneto.vision.config import ImageTokenizerConfig
from magneto.vision.image_task import ImageTask, patches_read
from magneto.vision.pictures import codes_figure, codes_of, readable, reconstruction_figure
from magneto.vision.teachers import Teacher, build_teacher


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


# Of which the baseline takes the mean, and pictures are made.
BASELINE_BATCHES = 8
# Patches of the training images for each code; 8192 codes were all used with 100,000 patches.
PATCHES_PER_CODE = 12


class ImageTokenization(ImageTask):
    """Images, a `TokenizerDistillation`, 1 - cosine per patch and the commitment's distance.

    The codebook is no gradient's: it begins with k-means of the first batches and follows a moving
    average, both over all ranks and micro-batches.
    """

    whole_model = "a visual tokenizer begins with k-means, for which its encoder is run alone"
    model_config: ImageTokenizerConfig

    @cached_property
    def teacher(self) -> Teacher:
        """What gives the features to predict, on the CPU until it is the companion."""
        return build_teacher(self.model_config).requires_grad_(False).eval()

    def check(self) -> None:
        """See that images, model and teacher fit together; say it if there are few patches."""
        super().check()
        config = self.model_config
        if self.data_config.normalisation != "half":
            raise ValueError("data.normalisation must be half: a visual tokenizer reads pixels "
                             "from -1 to 1")  # fmt: skip
        if config.target_width not in (None, self.teacher.width):
            raise ValueError(f"the teacher's features have a width of {self.teacher.width}, "
                             f"model.target_width is {config.target_width}")  # fmt: skip
        patches = len(self.splits.train) * config.patches
        if patches < PATCHES_PER_CODE * config.codes:
            proposed = 2 ** max(1, int(math.log2(max(2, patches / PATCHES_PER_CODE))))
            self._progress.say(f"{patches:,} patches are few for {config.codes} codes, and some "
                               f"will stay unused: try model.codes {proposed}")  # fmt: skip

    def build_model(self) -> TokenizerDistillation:
        """Build the model, its decoder as wide as the teacher's features if that is not set."""
        width = self.model_config.target_width or self.teacher.width
        return TokenizerDistillation(replace(self.model_config, target_width=width))

    def companion(self) -> nn.Module:
        """Return the teacher."""
        return self.teacher

    @torch.no_grad()
    def begin_training(
        self,
        model: Any,
        batches: Iterator[Sequence[Any]],
        gather: Callable[[Tensor], Tensor],
    ) -> None:
        """Begin the codebook with k-means of the first batches' features, the same on all ranks."""
        config, rows = self.model_config, []
        while sum(map(len, rows)) < config.codes * config.k_means_patches:
            pieces = [model.tokenizer.features(piece["images"]) for piece in next(batches)]
            rows.append(gather(torch.cat(pieces).flatten(0, 1)))
        found = k_means(torch.cat(rows), config.codes, config.k_means_iterations, self.seed)
        # Where a device adds up in no fixed order, ranks would differ: the first one's are taken.
        model.tokenizer.codebook.vectors.copy_(gather(found)[: config.codes])

    def end_step(self, model: Any, add_up: Callable[[Tensor], Tensor]) -> None:
        """Move the codebook, once for all micro-batches and ranks."""
        model.tokenizer.codebook.end_step(add_up)

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return images in random order, augmented."""
        data, train = self.data_config, self.splits.train
        transform = training_transform(data, self.reading)
        return training_stream(train, transform, batch_size, seed, data.augmentation.repeats)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        """Sum 1 - cosine and the weighted distance to the code, over patches."""
        apart, distance, codes = self._measure(model, batch)
        total = apart.sum() + self.model_config.commitment * distance.sum()
        count = torch.ones_like(codes).sum()
        logs = {"cosine": (1 - apart.detach()).sum(), "commitment": distance.detach().sum()}
        return Loss(total, count, logs)

    def _measure(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return 1 - cosine, the distance to the code, and the code, each (batch, patches)."""
        images = batch["images"]
        with torch.no_grad():
            wanted = self.teacher(images)
        found = model(images)
        # Not below fp32, also under autocast.
        dtype = torch.promote_types(found.predictions.dtype, torch.float32)
        cosine = F.cosine_similarity(found.predictions.to(dtype), wanted.to(dtype), dim=-1)
        return 1 - cosine, found.distances, found.codes

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        """Add up loss and cosine over patches; count how often each code occurs.

        Images that could not be read are left out.
        """
        apart, distance, codes = self._measure(model, batch)
        there = (~batch["broken"])[:, None].expand_as(codes).to(apart.dtype)
        used = torch.zeros(self.model_config.codes, dtype=apart.dtype, device=apart.device)
        return Scores({
            "apart": (apart * there).sum(),
            "distance": (distance * there).sum(),
            "count": there.sum(),
            "used": used.index_add(0, codes.flatten(), there.flatten()),
        })  # fmt: skip

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the loss, the cosine, and how the codebook is used by the validation images.

        "codebook_use" is the share of codes that occur; "codebook_perplexity" how many codes, all
        used alike, would have the same entropy.

        Raises:
            ValueError: If no image could be read.
        """
        count, used = patches_read(sums), [share for share in sums["used"] if share]
        apart = sums["apart"] / count
        entropy = -sum(times / count * math.log(times / count) for times in used)
        return {
            "loss": apart + self.model_config.commitment * sums["distance"] / count,
            "cosine": 1 - apart,
            "codebook_use": len(used) / self.model_config.codes,
            "codebook_perplexity": math.exp(entropy),
        }

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return what the mean of the teacher's features reaches, the same for every patch."""
        with torch.no_grad():
            some = islice(self.fixed_batches(self.splits.train), BASELINE_BATCHES)
            known = torch.cat([self._wanted(batch) for batch in some])
            mean = F.normalize(known.mean(0), dim=0)
            asked = islice(self.validation_batches(), limit)
            cosine = torch.cat([self._wanted(batch) for batch in asked]) @ mean
        return {"loss": 1 - cosine.mean().item(), "cosine": cosine.mean().item()}

    def _wanted(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the directions of the teacher's features, (patches of all images, width)."""
        device = next(self.teacher.buffers(), torch.empty(0)).device
        images = batch["images"][~batch["broken"]].to(device)
        return F.normalize(self.teacher(images), dim=-1).flatten(0, 1).cpu()

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write a digest of data and teacher, which tells how wide its features are."""
        self.write_digest(directory, self.teacher.digest())
        return {"model.target_width": self.teacher.width}


def figures(task: ImageTokenization, model: Any) -> Sequence[Figure]:
    """Return patches that share a code, and images whose patches are their code's mean."""
    (images,) = readable(task.validation_batches(), BASELINE_BATCHES, "images")
    if not len(images):
        return []
    tokenizer, config = model.tokenizer, task.model_config
    codes = codes_of(tokenizer.encode, images, tokenizer.codebook.vectors.device)
    arguments = images, codes, config.codes, config.patch_size
    return [codes_figure(*arguments), reconstruction_figure(*arguments)]
