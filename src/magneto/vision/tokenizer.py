"""The visual tokenizer's training: its codes must tell a decoder what a teacher sees (VQ-KD).

The tokenizer itself is in `magneto.vision.targets`. A teacher is a frozen module with a `width` and
a `forward` from images (batch, channels, height, width) in [-1, 1] to (batch, patches, width), of
which only a vector's direction counts. The codebook moves with the sums that a step leaves in it,
once for all micro-batches and ranks; no gradient reaches it (arXiv 2208.06366, section 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.config import error_line
from magneto.files import import_extra
from magneto.functional.cross_entropy import without_autocast
from magneto.nn.embedding import ClassToken
from magneto.nn.init import Projection
from magneto.nn.transformer import Encoder
from magneto.training.task import Figure, Loss, Scores
from magneto.vision.config import ImageEncoderConfig, ImageTokenizerConfig
from magneto.vision.image_task import ImageTask, patches_read
from magneto.vision.targets import (
    ImageTokenizer,
    k_means,
    patch_pixels,
    two_layers,
    weights_digest,
)

ORIENTATIONS = 9
# A constant beside what is measured, so that a flat patch has a direction too, and a faint one is
# nearer to it than a strong one. In gradients of pixels from 0 to 1.
FLAT = 0.05
# Of which the baseline takes the mean, and pictures are made.
BASELINE_BATCHES = 8
# Patches of the training images for each code; 8192 codes were all used with 100,000 patches.
PATCHES_PER_CODE = 12

# Of the k-means that a codebook begins with: rounds, and patches per code that it sees at least.
K_MEANS_ITERATIONS, K_MEANS_PATCHES = 10, 10


def gradient_histograms(images: Tensor, cell: int) -> Tensor:
    """Count gradients by their direction, each by its length, in square cells.

    As scikit-image's `hog` without its normalisation: central differences, 0 at the border; of
    several channels the one with the longest gradient; directions without sign, each in one bin.

    Returns:
        Of (batch, channels, height, width) the mean over a cell's pixels, (batch, 9, height / cell,
        width / cell); `cell` pixels are a cell's side.
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


class HogTeacher(nn.Module):
    """Histograms of gradients of the image itself, as MaskFeat predicts (arXiv 2112.09133).

    A patch of 8 pixels or more has four cells, a smaller one a single cell.
    """

    def __init__(self, config: ImageEncoderConfig) -> None:
        super().__init__()
        _, size, _ = config.input_sizes
        self.cells = 2 if size >= 8 and size % 2 == 0 else 1
        self.cell = size // self.cells
        self.width = (ORIENTATIONS + 1) * self.cells**2

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, patches, width)."""
        with without_autocast(images):
            found = gradient_histograms((images + 1) / 2, self.cell)
            directed = F.normalize(F.pad(found, (0, 0, 0, 0, 0, 1), value=FLAT), dim=1)
            return F.pixel_unshuffle(directed, self.cells).flatten(2).transpose(1, 2)


class PixelTeacher(nn.Module):
    """The pixels of each patch; see `patch_pixels`."""

    def __init__(self, config: ImageEncoderConfig) -> None:
        super().__init__()
        _, self.patch_size, channels = config.input_sizes
        self.width = channels * self.patch_size**2 + 1

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, patches, width)."""
        return patch_pixels(images, self.patch_size)


class PretrainedTeacher(nn.Module):
    """The features of a model of transformers, from images of its own size and normalisation.

    Of CLIP's image encoder (arXiv 2103.00020) the patches after its last norm and its projection;
    of DINO's or DINOv2's (arXiv 2104.14294, 2304.07193) those after its last norm.

    Raises:
        ValueError: If there is no such model, or it has another grid of patches.
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


def build_teacher(config: ImageTokenizerConfig) -> Any:
    """Build the teacher that a configuration names; see the classes for what they raise."""
    kind, _, path = config.teacher.partition(":")
    if path:
        return PretrainedTeacher(kind, path, config)
    return {"hog": HogTeacher, "pixels": PixelTeacher}[kind](config)


class FeatureDecoder(nn.Module):
    """A small encoder stack over the codes' vectors, which a teacher's features are read from."""

    def __init__(self, config: ImageTokenizerConfig, target_width: int) -> None:
        super().__init__()
        self.embedding = Projection(config.code_width, [("embed", config.width)], bias=True)
        self.class_token = ClassToken(config.width) if config.prefix else nn.Identity()
        self.encoder = Encoder(replace(config, layers=config.decoder_depth))
        self.head = two_layers(config.width, target_width)
        self.prefix = config.prefix

    def forward(self, vectors: Tensor) -> Tensor:
        """(batch, patches, code_width) to (batch, patches, target_width)."""
        x = self.encoder(self.class_token(self.embedding(vectors)))
        return self.head(x[:, self.prefix :])


class TokenizerDistillation(nn.Module):
    """A tokenizer with the decoder that trains it; afterwards only the tokenizer is used."""

    def __init__(self, config: ImageTokenizerConfig) -> None:
        super().__init__()
        if config.target_width is None:
            raise ValueError("target_width is not known: prepare the task, which asks the teacher")
        self.config = config
        self.tokenizer = ImageTokenizer(config)
        self.decoder = FeatureDecoder(config, config.target_width)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode, quantise, decode (batch, channels, height, width).

        Returns:
            Predictions of the teacher's features, (batch, patches, target_width); codes (batch,
            patches); the mean squared difference of feature and code, whose gradient is the
            feature's alone.
        """
        features = self.tokenizer.features(images)
        codes, vectors = self.tokenizer.quantise(features)
        distances = (features - vectors).square().mean(-1)
        # Straight through: forwards the code, backwards as if it were the feature.
        passed = features + (vectors - features).detach()
        return self.decoder(passed), codes, distances


class ImageTokenization(ImageTask):
    """Images, a `TokenizerDistillation`, 1 - cosine per patch and the commitment's distance.

    The codebook is no gradient's: it begins with k-means of the first batches and follows a moving
    average, both over all ranks and micro-batches.
    """

    whole_model = "a visual tokenizer begins with k-means, for which its encoder is run alone"
    model_config: ImageTokenizerConfig

    @cached_property
    def teacher(self) -> Any:
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
        while sum(map(len, rows)) < config.codes * K_MEANS_PATCHES:
            pieces = [model.tokenizer.features(piece["images"]) for piece in next(batches)]
            rows.append(gather(torch.cat(pieces).flatten(0, 1)))
        found = k_means(torch.cat(rows), config.codes, K_MEANS_ITERATIONS, self.seed)
        # Where a device adds up in no fixed order, ranks would differ: the first one's are taken.
        model.tokenizer.codebook.vectors.copy_(gather(found)[: config.codes])

    def end_step(self, model: Any, add_up: Callable[[Tensor], Tensor]) -> None:
        """Move the codebook, once for all micro-batches and ranks."""
        model.tokenizer.codebook.end_step(add_up)

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
        predictions, codes, distances = model(images)
        # Not below fp32, also under autocast.
        dtype = torch.promote_types(predictions.dtype, torch.float32)
        cosine = F.cosine_similarity(predictions.to(dtype), wanted.to(dtype), dim=-1)
        return 1 - cosine, distances, codes

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
        self.prepare()
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

    def digests(self) -> list[str]:
        """Return names of the content of the images and of the teacher."""
        kind = self.model_config.teacher.partition(":")[0]
        return [*super().digests(), kind, weights_digest(self.teacher)]

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write a digest of data and teacher; return the width of its features too."""
        return super().save_assets(directory) | {"model.target_width": self.teacher.width}


def figures(task: ImageTokenization, model: Any) -> Sequence[Figure]:
    """Return patches that share a code, and images whose patches are their code's mean."""
    from magneto.vision.figures import codes_figure, codes_of, readable, reconstruction_figure

    (images,) = readable(task.validation_batches(), BASELINE_BATCHES, "images")
    if not len(images):
        return []
    tokenizer, config = model.tokenizer, task.model_config
    codes = codes_of(tokenizer.encode, images, tokenizer.codebook.vectors.device)
    arguments = images, codes, config.codes, config.input_sizes[1]
    return [codes_figure(*arguments), reconstruction_figure(*arguments)]
