"""Targets of masked image modelling: block masking, image tokenizers and their codes.

An image tokenizer gives each patch a code, which is the index of the nearest vector. The vectors
are a trained codebook (VQ-KD, arXiv 2208.06366), or centres of k-means on the patches' pixels.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.cache import content_digest
from magneto.data.tokenizer import NOISE_TOKENIZER
from magneto.files import user_path
from magneto.functional.cross_entropy import without_autocast
from magneto.nn.init import Projection
from magneto.vision.config import BUILTIN_TOKENIZER, ImageInputConfig, ImageTokenizerConfig, require
from magneto.vision.input_size import FIELDS, ImageInputTask
from magneto.vision.models import ImageEncoder
from magneto.vision.transforms import NORMALISATIONS

# Smallest share of the grid in a block: 16 of 196 patches in BEiT.
SMALLEST = 16 / 196
# A block's ratio of height to width is drawn on a log scale, from this value up to its inverse.
NARROWEST = 0.3
# Attempts at a block before single patches are masked instead.
TRIES = 10

# Rows whose similarities to all vectors are computed at once.
CHUNK = 8192
# Iterations of k-means of builtin:patches, and the file in a run's assets with its centres.
K_MEANS_ITERATIONS = 20
PATCHES_FILE = "patches.safetensors"
# Batches of training images for k-means and for the baseline's frequencies.
SAMPLED_BATCHES = 16

# Purpose for which `load_run` opens a tokenizer's run; one of its task's verbs in `magneto.tasks`.
VERB = "train image-modelling/tiny --data.image_tokenizer"


class BlockMasking:
    """Block-wise masking of the same number of patches in every image, as in BEiT.

    Random blocks are masked until the image has enough masked patches. Blocks may overlap. If no
    block fits, single patches are masked.
    """

    def __init__(self, rows: int, columns: int, ratio: float) -> None:
        self.rows, self.columns = rows, columns
        patches = rows * columns
        self.count = min(max(1, round(ratio * patches)), patches - 1)
        self.smallest = max(1.0, SMALLEST * patches)

    def draw(self, random: np.random.Generator) -> np.ndarray:
        """Return the indices of the masked patches in ascending order, int64 (count,)."""
        hidden = np.zeros((self.rows, self.columns), bool)
        left = self.count
        while left > 0:
            added = self._add_block(hidden, left, random)
            if added == 0:
                break
            left -= added
        flat = hidden.reshape(-1)
        if left > 0:
            flat[random.choice(np.flatnonzero(~flat), left, replace=False)] = True
        return np.flatnonzero(flat)

    def _add_block(self, hidden: np.ndarray, left: int, random: np.random.Generator) -> int:
        # With fewer patches left than the smallest block has, a block that overlaps others may fit.
        low, high = sorted((self.smallest, float(left)))
        areas = random.uniform(low, high, TRIES)
        shapes = np.exp(random.uniform(math.log(NARROWEST), -math.log(NARROWEST), TRIES))
        heights = np.rint(np.sqrt(areas * shapes)).astype(int)
        widths = np.rint(np.sqrt(areas / shapes)).astype(int)
        tops, lefts = random.random(TRIES), random.random(TRIES)
        for height, width, down, across in zip(heights, widths, tops, lefts, strict=True):
            if not (0 < height < self.rows and 0 < width < self.columns):
                continue
            top = int(down * (self.rows - height + 1))
            start = int(across * (self.columns - width + 1))
            block = hidden[top : top + height, start : start + width]
            added = int(height * width - block.sum())
            if 0 < added <= left:
                block[:] = True
                return added
        return 0


def nearest(rows: Tensor, vectors: Tensor) -> Tensor:
    """For each row, return the index of the vector with the largest cosine similarity.

    `rows` has the shape (rows, width). `vectors` contains unit vectors and has the shape
    (count, width).
    """
    return torch.cat([(part @ vectors.t()).argmax(-1) for part in rows.split(CHUNK)])


@torch.no_grad()
def k_means(rows: Tensor, count: int, iterations: int, seed: int) -> Tensor:
    """Cluster rows by k-means with cosine similarity, and return the centres.

    The first centres are random rows. If there are fewer rows than centres, the missing
    centres are random directions. A cluster without rows keeps its centre. The rows
    must be unit vectors, and the centres are unit vectors. The shape of the result is
    (count, width).
    """
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(rows), generator=draw)[:count].to(rows.device)
    others = torch.randn(count - len(chosen), rows.shape[1], generator=draw).to(rows)
    vectors = torch.cat((rows[chosen], F.normalize(others, dim=-1)))
    for _ in range(iterations):
        sums = torch.zeros_like(vectors).index_add_(0, nearest(rows, vectors), rows)
        used = sums.square().sum(-1, keepdim=True) > 0
        vectors = torch.where(used, F.normalize(sums, dim=-1), vectors)
    return vectors


class Codebook(nn.Module):
    """Codebook that gives each feature the code whose vector has the largest cosine similarity.

    `vectors` (codes, width) are moving averages of each code's features. `use` (codes,) are moving
    averages of each code's share of all features. For `revive_below`, see `ImageTokenizerConfig`.
    """

    vectors: Tensor
    use: Tensor
    revived: Tensor
    seen: Tensor

    def __init__(self, codes: int, width: int, decay: float, revive_below: float) -> None:
        super().__init__()
        self.codes, self.width = codes, width
        self.decay, self.least_use = decay, revive_below / codes
        self.register_buffer("vectors", torch.empty(codes, width))
        # Moving average of each code's share of all features.
        self.register_buffer("use", torch.empty(codes))
        # Number of revived codes so far.
        self.register_buffer("revived", torch.empty(()))
        # Sum and number of a step's features, for each half of a code's features (`_accumulate`).
        self.register_buffer("seen", torch.empty(2, codes, width + 1), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.vectors)
        nn.init.constant_(self.use, 1 / self.codes)
        nn.init.zeros_(self.revived)
        nn.init.zeros_(self.seen)

    def directions(self) -> Tensor:
        return F.normalize(self.vectors, dim=-1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features' codes, of shape (...), and the codes' vectors, (..., width).

        Features (..., width) must be unit vectors. Codes and vectors have no gradients. In
        training, sums of features are kept for `end_step`, which updates the codebook.
        """
        with torch.no_grad():
            rows, directions = features.detach().flatten(0, -2), self.directions()
            numbers = nearest(rows, directions)
            vectors = directions[numbers]
            if self.training:
                self._accumulate(rows, numbers, vectors)
        return numbers.view(features.shape[:-1]), vectors.view(features.shape)

    def _accumulate(self, rows: Tensor, numbers: Tensor, vectors: Tensor) -> None:
        # A plane halves the features of each code, so that the code can be split. Any plane would
        # do: this one is orthogonal to the direction of the next code.
        across = self.directions().roll(-1, 0)[numbers]
        half = ((rows - vectors) * across).sum(-1) > 0
        counted = torch.cat((rows, torch.ones_like(rows[:, :1])), dim=-1)
        place = numbers + self.codes * half
        self.seen.flatten(0, 1).index_add_(0, place, counted.to(self.seen.dtype))

    @torch.no_grad()
    def end_step(self, add_up: Callable[[Tensor], Tensor]) -> None:
        """Move each code's vector towards the mean of its features, and revive rarely used codes.

        `add_up` adds the tensors of all ranks.
        """
        seen = add_up(self.seen)
        sums, counts = seen[..., :-1].sum(0), seen[..., -1].sum(0)
        directions = self.directions()
        moved = torch.lerp(directions, F.normalize(sums, dim=-1), 1 - self.decay)
        used = (counts > 0)[:, None]
        self.vectors.copy_(torch.where(used, F.normalize(moved, dim=-1), directions))
        self.use.lerp_(counts / counts.sum().clamp(min=1), 1 - self.decay)
        self._revive(seen)
        self.seen.zero_()

    def _revive(self, seen: Tensor) -> None:
        # Each rare code gets the smaller half of the features of one frequent code.
        smaller, half = seen[..., -1].min(0)
        takers = self.use.argsort(stable=True)
        givers = smaller.argsort(descending=True, stable=True)
        enough = (smaller[givers] > 0) & (self.use[givers] >= self.least_use)
        wanted = (self.use[takers] < self.least_use) & enough
        part = F.normalize(seen[half[givers], givers, :-1], dim=-1)
        self.vectors[takers] = torch.where(wanted[:, None], part, self.vectors[takers])
        # Both get half of the sum, so that the rare code is not revived again at once.
        shared = (self.use[givers] + self.use[takers]) / 2
        self.use[givers] = torch.where(wanted, shared, self.use[givers])
        self.use[takers] = torch.where(wanted, shared, self.use[takers])
        self.revived += wanted.sum()


def two_layers(width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        Projection(width, [("hidden", width)], bias=True),
        nn.Tanh(),
        Projection(width, [("out", outputs)], bias=True),
    )


class ImageTokenizer(ImageEncoder):
    """Image tokenizer: an encoder and a codebook, which give each patch a code."""

    def __init__(self, config: ImageTokenizerConfig) -> None:
        super().__init__(config)
        self.head = two_layers(config.width, config.code_width)
        self.codebook = Codebook(config.codes, config.code_width, config.decay, config.revive_below)

    def features(self, images: Tensor) -> Tensor:
        """Return the images' features as unit vectors, (batch, patches, code_width)."""
        x = self.encoder(self.embed(images))[:, self.config.prefix :]
        # Without autocast: codes depend on small differences.
        with without_autocast(images):
            return F.normalize(self.head(x.to(self.codebook.vectors.dtype)), dim=-1)

    def quantise(self, features: Tensor) -> tuple[Tensor, Tensor]:
        with without_autocast(features):
            return self.codebook(features)

    def encode(self, images: Tensor) -> Tensor:
        """Return the codes of images in [-1, 1], int64 (batch, patches)."""
        return self.quantise(self.features(images))[0]


def patch_pixels(images: Tensor, size: int) -> Tensor:
    """Return each patch's pixels followed by a constant, (batch, patches, channels * size² + 1).

    A patch's code depends only on the direction of the patch's vector. Because of the
    constant, a bright and a dark patch of the same hue have different directions. Images are
    (batch, channels, height, width) in [-1, 1].
    """
    patches = F.pixel_unshuffle(images, size).flatten(2).transpose(1, 2)
    return F.pad(patches, (0, 1), value=patches.shape[-1] ** 0.5 / 2)


def patch_directions(images: Tensor, size: int) -> Tensor:
    return F.normalize(patch_pixels(images, size), dim=-1)


class PatchTokenizer(nn.Module):
    """Image tokenizer without an encoder: k-means of the patches' pixels.

    `config` is an `ImageInputConfig` with a field `codes`. `vectors` are the centres, one for each
    code.
    """

    vectors: Tensor

    def __init__(self, config: Any, vectors: Tensor) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("vectors", vectors)

    @classmethod
    def fit(
        cls,
        config: Any,
        batches: Iterable[Tensor],
        seed: int,
        iterations: int = K_MEANS_ITERATIONS,
    ) -> PatchTokenizer:
        """Fit the centres to batches (batch, channels, height, width) of images in [-1, 1]."""
        size, codes = config.input_sizes[1], require(config.codes, "codes")
        rows = torch.cat([patch_directions(images, size).flatten(0, 1) for images in batches])
        return cls(config, k_means(rows, codes, iterations, seed))

    def encode(self, images: Tensor) -> Tensor:
        with without_autocast(images):
            size = self.config.input_sizes[1]
            rows = patch_directions(images.to(self.vectors.dtype), size)
            return nearest(rows.flatten(0, 1), self.vectors).view(rows.shape[:-1])


def weights_digest(module: nn.Module) -> str:
    tensors = (tensor for _, tensor in sorted(module.state_dict().items()))
    return content_digest(*(tensor.detach().cpu().reshape(-1).numpy() for tensor in tensors))


class CodeTargets(nn.Module):
    """Frozen image tokenizer that reads a model's normalised input."""

    scale: Tensor
    shift: Tensor

    def __init__(self, tokenizer: ImageTokenizer | PatchTokenizer, normalisation: str) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        _, self.patch_size, channels = tokenizer.config.input_sizes
        self.codes = tokenizer.config.codes or 0
        mean, std = (
            torch.tensor(values[:channels]).view(-1, 1, 1)
            for values in NORMALISATIONS[normalisation]
        )
        # Pixels from 0 to 1 are mean + std * x; the tokenizer's input is twice that minus 1.
        self.register_buffer("scale", 2 * std, persistent=False)
        self.register_buffer("shift", 2 * mean - 1, persistent=False)

    def view(self, images: Tensor) -> Tensor:
        """Convert the model's input to pixels in [-1, 1], (batch, channels, height, width)."""
        return images * self.scale + self.shift

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return the code of each patch of the model's input images, int64 (batch, patches)."""
        return self.tokenizer.encode(self.view(images))


class CodePrediction(ImageInputTask):
    """Task that predicts the codes of masked patches. A frozen image tokenizer gives the codes.

    Attributes:
        patches: Block masking, which chooses the masked patches.
    """

    patches: Any

    def shared_input(self) -> tuple[Path, Any] | None:
        return tokenizer_run(self.data_config.image_tokenizer)

    @abstractmethod
    def plain_batches(self) -> Iterable[dict[str, Any]]:
        """Return batches of training images in [-1, 1] without augmentation."""

    @cached_property
    def targets(self) -> CodeTargets:
        """Frozen image tokenizer, on the CPU until training moves it."""
        config, data = self.model_config, self.data_config
        name = data.image_tokenizer
        if run := tokenizer_run(name):
            found: Any = load_tokenizer(run[0], config)
        elif Path(name).name == PATCHES_FILE:
            found = PatchTokenizer(config, load_file(name)["vectors"])
        elif config.codes is None:
            raise ValueError(f"data.image_tokenizer {name!r} needs a number of codes: set "
                             "model.codes")  # fmt: skip
        elif name == BUILTIN_TOKENIZER:
            some = islice(self.plain_batches(), SAMPLED_BATCHES)
            images = (batch["images"][~batch["broken"]] for batch in some)
            found = PatchTokenizer.fit(config, images, self.seed)
        else:  # `magneto plan` needs no images: random codes
            side, _, channels = config.input_sizes
            draw = torch.Generator().manual_seed(self.seed)
            shape = -(-config.codes // config.patches), channels, side, side
            noise = torch.rand(shape, generator=draw)
            found = PatchTokenizer.fit(config, [2 * noise - 1], self.seed, iterations=0)
        return CodeTargets(found, data.normalisation).requires_grad_(False).eval()

    def codes(self) -> int:
        """Return the number of codes; raise ValueError if the recipe sets another number."""
        wanted, codes = self.model_config.codes, self.targets.codes
        if wanted not in (None, codes):
            raise ValueError(f"model.codes is {wanted}, but the image tokenizer has {codes} codes: "
                             "do not set model.codes")  # fmt: skip
        return codes

    def check(self) -> None:
        super().check()
        self._progress.say(f"{self.data_config.image_tokenizer}: {self.codes()} codes; "
                           f"{self.patches.count} of {self.model_config.patches} patches are "
                           "masked")  # fmt: skip

    def companion(self) -> nn.Module:
        return self.targets

    def digests(self) -> list[str]:
        return [*super().digests(), weights_digest(self.targets.tokenizer)]

    def save_assets(self, directory: Path) -> dict[str, Any]:
        kept = super().save_assets(directory) | {"model.codes": self.codes()}
        if self.data_config.image_tokenizer == BUILTIN_TOKENIZER:
            # Other data would have other codes.
            path = kept["data.image_tokenizer"] = directory / PATCHES_FILE
            save_file(self.targets.tokenizer.state_dict(), path)
        return kept


def tokenizer_run(name: str) -> tuple[Path, Any] | None:
    """Return an image tokenizer's run and its model's configuration, or None for k-means.

    Raises:
        ConfigError: If the run is not a run of an image tokenizer.
        FileNotFoundError: If there is no run.
    """
    if name in (BUILTIN_TOKENIZER, NOISE_TOKENIZER) or Path(name).name == PATCHES_FILE:
        return None
    from magneto.runs import resolved_recipe, run_task  # other users of this module open no run

    run = user_path(name)
    run_task(run, {}, VERB)
    return run, resolved_recipe(run, {}).model


def load_tokenizer(run: Path, model: ImageInputConfig) -> ImageTokenizer:
    from magneto.runs import check_same_encoder, load_run

    trained: Any = load_run(run, "auto", {"training.device": "cpu"}).model
    check_same_encoder(run, trained.tokenizer.config, model, FIELDS)
    return trained.tokenizer
