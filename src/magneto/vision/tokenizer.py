"""Training of an image tokenizer by VQ-KD (arXiv 2208.06366, section 2.2).

A decoder predicts a teacher's features from the codes. A teacher is a frozen module with a `width`.
Teachers map images (batch, channels, height, width) in [-1, 1] to features (batch, patches, width).
Predictions and features are compared by cosine.
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
from magneto.vision.config import ImageEncoderConfig, ImageTokenizerConfig, require
from magneto.vision.image_task import ImageTask, count_patches
from magneto.vision.targets import ImageTokenizer, k_means, patch_pixels, two_layers, weights_digest

ORIENTATIONS = 9
# Constant appended to the histograms, so that a patch without gradients has a direction, too. Its
# unit is that of gradients of pixels from 0 to 1.
FLAT = 0.05
# Training batches of the baseline's mean, and validation batches of figures.
BASELINE_BATCHES = 8
# Training patches needed for each code: 8192 codes were all used with 100,000 patches.
PATCHES_PER_CODE = 12

# K-means that initialises the codebook: iterations, and smallest number of patches per code.
K_MEANS_ITERATIONS, K_MEANS_PATCHES = 10, 10


def gradient_histograms(images: Tensor, cell: int) -> Tensor:
    """Return histograms of gradient directions, (batch, 9, height / cell, width / cell).

    As in scikit-image's `hog` without normalisation, the weight of a gradient is its magnitude.
    The histogram of a cell is the mean over the pixels of the cell.
    """
    down, across = torch.zeros_like(images), torch.zeros_like(images)
    down[..., 1:-1, :] = images[..., 2:, :] - images[..., :-2, :]
    across[..., 1:-1] = images[..., 2:] - images[..., :-2]
    length, channel = torch.hypot(down, across).max(1, keepdim=True)
    angle = torch.atan2(down.gather(1, channel), across.gather(1, channel)) % math.pi
    # An angle just below 0 is rounded to pi.
    number = (angle * (ORIENTATIONS / math.pi)).long().clamp(max=ORIENTATIONS - 1)
    shape = (len(images), ORIENTATIONS, *images.shape[-2:])
    by_direction = images.new_zeros(shape).scatter_(1, number, length)
    return F.avg_pool2d(by_direction, cell)


class HogTeacher(nn.Module):
    """Teacher with histograms of oriented gradients, as in MaskFeat (arXiv 2112.09133).

    A patch has four cells if the patch side is even and at least 8 pixels, else one cell.
    """

    def __init__(self, config: ImageEncoderConfig) -> None:
        super().__init__()
        _, size, _ = config.input_sizes
        self.cells = 2 if size >= 8 and size % 2 == 0 else 1
        self.cell = size // self.cells
        self.width = (ORIENTATIONS + 1) * self.cells**2

    def forward(self, images: Tensor) -> Tensor:
        with without_autocast(images):
            found = gradient_histograms((images + 1) / 2, self.cell)
            directed = F.normalize(F.pad(found, (0, 0, 0, 0, 0, 1), value=FLAT), dim=1)
            return F.pixel_unshuffle(directed, self.cells).flatten(2).transpose(1, 2)


class PixelTeacher(nn.Module):
    """Teacher whose features are the pixels of each patch; see `patch_pixels`."""

    def __init__(self, config: ImageEncoderConfig) -> None:
        super().__init__()
        _, self.patch_size, channels = config.input_sizes
        self.width = channels * self.patch_size**2 + 1

    def forward(self, images: Tensor) -> Tensor:
        return patch_pixels(images, self.patch_size)


class PretrainedTeacher(nn.Module):
    """Teacher from the library transformers. The teacher has its own image size and normalisation.

    The teacher's features are the outputs of its final norm for the patches. The features of CLIP
    are also multiplied by CLIP's projection matrix.
    """

    image_mean: Tensor
    image_std: Tensor

    def __init__(self, kind: str, path: str, config: ImageEncoderConfig) -> None:
        super().__init__()
        library = import_extra("transformers", "hf", "the teacher needs the package transformers")
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
            raise ValueError(f"the teacher {path} has a grid of {side} x {side} patches, but the "
                             f"model has {config.grid.rows} x {config.grid.columns}: set "
                             "model.image_size and model.patch_size")  # fmt: skip
        if config.channels != vision.num_channels:
            raise ValueError(f"the teacher {path} reads {vision.num_channels} channels: set "
                             f"model.channels to {vision.num_channels}")  # fmt: skip
        for name in ("image_mean", "image_std"):
            values = torch.tensor(found[name]).view(-1, 1, 1)
            self.register_buffer(name, values, persistent=False)
        self.width = vision.projection_dim if self.projects else vision.hidden_size

    def tokens(self, images: Tensor) -> Tensor:
        """Return the features of all tokens; the patches come last."""
        if not self.projects:
            return self.model(images).last_hidden_state
        vision = self.model.vision_model
        features = vision(images).last_hidden_state
        return self.model.visual_projection(vision.post_layernorm(features))

    def forward(self, images: Tensor) -> Tensor:
        size = (self.image_size, self.image_size)
        if images.shape[-2:] != size:
            images = F.interpolate(images, size, mode="bicubic", antialias=True)
        images = ((images + 1) / 2 - self.image_mean) / self.image_std
        return self.tokens(images)[:, -self.patches :]


def build_teacher(config: ImageTokenizerConfig) -> Any:
    kind, _, path = config.teacher.partition(":")
    if path:
        return PretrainedTeacher(kind, path, config)
    return {"hog": HogTeacher, "pixels": PixelTeacher}[kind](config)


class FeatureDecoder(nn.Module):
    """Decoder: a small Transformer stack that predicts a teacher's features from code vectors."""

    def __init__(self, config: ImageTokenizerConfig, target_width: int) -> None:
        super().__init__()
        self.embedding = Projection(config.code_width, [("embed", config.width)], bias=True)
        self.class_token = ClassToken(config.width) if config.prefix else nn.Identity()
        self.encoder = Encoder(replace(config, layers=config.decoder_depth))
        self.head = two_layers(config.width, target_width)
        self.prefix = config.prefix

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors (batch, patches, code_width) to features (batch, patches, target_width)."""
        x = self.encoder(self.class_token(self.embedding(vectors)))
        return self.head(x[:, self.prefix :])


class TokenizerDistillation(nn.Module):
    """Image tokenizer with the decoder that is used only in training."""

    def __init__(self, config: ImageTokenizerConfig) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = ImageTokenizer(config)
        self.decoder = FeatureDecoder(config, require(config.target_width, "target_width"))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode, quantise and decode images (batch, channels, height, width).

        Returns:
            A tuple of three tensors: the predicted features of the teacher (batch, patches,
            target_width), the codes (batch, patches), and the commitment loss (batch, patches). The
            gradient of the commitment loss flows only to the encoder.
        """
        features = self.tokenizer.features(images)
        codes, vectors = self.tokenizer.quantise(features)
        distances = (features - vectors).square().mean(-1)
        # Straight-through estimator: the code forwards, the feature's gradient backwards.
        passed = features + (vectors - features).detach()
        return self.decoder(passed), codes, distances


class ImageTokenization(ImageTask):
    """Training of an image tokenizer.

    The loss per patch is 1 - cosine plus the weighted commitment loss. K-means of the first batches
    initialises the codebook.
    """

    whole_model = (
        "the k-means that initialises the codebook runs the encoder outside of the model's forward "
        "pass"
    )
    model_config: ImageTokenizerConfig

    @cached_property
    def teacher(self) -> Any:
        return build_teacher(self.model_config).requires_grad_(False).eval()

    def check(self) -> None:
        super().check()
        config = self.model_config
        if self.data_config.normalisation != "half":
            raise ValueError("data.normalisation must be 'half', because an image tokenizer needs "
                             "pixels from -1 to 1")  # fmt: skip
        if config.target_width not in (None, self.teacher.width):
            raise ValueError(f"model.target_width is {config.target_width}, but the teacher's "
                             f"features have a width of {self.teacher.width}: do not set "
                             "model.target_width")  # fmt: skip
        patches = len(self.splits.train) * config.patches
        if patches < PATCHES_PER_CODE * config.codes:
            proposed = 2 ** max(1, int(math.log2(max(2, patches / PATCHES_PER_CODE))))
            self._progress.say(f"WARNING: {patches:,} patches are few for {config.codes} codes, so "
                               f"some codes stay unused: try --model.codes {proposed}")  # fmt: skip

    def build_model(self) -> TokenizerDistillation:
        width = self.model_config.target_width or self.teacher.width
        return TokenizerDistillation(replace(self.model_config, target_width=width))

    def companion(self) -> nn.Module:
        return self.teacher

    @torch.no_grad()
    def begin_training(
        self,
        model: Any,
        batches: Iterator[Sequence[Any]],
        gather: Callable[[Tensor], Tensor],
    ) -> None:
        config, rows = self.model_config, []
        while sum(map(len, rows)) < config.codes * K_MEANS_PATCHES:
            pieces = [model.tokenizer.features(piece["images"]) for piece in next(batches)]
            rows.append(gather(torch.cat(pieces).flatten(0, 1)))
        found = k_means(torch.cat(rows), config.codes, K_MEANS_ITERATIONS, self.seed)
        # The order of sums on a GPU is not fixed, so that centres differ between ranks: all ranks
        # use those of the first rank.
        model.tokenizer.codebook.vectors.copy_(gather(found)[: config.codes])

    def end_step(self, model: Any, add_up: Callable[[Tensor], Tensor]) -> None:
        model.tokenizer.codebook.end_step(add_up)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        apart, distance, codes = self._measure(model, batch)
        total = apart.sum() + self.model_config.commitment * distance.sum()
        count = torch.ones_like(codes).sum()
        logs = {"cosine": (1 - apart.detach()).sum(), "commitment": distance.detach().sum()}
        return Loss(total, count, logs)

    def _measure(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """For each patch, return three values: 1 - cosine, the commitment loss, and the code."""
        images = batch["images"]
        with torch.no_grad():
            wanted = self.teacher(images)
        predictions, codes, distances = model(images)
        # In float32 or more, also under autocast.
        dtype = torch.promote_types(predictions.dtype, torch.float32)
        cosine = F.cosine_similarity(predictions.to(dtype), wanted.to(dtype), dim=-1)
        return 1 - cosine, distances, codes

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Scores:
        apart, distance, codes = self._measure(model, batch)
        readable = (~batch["broken"])[:, None].expand_as(codes).to(apart.dtype)
        used = torch.zeros(self.model_config.codes, dtype=apart.dtype, device=apart.device)
        return Scores({
            "apart": (apart * readable).sum(),
            "distance": (distance * readable).sum(),
            "count": readable.sum(),
            "used": used.index_add(0, codes.flatten(), readable.flatten()),
        })  # fmt: skip

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return "loss", "cosine", "codebook_use" and "codebook_perplexity".

        "codebook_use" is the share of codes that occur. "codebook_perplexity" is exp(entropy of the
        code frequencies).
        """
        count, used = count_patches(sums), [share for share in sums["used"] if share]
        apart = sums["apart"] / count
        entropy = -sum(times / count * math.log(times / count) for times in used)
        return {
            "loss": apart + self.model_config.commitment * sums["distance"] / count,
            "cosine": 1 - apart,
            "codebook_use": len(used) / self.model_config.codes,
            "codebook_perplexity": math.exp(entropy),
        }

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        self.prepare()
        with torch.no_grad():
            some = islice(self.fixed_batches(self.splits.train), BASELINE_BATCHES)
            known = torch.cat([self._wanted(batch) for batch in some])
            mean = F.normalize(known.mean(0), dim=0)
            asked = islice(self.validation_batches(), limit)
            cosine = torch.cat([self._wanted(batch) for batch in asked]) @ mean
        return {"loss": 1 - cosine.mean().item(), "cosine": cosine.mean().item()}

    def _wanted(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the teacher's features as unit vectors, (patches of all images, width)."""
        device = next(self.teacher.buffers(), torch.empty(0)).device
        images = batch["images"][~batch["broken"]].to(device)
        return F.normalize(self.teacher(images), dim=-1).flatten(0, 1).cpu()

    def digests(self) -> list[str]:
        kind = self.model_config.teacher.partition(":")[0]
        return [*super().digests(), kind, weights_digest(self.teacher)]

    def save_assets(self, directory: Path) -> dict[str, Any]:
        return super().save_assets(directory) | {"model.target_width": self.teacher.width}


def figures(task: ImageTokenization, model: Any) -> Sequence[Figure]:
    from magneto.vision.figures import codes_figure, codes_of, readable, reconstruction_figure

    (images,) = readable(task.validation_batches(), BASELINE_BATCHES, "images")
    if not len(images):
        return []
    tokenizer, config = model.tokenizer, task.model_config
    codes = codes_of(tokenizer.encode, images, tokenizer.codebook.vectors.device)
    arguments = images, codes, config.codes, config.input_sizes[1]
    return [codes_figure(*arguments), reconstruction_figure(*arguments)]
