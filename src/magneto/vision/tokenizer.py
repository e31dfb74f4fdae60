"""The visual tokenizer: an image becomes a grid of codes (VQ-KD, arXiv 2208.06366).

A codebook of directions follows what it is given, and keeps its codes in use. What a step sees is
left in a buffer as sums, so that micro-batches and ranks add up; `end_step` moves the codebook
once. No gradient reaches it (section 3.1). The codes must tell a decoder what a teacher sees.
"""

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
from magneto.functional.cross_entropy import without_autocast
from magneto.nn.init import ClassToken, PatchEmbedding, Projection
from magneto.nn.transformer import Encoder
from magneto.training.task import Figure, Loss, Scores
from magneto.vision.augmentation import Augmentation
from magneto.vision.batches import training_stream
from magneto.vision.config import ImageTokenizerConfig
from magneto.vision.image_task import ImageTask, patches_read
from magneto.vision.teachers import Teacher, build_teacher

# Rows whose similarities to all vectors exist at once.
CHUNK = 8192
# Of which the baseline takes the mean, and pictures are made.
BASELINE_BATCHES = 8
# Patches of the training images for each code; 8192 codes were all used with 100,000 patches.
PATCHES_PER_CODE = 12


def nearest(rows: Tensor, vectors: Tensor) -> Tensor:
    """Return the number of the vector that is most similar to each row, by cosine.

    Args:
        rows: (rows, width).
        vectors: (count, width), of length 1.

    Returns:
        (rows,), int64; of equal ones the first.
    """
    return torch.cat([(part @ vectors.t()).argmax(-1) for part in rows.split(CHUNK)])


@torch.no_grad()
def k_means(rows: Tensor, count: int, iterations: int, seed: int) -> Tensor:
    """Cluster directions, beginning with rows drawn at random.

    A cluster that gets no row stays as it is. Where there are fewer rows than clusters, the rest
    are directions drawn at random.

    Args:
        rows: (rows, width), of length 1.
        count: Of clusters.
        iterations: Of assigning rows and taking means.
        seed: Of the draws.

    Returns:
        (count, width), of length 1.
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

    Args:
        codes: How many.
        width: Of each.
        decay: Of the moving averages of directions and of use.
        revive_below: A code is revived when its use falls below this multiple of 1 / `codes`.
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

        Args:
            features: (..., width), of length 1.

        Returns:
            Numbers of the codes, (...), and their vectors, (..., width); without gradients.
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

        The same on all ranks, and however a batch was cut.

        Args:
            add_up: Returns the sum of all ranks' tensors.
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
        transform = Augmentation(self.reading, data.augmentation)
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
    from magneto.vision.pictures import codes_figure, codes_of, readable, reconstruction_figure

    (images,) = readable(task.validation_batches(), BASELINE_BATCHES, "images")
    if not len(images):
        return []
    tokenizer, config = model.tokenizer, task.model_config
    codes = codes_of(tokenizer.encode, images, tokenizer.codebook.vectors.device)
    arguments = images, codes, config.codes, config.patch_size
    return [codes_figure(*arguments), reconstruction_figure(*arguments)]
