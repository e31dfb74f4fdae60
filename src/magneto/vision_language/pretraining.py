"""Masked data modelling: hidden patches and hidden words of images, texts and pairs (BEiT-3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.cache import content_digest
from magneto.data.stream import BatchStream, LazyBatches, joined, mixed_order
from magneto.data.tokenizer import vocabulary_size
from magneto.functional.cross_entropy import count_numbers, frequency_nats
from magneto.progress import SILENT, Progress
from magneto.training.task import DIGEST_FILE, Loss, Scores, Task
from magneto.vision.augmentation import Augmentation
from magneto.vision.batches import Example, Told, Transform, example_stream, stacked
from magneto.vision.images import ImageSplit
from magneto.vision.targets import CodeTargets
from magneto.vision_language.config import MaskedDataConfig, MaskedDataModelConfig
from magneto.vision_language.model import MaskedDataModel
from magneto.vision_language.pretraining_data import (
    PARTS,
    TRAIN,
    VALIDATION,
    Hide,
    MaskedData,
    fixed_examples,
    hide_words,
    image_examples,
    join_examples,
    pair_examples,
    stream_sizes,
    text_examples,
)
from magneto.vision_language.samples import MaskedSamples

# Of images alone, of the images of pairs, of the texts of pairs, of texts alone.
KINDS = ("image", "paired_image", "paired_text", "text")
# Batches of training images whose codes are counted for the baseline.
COUNTED_BATCHES = 16
# Examples of each stream in an evaluation batch.
EVALUATION_BATCH = 64


class MaskedDataModelling(Task):
    """Images, texts and pairs, a `MaskedDataModel`, nats per hidden patch and per hidden word.

    The codes of patches come from a frozen tokenizer, which sees what the model sees before
    anything is hidden.
    """

    unit = "tokens"

    model_config: MaskedDataModelConfig
    data_config: MaskedDataConfig

    def __init__(self, model: Any, data: Any, seed: int) -> None:
        super().__init__(model, data, seed)
        self.data = MaskedData(model, data, seed, self.problems)
        self._prepared = False

    @property
    def targets(self) -> CodeTargets:
        """The frozen tokenizer of images."""
        return self.data.targets

    def codes(self) -> int:
        """Return how many codes the model guesses among: the tokenizer's, if none are set."""
        return self.targets.agreed_codes(self.model_config.codes)

    def vocabulary(self) -> int:
        """Return the model's vocabulary: the tokenizer's, if none is set."""
        return self.model_config.vocab_size or self.data.tokenizer.vocab_size

    def prepare(self, progress: Progress = SILENT) -> None:
        """List images and pairs, tokenise texts, open the image tokenizer; see that all fits.

        Raises:
            FileNotFoundError: If something is not there.
            ValueError: If something doesn't fit.
        """
        if self._prepared:
            return
        self._prepared, data = True, self.data
        data.progress = progress
        data.words  # noqa: B018  a tokenizer without a mask token is known before the work
        vocabulary_size(self.model_config.vocab_size, data.tokenizer)
        progress.say(data.describe())
        where, config = self.data_config.image_tokenizer, self.model_config
        progress.say(f"{where}: {self.codes()} codes; {data.patches.count} of {config.patches} "
                     "patches are hidden")  # fmt: skip

    def build_model(self) -> MaskedDataModel:
        """Build the model, as large as both tokenizers say."""
        config = self.model_config
        codes = config.codes or self.codes()
        return MaskedDataModel(replace(config, vocab_size=self.vocabulary(), codes=codes))

    def companion(self) -> nn.Module:
        """Return the tokenizer of images."""
        return self.targets

    def hide(self, name: str) -> Hide:
        """Return what hides words of "texts", or of "pairs"."""
        config = self.data_config
        alone = name == "texts"
        ratio = config.text_mask_ratio if alone else config.paired_text_mask_ratio
        return partial(hide_words, self.data.words, ratio)

    def examples(
        self, split: int, transform: Callable[[ImageSplit, str], Transform], fixed: bool = False
    ) -> dict[str, tuple[int, Example, Told]]:
        """Return of each stream how many examples it has, what makes one, and what is told of it.

        Args:
            split: `TRAIN` or `VALIDATION`.
            transform: What is done to images, of the stream of this name.
            fixed: Whether a grey image stands for one that can't be read.
        """
        data, begin = self.data, self.data.tokenizer.begin
        texts, length = data.texts[split], data.text_length
        splits = {"images": data.images[split], "pairs": data.pairs[split].images}
        seen = {
            name: image_examples(
                images, transform(images, name), data.patches,
                data.reading(images).blank if fixed else None,
            )
            for name, images in splits.items()
        }  # fmt: skip
        of_text = text_examples(texts, begin, length, self.hide("texts"))
        of_pair = pair_examples(
            seen["pairs"], data.paired_texts[split], begin, data.paired_text_length,
            self.hide("pairs"),
        )  # fmt: skip
        return {
            "images": (len(splits["images"]), seen["images"], splits["images"].broken),
            "texts": (len(texts.tokens) // (length - 1), of_text, lambda index, error: None),
            "pairs": (len(splits["pairs"]), of_pair, splits["pairs"].broken),
        }

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return images, texts and pairs, each in its own order; other parts are hidden each time.

        Raises:
            ValueError: If a batch can't be cut by `batch_shares`.
        """
        config = self.data_config
        sizes = stream_sizes(batch_size, config.batch_shares)
        augmented = {"images": config.image_augmentation, "pairs": config.augmentation}

        def transform(images: ImageSplit, name: str) -> Transform:
            return Augmentation(self.data.reading(images), augmented[name])

        made = self.examples(TRAIN, transform)
        streams = {
            name: example_stream(
                count, example, sizes[name], len(PARTS) * seed + place, broken=broken
            )
            for place, (name, (count, example, broken)) in enumerate(made.items())
        }
        return joined(streams, partial(join_examples, self.model_config.image_tokens))

    def fixed_batches(self, split: int) -> LazyBatches:
        """Return all of a split in mixed order; always the same parts are hidden."""

        def transform(images: ImageSplit, name: str) -> Transform:
            return self.data.crop(images)

        made = self.examples(split, transform, fixed=True)
        counts = [count for count, _, _ in made.values()]
        number = -(-max(counts) // EVALUATION_BATCH)
        orders = [np.array_split(mixed_order(count), number) for count in counts]

        def make(plan: tuple[np.ndarray, ...]) -> dict[str, Any]:
            pieces = {
                name: fixed_examples(made[name][1], numbers, which)
                for which, (name, numbers) in enumerate(zip(PARTS, plan, strict=True))
            }
            return join_examples(self.model_config.image_tokens, pieces)

        return LazyBatches(list(zip(*orders, strict=True)), make)

    def dummy_batch(self, examples: int) -> dict[str, Any]:
        """Return a batch of black images, of the longest texts and of pairs of both."""
        config, data, shares = self.model_config, self.data, self.data_config.batch_shares
        shape = (config.channels, config.image_size, config.image_size)
        lengths = {"texts": data.text_length, "pairs": data.paired_text_length}
        word = int(np.flatnonzero(data.words.plain)[0])
        pieces: dict[str, dict[str, Tensor]] = {}
        for name, share in zip(PARTS, shares, strict=True):
            piece: dict[str, Any] = {}
            if name != "texts":
                piece = {"images": np.zeros(shape, np.float32), "blank": np.False_,
                         "patches": np.arange(data.patches.count)}  # fmt: skip
            if name in lengths:
                row = np.full(lengths[name], word)
                seen, targets = self.hide(name)(row, np.random.default_rng(0))
                piece |= {"seen": seen, "targets": targets, "length": len(row)}
            pieces[name] = stacked([piece] * max(1, round(examples * share / sum(shares))))
        return join_examples(config.image_tokens, pieces)

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Loss:
        """Sum the cross-entropy over hidden patches and hidden words."""
        images, masked = batch["images"], batch["masked"]
        codes = hidden_codes(self.targets, images, masked.patches)
        patches, words = model(images, masked, codes, batch["words"])
        # Tokens of images, class tokens too, and of texts.
        units = len(images) * self.model_config.image_tokens + len(masked.samples.token_ids)
        return Loss(patches.total + words.total, patches.count + words.count, units=units)

    def validation_batches(self) -> Sequence[dict[str, Any]]:
        """Return images, texts and pairs in mixed order; always the same parts are hidden."""
        return self.fixed_batches(VALIDATION)

    def score(self, model: nn.Module, batch: dict[str, Any]) -> Scores:
        """Sum the cross-entropy of each stream's patches and words; count them, and those right."""
        masked = batch["masked"]
        patches, words = model(batch["images"], masked)
        guesses = by_kind(patches, words, masked)
        codes = hidden_codes(self.targets, batch["images"], masked.patches)
        sums = {"unreadable": batch["blank"].sum()}
        for kind, answers in by_kind(codes, batch["words"], masked).items():
            rows = guesses[kind].float()
            sums[f"{kind}_nats"] = F.cross_entropy(rows, answers, reduction="sum")
            sums[f"{kind}_right"] = (rows.argmax(-1) == answers).sum()
            sums[f"{kind}_count"] = torch.ones_like(answers).sum()
        return Scores(sums)

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the loss over all guesses, and nats per guess and accuracy of each kind.

        A kind that nothing was asked of has none.
        """
        total = sum(sums[f"{kind}_nats"] for kind in KINDS)
        found = {"loss": total / max(sum(sums[f"{kind}_count"] for kind in KINDS), 1)}
        for kind in KINDS:
            if count := sums[f"{kind}_count"]:
                found[f"{kind}_loss"] = sums[f"{kind}_nats"] / count
                found[f"{kind}_accuracy"] = sums[f"{kind}_right"] / count
        return {**found, "unreadable_images": float(sums.get("unreadable", 0))}

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the metrics of the frequencies of codes and tokens, each stream's own."""
        data, device = self.data, self.targets.scale.device
        size = {kind: self.codes() if "image" in kind else self.vocabulary() for kind in KINDS}
        train = islice(self.fixed_batches(TRAIN), COUNTED_BATCHES)
        held = islice(self.validation_batches(), limit)
        # Codes are on the device of the tokenizer, what is counted on the CPU.
        known, asked = ({kind: np.zeros(size[kind], np.int64) for kind in KINDS} for _ in range(2))
        for counts, batches in ((known, train), (asked, held)):
            for batch in batches:
                masked = batch["masked"]
                images, where = batch["images"].to(device), masked.patches.to(device)
                codes = hidden_codes(self.targets, images, where).cpu()
                for kind, found in by_kind(codes, batch["words"], masked).items():
                    counts[kind] += count_numbers(found.numpy(), size[kind])
        allowed = np.zeros(self.vocabulary(), bool)
        allowed[: len(data.words.plain)] = data.words.plain
        for kind, texts in (("text", data.texts), ("paired_text", data.paired_texts)):
            known[kind] = count_numbers(texts[TRAIN].tokens, len(allowed)) * allowed
        sums: dict[str, float] = {}
        for kind in KINDS:
            may = None if "image" in kind else allowed
            sums[f"{kind}_nats"] = frequency_nats(known[kind], asked[kind], may)
            sums[f"{kind}_right"] = float(asked[kind][known[kind].argmax()])
            sums[f"{kind}_count"] = float(asked[kind].sum())
        return self.summarise(sums, ())

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write the tokenizer of texts, and a digest of all data; images' tells how many codes."""
        (directory / "tokenizer").mkdir()
        self.data.tokenizer.save(directory / "tokenizer")
        data = self.data
        splits = (*data.images, data.captions.train, data.captions.validation)
        parts = [*(split.digest for split in splits), self.targets.digest()]
        texts = [np.asarray(texts.tokens) for texts in (*data.texts, *data.paired_texts)]
        digest = content_digest(*(part.encode() for part in parts), *texts)
        (directory / DIGEST_FILE).write_text(digest, encoding="utf-8")
        return {"data.tokenizer": directory / "tokenizer", "model.codes": self.codes()}


def by_kind(patches: Tensor, words: Tensor, masked: MaskedSamples) -> dict[str, Tensor]:
    """Cut rows of hidden patches and of hidden words by kind."""
    first, second = masked.alone_patches, masked.paired_words
    parts = (patches[:first], patches[first:], words[:second], words[second:])
    return dict(zip(KINDS, parts, strict=True))


def hidden_codes(targets: nn.Module, images: Tensor, patches: Tensor) -> Tensor:
    """Return the codes of the hidden patches of images, (hidden patches,).

    Args:
        targets: A `CodeTargets`, on the images' device.
        images: (images, channels, height, width); there may be none in validation.
        patches: Numbers of the hidden ones, image * patches of an image + patch.
    """
    return targets(images).flatten().index_select(0, patches) if len(images) else patches
