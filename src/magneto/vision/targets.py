"""What a masked image model guesses: which patches are hidden, and the codes of a frozen tokenizer.

A tokenizer gives each patch of an image a code, the nearest of some directions: of a codebook that
was trained (VQ-KD, arXiv 2208.06366), or of the patches' own pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.cache import content_digest
from magneto.data.tokenizer import NOISE_TOKENIZER
from magneto.files import user_path
from magneto.functional.cross_entropy import without_autocast
from magneto.nn.init import Projection
from magneto.vision.config import BUILTIN_TOKENIZER, ImageModelConfig, ImageTokenizerConfig
from magneto.vision.models import ImageEncoder
from magneto.vision.transforms import NORMALISATIONS

# Share of the grid that a block has at least: 16 of BEiT's 196 patches.
SMALLEST = 16 / 196
# A block's height by its width lies between this and its inverse, drawn on a log scale.
NARROWEST = 0.3
# Draws for one block, before the rest is filled up with single patches.
TRIES = 10

# Rows whose similarities to all vectors exist at once.
CHUNK = 8192
# Of builtin:patches.
K_MEANS_ITERATIONS = 20
# Batches of training images of which it, and the baseline's frequencies, are made.
SAMPLED_BATCHES = 16

# As `magneto.runs.load_run` is told, and `magneto.tasks` says that it is.
VERB = "train image-modelling/tiny --data.image_tokenizer"


class BlockMasking:
    """Hides the same share of the patches of a grid in every image: at least one, never all.

    Blocks of 16 of 196 patches or more are drawn until the count is reached; they may overlap and
    are strictly smaller than the grid both ways. What a block has too many is given back, patches
    drawn at random; where no block fits any more, single patches are added.
    """

    def __init__(self, rows: int, columns: int, ratio: float) -> None:
        self.rows, self.columns = rows, columns
        patches = rows * columns
        self.count = min(max(1, round(ratio * patches)), patches - 1)
        self.smallest = max(1.0, SMALLEST * patches)

    def draw(self, random: np.random.Generator) -> np.ndarray:
        """Return the numbers of the hidden patches in order, (count,), int64."""
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
        elif left < 0:
            flat[random.choice(np.flatnonzero(flat), -left, replace=False)] = False
        return np.flatnonzero(flat)

    def _add_block(self, hidden: np.ndarray, left: int, random: np.random.Generator) -> int:
        """Hide one more block of at most `left` new patches; return how many are new."""
        # With fewer left than a smallest block has, one that lies partly on others may still fit.
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
    """Return the number of the vector, of (count, width), that is most similar to each row.

    By cosine; the vectors have length 1. Of equal ones the first.
    """
    return torch.cat([(part @ vectors.t()).argmax(-1) for part in rows.split(CHUNK)])


@torch.no_grad()
def k_means(rows: Tensor, count: int, iterations: int, seed: int) -> Tensor:
    """Cluster directions, beginning with rows drawn at random.

    A cluster that gets no row stays as it is. Where there are fewer rows than clusters, the rest
    are directions drawn at random. From (rows, width) to (count, width), both of length 1.
    """
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(rows), generator=draw)[:count].to(rows.device)
    others = torch.randn(count - len(chosen), rows.shape[1], generator=draw).to(rows)
    vectors = torch.cat((rows[chosen], F.normalize(others, dim=-1)))
    for _ in range(iterations):
        sums = torch.zeros_like(vectors).index_add_(0, nearest(rows, vectors), rows)
        met = sums.square().sum(-1, keepdim=True) > 0
        vectors = torch.where(met, F.normalize(sums, dim=-1), vectors)
    return vectors


class Codebook(nn.Module):
    """`codes` directions of `width` numbers, and how much each is used.

    Both are moving averages with this `decay`. A code is revived when its use falls below
    `revive_below` / `codes`.
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
        # Share of all features that each code is given: a moving average.
        self.register_buffer("use", torch.empty(codes))
        # How often a code was revived so far.
        self.register_buffer("revived", torch.empty(()))
        # Of a step: for each half of each code's features, their sum and their number.
        self.register_buffer("seen", torch.empty(2, codes, width + 1), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw directions at random, all used alike."""
        nn.init.normal_(self.vectors)
        nn.init.constant_(self.use, 1 / self.codes)
        nn.init.zeros_(self.revived)
        nn.init.zeros_(self.seen)

    def directions(self) -> Tensor:
        """Return the codes' vectors, (codes, width), of length 1."""
        return F.normalize(self.vectors, dim=-1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Find each feature's code; in training, remember what was seen.

        From (..., width), of length 1, to numbers of the codes, (...), and their vectors,
        (..., width); without gradients.
        """
        with torch.no_grad():
            rows, directions = features.detach().flatten(0, -2), self.directions()
            numbers = nearest(rows, directions)
            vectors = directions[numbers]
            if self.training:
                self._remember(rows, numbers, vectors)
        return numbers.view(features.shape[:-1]), vectors.view(features.shape)

    def _remember(self, rows: Tensor, numbers: Tensor, vectors: Tensor) -> None:
        # A plane through each code cuts its features in halves, so that it can be split: the plane
        # across the direction of the code after it, which is as good as any other.
        across = self.directions().roll(-1, 0)[numbers]
        half = ((rows - vectors) * across).sum(-1) > 0
        counted = torch.cat((rows, torch.ones_like(rows[:, :1])), dim=-1)
        place = numbers + self.codes * half
        self.seen.flatten(0, 1).index_add_(0, place, counted.to(self.seen.dtype))

    @torch.no_grad()
    def end_step(self, add_up: Callable[[Tensor], Tensor]) -> None:
        """Move each code towards the mean of its features, and revive codes out of use.

        The same on all ranks, whose tensors `add_up` adds, and however a batch was cut.
        """
        seen = add_up(self.seen)
        sums, counts = seen[..., :-1].sum(0), seen[..., -1].sum(0)
        directions = self.directions()
        moved = torch.lerp(directions, F.normalize(sums, dim=-1), 1 - self.decay)
        met = (counts > 0)[:, None]
        self.vectors.copy_(torch.where(met, F.normalize(moved, dim=-1), directions))
        self.use.lerp_(counts / counts.sum().clamp(min=1), 1 - self.decay)
        self._revive(seen)
        self.seen.zero_()

    def _revive(self, seen: Tensor) -> None:
        """Give each code out of use the smaller half of a much used code's features.

        The codes with the largest smaller halves give first, one each. The two then count as used
        alike, so that the new one has time to be used.
        """
        smaller, half = seen[..., -1].min(0)
        takers = self.use.argsort(stable=True)
        givers = smaller.argsort(descending=True, stable=True)
        enough = (smaller[givers] > 0) & (self.use[givers] >= self.least_use)
        wanted = (self.use[takers] < self.least_use) & enough
        part = F.normalize(seen[half[givers], givers, :-1], dim=-1)
        self.vectors[takers] = torch.where(wanted[:, None], part, self.vectors[takers])
        shared = (self.use[givers] + self.use[takers]) / 2
        self.use[givers] = torch.where(wanted, shared, self.use[givers])
        self.use[takers] = torch.where(wanted, shared, self.use[takers])
        self.revived += wanted.sum()


def two_layers(width: int, outputs: int) -> nn.Sequential:
    """Return linear, tanh, linear: from the stack's width to the outputs."""
    return nn.Sequential(
        Projection(width, [("hidden", width)], bias=True),
        nn.Tanh(),
        Projection(width, [("out", outputs)], bias=True),
    )


class ImageTokenizer(ImageEncoder):
    """From an image to a code per patch: an encoder, and the nearest of a codebook's directions."""

    def __init__(self, config: ImageTokenizerConfig) -> None:
        super().__init__(config)
        self.head = two_layers(config.width, config.code_width)
        self.codebook = Codebook(config.codes, config.code_width, config.decay, config.revive_below)

    def features(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, patches, code_width), of length 1."""
        x = self.encoder(self.embed(images))[:, self.config.prefix :]
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


def patch_pixels(images: Tensor, size: int) -> Tensor:
    """Return each patch's pixels, and a constant that makes brightness a matter of direction.

    From (batch, channels, height, width) in [-1, 1] to (batch, patches, channels * size² + 1).
    """
    patches = F.pixel_unshuffle(images, size).flatten(2).transpose(1, 2)
    return F.pad(patches, (0, 1), value=patches.shape[-1] ** 0.5 / 2)


class PatchTokenizer(nn.Module):
    """From an image to a code per patch without an encoder: k-means of the patches' own pixels.

    The patches of batches of images in [-1, 1], (batch, channels, height, width), are clustered.
    """

    vectors: Tensor

    def __init__(
        self,
        config: ImageModelConfig,
        batches: Iterable[Tensor],
        seed: int,
        iterations: int = K_MEANS_ITERATIONS,
    ) -> None:
        super().__init__()
        assert config.codes is not None
        self.config = config
        rows = torch.cat([self.directions(images).flatten(0, 1) for images in batches])
        vectors = k_means(rows, config.codes, iterations, seed)
        self.register_buffer("vectors", vectors)

    def directions(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, patches, width), of length 1."""
        return F.normalize(patch_pixels(images, self.config.input_sizes[1]), dim=-1)

    def encode(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) in [-1, 1] to codes (batch, patches), int64."""
        with without_autocast(images):
            rows = self.directions(images.to(self.vectors.dtype))
            return nearest(rows.flatten(0, 1), self.vectors).view(rows.shape[:-1])


def weights_digest(module: nn.Module) -> str:
    """Return a short name for the values of a module's tensors."""
    tensors = (tensor for _, tensor in sorted(module.state_dict().items()))
    return content_digest(*(tensor.detach().cpu().reshape(-1).numpy() for tensor in tensors))


class CodeTargets(nn.Module):
    """A frozen tokenizer that reads what the model reads: the same view, its normalisation undone.

    Attributes:
        codes: How many there are.
        patch_size: Of the tokenizer, and the model.
    """

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
        # Pixels from 0 to 1 are mean + std * x; the tokenizer reads twice that less 1.
        self.register_buffer("scale", 2 * std, persistent=False)
        self.register_buffer("shift", 2 * mean - 1, persistent=False)

    def view(self, images: Tensor) -> Tensor:
        """Return the model's images, (batch, channels, height, width), in [-1, 1]."""
        return images * self.scale + self.shift

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return the codes of the model's images, (batch, patches), int64."""
        return self.tokenizer.encode(self.view(images))

    def agreed_codes(self, wanted: int | None) -> int:
        """Return how many codes a model guesses among: the tokenizer's.

        Raises:
            ValueError: If the number that the recipe sets is another one.
        """
        if wanted not in (None, self.codes):
            raise ValueError(f"the image tokenizer has {self.codes} codes, model.codes is {wanted}")
        return self.codes

    def digest(self) -> str:
        """Return what names the tokenizer's weights."""
        return weights_digest(self.tokenizer)


def load_targets(
    name: str,
    config: ImageModelConfig,
    normalisation: str,
    seed: int,
    batches: Callable[[], Iterable[Any]],
) -> CodeTargets:
    """Return the frozen tokenizer of a model of images, on the CPU.

    Args:
        name: A run's directory; builtin:patches; or builtin:noise, whose codes mean nothing, where
            their number alone is asked for.
        config: Of the images; `codes` may be None for as many as a run's tokenizer has.
        normalisation: Of the model's images.
        seed: Of k-means, and of noise.
        batches: Gives batches of training images in [-1, 1], of which builtin:patches is made.

    Raises:
        FileNotFoundError: If there is no such run, or it has no weights.
        ValueError: If it is a tokenizer of other images, or `codes` is not set.
    """
    if name not in (BUILTIN_TOKENIZER, NOISE_TOKENIZER):
        found: Any = load_tokenizer(user_path(name), config)
    elif config.codes is None:
        raise ValueError(f"set model.codes for data.image_tokenizer {name}")
    elif name == BUILTIN_TOKENIZER:
        some = islice(batches(), SAMPLED_BATCHES)
        found = PatchTokenizer(config, (b["images"][~b["broken"]] for b in some), seed)
    else:
        count = -(-config.codes // config.patches)
        side, _, channels = config.input_sizes
        draw = torch.Generator().manual_seed(seed)
        noise = torch.rand((count, channels, side, side), generator=draw)
        found = PatchTokenizer(config, [2 * noise - 1], seed, iterations=0)
    return CodeTargets(found, normalisation).requires_grad_(False).eval()


def tokenizer_run(name: str) -> tuple[Path, Any] | None:
    """Return the run of an image tokenizer and its model's configuration; None if built in."""
    if name in (BUILTIN_TOKENIZER, NOISE_TOKENIZER):
        return None
    from magneto.runs import resolved_recipe  # other users of this module open no run

    run = user_path(name)
    return run, resolved_recipe(run, {}).model


def load_tokenizer(run: Path, model: ImageModelConfig) -> ImageTokenizer:
    """Open the tokenizer of a run, on the CPU; see `load_targets`."""
    from magneto.runs import load_run

    task: Any = load_run(run, "auto", {"training.device": "cpu"}, VERB).model
    tokenizer: ImageTokenizer = task.tokenizer
    wrong = [
        f"--model.{name} {there}"
        for name in ("image_size", "patch_size", "channels")
        if (there := getattr(tokenizer.config, name)) != getattr(model, name)
    ]
    if wrong:
        raise ValueError(f"{run} is a tokenizer of other images: give {' '.join(wrong)}")
    return tokenizer
