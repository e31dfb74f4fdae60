"""Masked data modelling: hidden patches and hidden words of images, texts and pairs (BEiT-3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from magneto.data.cache import content_digest
from magneto.data.stream import BatchStream
from magneto.data.tokenizer import vocabulary_size
from magneto.functional.cross_entropy import count_numbers, frequency_nats
from magneto.progress import SILENT, Progress
from magneto.training.task import DIGEST_FILE, Loss, Scores, Task
from magneto.vision.targets import CodeTargets
from magneto.vision_language.config import MaskedDataConfig, MaskedDataModelConfig
from magneto.vision_language.heads import MaskedDataModel, MaskedSamples
from magneto.vision_language.pretraining_data import (
    TRAIN,
    VALIDATION,
    MaskedData,
)

# Of images alone, of the images of pairs, of the texts of pairs, of texts alone.
KINDS = ("image", "paired_image", "paired_text", "text")
# Batches of training images whose codes are counted for the baseline.
COUNTED_BATCHES = 16


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
        """Return how many codes the model guesses among: the tokenizer's, if none are set.

        Raises:
            ValueError: If the number set is another one.
        """
        known, wanted = self.targets.codes, self.model_config.codes
        if wanted not in (None, known):
            raise ValueError(f"the image tokenizer has {known} codes, model.codes is {wanted}")
        return known

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

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return images, texts and pairs, each in its own order; other parts are hidden each time.

        Raises:
            ValueError: If a batch can't be cut by `batch_shares`.
        """
        return self.data.train_stream(batch_size, seed)

    def dummy_batch(self, examples: int) -> dict[str, Any]:
        """Return black images and the longest texts, apart and together."""
        return self.data.dummy_batch(examples)

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> Loss:
        """Sum the cross-entropy over hidden patches and hidden words."""
        found = model(batch["images"], batch["masked"], self._codes(batch), batch["words"])
        patches, words = found.patches, found.words
        # Tokens of images, class tokens too, and of texts.
        units = len(batch["images"]) * self.model_config.image_tokens
        units += len(batch["masked"].samples.token_ids)
        return Loss(patches.total + words.total, patches.count + words.count, units=units)

    def _codes(self, batch: dict[str, Any]) -> Tensor:
        """Return the codes of the hidden patches, (hidden patches,)."""
        return hidden_codes(self.targets, batch["images"], batch["masked"].patches)

    def validation_batches(self) -> Sequence[dict[str, Any]]:
        """Return images, texts and pairs in mixed order; always the same parts are hidden."""
        return self.data.fixed_batches(VALIDATION)

    def score(self, model: nn.Module, batch: dict[str, Any]) -> Scores:
        """Sum the cross-entropy of each stream's patches and words; count them, and those right."""
        logits = model(batch["images"], batch["masked"])
        sums = masked_sums(logits, (self._codes(batch), batch["words"]), batch["masked"])
        return Scores({**sums, "unreadable": batch["blank"].sum()})

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the loss of all, and nats and accuracy of each stream's patches and words."""
        return masked_scores(sums)

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the metrics of the frequencies of codes and tokens, each stream's own."""
        data, device = self.data, self.targets.scale.device
        size = {kind: self.codes() if "image" in kind else self.vocabulary() for kind in KINDS}
        train = islice(data.fixed_batches(TRAIN), COUNTED_BATCHES)
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
        return masked_scores(sums)

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write the tokenizer of texts, and a digest of all data; images' tells how many codes."""
        (directory / "tokenizer").mkdir()
        self.data.tokenizer.save(directory / "tokenizer")
        (directory / DIGEST_FILE).write_text(self._digest, encoding="utf-8")
        return {"data.tokenizer": directory / "tokenizer", "model.codes": self.codes()}

    @cached_property
    def _digest(self) -> str:
        data = self.data
        splits = (*data.images, data.captions.train, data.captions.validation)
        parts = [*(split.digest for split in splits), self.targets.digest()]
        texts = [np.asarray(texts.tokens) for texts in (*data.texts, *data.paired_texts)]
        return content_digest(*(part.encode() for part in parts), *texts)


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


def masked_sums(
    logits: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor], masked: MaskedSamples
) -> dict[str, Tensor]:
    """Return summed nats, right guesses and guesses of each kind.

    Args:
        logits: Of hidden patches (hidden patches, codes) and hidden words (hidden words, tokens).
        targets: What was hidden: (hidden patches,) and (hidden words,).
        masked: Of the batch.
    """
    guesses = by_kind(*logits, masked)
    sums = {}
    for kind, answers in by_kind(*targets, masked).items():
        rows = guesses[kind].float()
        sums[f"{kind}_nats"] = F.cross_entropy(rows, answers, reduction="sum")
        sums[f"{kind}_right"] = (rows.argmax(-1) == answers).sum()
        sums[f"{kind}_count"] = torch.ones_like(answers).sum()
    return sums


def masked_scores(sums: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics: the loss over all guesses, nats per guess and accuracy of each kind.

    A kind that nothing was asked of has none.
    """
    total = sum(sums[f"{kind}_nats"] for kind in KINDS)
    found = {"loss": total / max(sum(sums[f"{kind}_count"] for kind in KINDS), 1)}
    for kind in KINDS:
        if count := sums[f"{kind}_count"]:
            found[f"{kind}_loss"] = sums[f"{kind}_nats"] / count
            found[f"{kind}_accuracy"] = sums[f"{kind}_right"] / count
    return {**found, "unreadable_images": float(sums.get("unreadable", 0))}
