"""What tasks over images with texts share: the tokenizer, the form of images, a pre-trained run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from magneto.data.problems import Counts
from magneto.data.sources import parse_source
from magneto.data.stream import BatchStream, LazyBatches, mixed_plans
from magneto.data.tokenizer import Tokenizer, vocabulary_size
from magneto.language.text import text_tokenizer
from magneto.progress import SILENT, Progress
from magneto.runs import warn_unlearnt
from magneto.training.task import DIGEST_FILE, Task
from magneto.vision.batches import Finish, Read, Transform, example_stream, read_or_blank
from magneto.vision.decoding import BrokenImage, Picture
from magneto.vision.transforms import Reading
from magneto.vision_language.pretrained import load_pretrained, pretrained_reading
from magneto.vision_language.samples import (
    WholeImage,
    WholeImageAugmentation,
    frame_text,
)
from magneto.vision_language.tables import ImageRows, RowSplits, load_captions
from magneto.weights import StoredTensor

# Rows of an evaluation batch.
EVALUATION_BATCH = 64


class FineTunedTask(Task):
    """A task over images with texts: a `FineTunedConfig`, and the data that goes with it.

    Attributes:
        words: What the texts are, in the plural, for messages.
    """

    higher_is_better = True
    words: ClassVar[str] = "texts"

    def __init__(self, model: Any, data: Any, seed: int) -> None:
        super().__init__(model, data, seed)
        self._splits: Any = None

    @property
    def splits(self) -> Any:
        """Training and validation rows; read when they are first asked for."""
        if self._splits is None:
            self._splits = self.read_splits()
        return self._splits

    @abstractmethod
    def read_splits(self) -> Any:
        """Read the data; return "train" and "validation", both `ImageRows`."""

    @abstractmethod
    def training_texts(self) -> Iterable[str]:
        """Return the texts that a tokenizer is learnt from."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The pre-trained run's tokenizer, the one named, or one learnt from training texts."""
        name, size = self.data_config.tokenizer, self.data_config.vocab_size
        if name == "auto" and self.model_config.pretrained:
            name = pretrained_reading(self.model_config).tokenizer
        name = "bpe" if name == "auto" else name
        texts = self.training_texts() if name == "bpe" else ()
        return text_tokenizer(name, size, texts, self._progress)

    @cached_property
    def reading(self) -> Reading:
        """The form in which the model reads images."""
        config, peak = self.model_config, self.splits.train.images[0].peak
        return Reading(config.image_size, config.channels, self.data_config.normalisation, peak)

    def prepare(self, progress: Progress = SILENT) -> None:
        """Read the data; see that model, data and the run to begin with fit together.

        Raises:
            ValueError: If they don't.
        """
        if self._splits is not None:
            return
        self._progress = progress
        self.check_data()
        vocabulary_size(self.model_config.vocab_size, self.tokenizer)
        if self.model_config.pretrained:
            self._check_normalisation()
            found = self._pretrained()
            progress.say(found.describe())
            warn_unlearnt(found.run, progress)

    @abstractmethod
    def check_data(self) -> None:
        """Say what there is; raise ValueError if it doesn't fit the model."""

    def _check_normalisation(self) -> None:
        held = pretrained_reading(self.model_config).normalisation
        given = self.data_config.normalisation
        if held not in ("auto", given):
            run = self.model_config.pretrained
            raise ValueError(f"{run} reads images with the normalisation {held!r}, not "
                             f"{given!r}: give --data.normalisation {held}")  # fmt: skip

    def sized_config(self) -> Any:
        """Return the model's configuration with a known vocabulary."""
        size = self.model_config.vocab_size or self.tokenizer.vocab_size
        return replace(self.model_config, vocab_size=size)

    def _pretrained(self) -> Any:
        with torch.device("meta"):
            model = self.build_model()
        return load_pretrained(model, self.model_config)

    def initial_weights(self) -> dict[str, StoredTensor]:
        """Return the encoder of the pre-trained run, if one is named."""
        return self._pretrained().weights if self.model_config.pretrained else {}

    @cached_property
    def closing(self) -> list[int]:
        """The tokens that stand between a text's words and `</s>`: a mask, or none.

        Raises:
            ValueError: If the model reads a mask and the tokenizer has none.
        """
        if not self.model_config.ends_in_mask:
            return []
        if self.tokenizer.mask is None:
            raise ValueError("model.pooling mask_token: the tokenizer has no mask token")
        return [self.tokenizer.mask]

    @cached_property
    def train_tokens(self) -> Any:
        """Tokens of the training rows, as `tokenised` returns them."""
        return self.tokenised("training", self.splits.train)

    @cached_property
    def validation_tokens(self) -> Any:
        """Likewise of the validation rows."""
        return self.tokenised("validation", self.splits.validation)

    @abstractmethod
    def tokenised(self, split: str, rows: ImageRows) -> Any:
        """Return the tokens of each row's text, or of each of its texts."""

    @property
    def sees_images(self) -> bool:
        """Whether the model reads images: a recipe may leave them out, to see what they add."""
        return True

    def _read(self, rows: ImageRows, transform: Transform) -> Read:
        """Return what reads the image of a row, or all of its images."""
        blank = self.reading.blank
        seen: Transform = transform if self.sees_images else lambda picture, random: blank

        def read(row: int, random: np.random.Generator) -> np.ndarray:
            images = [seen(picture, random) for picture in rows.open(row)]
            return images[0] if len(images) == 1 else np.stack(images)

        return read

    def shuffled_rows(
        self, batch_size: int, seed: int, finish: Finish, places: np.ndarray | None = None
    ) -> BatchStream:
        """Return training rows in random order, their images augmented.

        Args:
            batch_size: Examples of a batch.
            seed: Of order and augmentation.
            finish: Makes a batch of "images", "rows" and "broken"; another example stands in the
                place of one that is broken.
            places: The row of each example, where "rows" shall be the examples' numbers; None
                where each row is one.
        """
        rows = self.splits.train
        numbers = np.arange(len(rows)) if places is None else places
        read = self._read(rows, WholeImageAugmentation(self.reading, self.data_config.augmentation))

        def example(number: int, random: np.random.Generator) -> dict[str, Any]:
            return {"images": read(int(numbers[number]), random), "rows": number}

        def broken(number: int, error: BrokenImage) -> None:
            rows.broken(int(numbers[number]), error)

        return example_stream(len(numbers), example, batch_size, seed, finish=finish, broken=broken)

    def validation_batches(self) -> LazyBatches:
        """Return the validation rows in mixed order; what is broken or missing is grey."""
        plans = mixed_plans(len(self.splits.validation), EVALUATION_BATCH)
        return LazyBatches(plans, self.fixed_rows)

    def fixed_rows(self, numbers: np.ndarray) -> dict[str, Any]:
        """Return the batch of some validation rows; nothing is drawn."""
        rows, blank = self.splits.validation, self.reading.blank
        if len(rows.names) > 1:
            blank = np.stack([blank] * len(rows.names))
        read = self._read(rows, WholeImage(self.reading))
        seen = read_or_blank(read, numbers, blank, rows.broken)
        return self.validation_batch({**seen, "rows": torch.from_numpy(numbers)})

    @abstractmethod
    def validation_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add what is said to "images", "rows" and "broken" of validation rows."""

    def framed(self, split: str, texts: Sequence[str]) -> list[np.ndarray]:
        """Return each text's tokens as the model reads them: `<s>` ... `</s>`, cut to fit.

        Before `</s>` stands what `closing` says.

        Args:
            split: "training" or "validation", for a message on how many are cut.
            texts: Of the split; many may be alike.
        """
        different, longest = list(dict.fromkeys(texts)), self.model_config.max_length
        encoded = self.tokenizer.encode(different)
        known = {text: frame_text(tokens, self.tokenizer, longest, self.closing)
                 for text, tokens in zip(different, encoded, strict=True)}  # fmt: skip
        over = {text for text, tokens in zip(different, encoded, strict=True)
                if len(tokens) > self.room}  # fmt: skip
        if cut := sum(text in over for text in texts):
            self._progress.say(f"{split}: {cut:,} {self.words} cut to model.max_length ({longest})")
        return [known[text] for text in texts]

    @property
    def room(self) -> int:
        """How many tokens of its own a text may have."""
        return self.model_config.max_length - 2 - len(self.closing)

    def images_together(self) -> int:
        """Return how many images, one after the other, what is said in prediction is about."""
        return 1

    def framed_whole(self, text: str, kind: str) -> np.ndarray:
        """Return a text's tokens, none of which is cut.

        Args:
            text: That is asked or said.
            kind: What it is, as a word for messages.

        Raises:
            ValueError: If the model reads shorter texts.
        """
        (tokens,) = self.tokenizer.encode([text])
        if len(tokens) > self.room:
            raise ValueError(f"the {kind} has {len(tokens)} tokens, the model reads "
                             f"{self.room}: say it in fewer words")  # fmt: skip
        return frame_text(tokens, self.tokenizer, self.model_config.max_length, self.closing)

    def read_pictures(self, pictures: Sequence[Picture]) -> torch.Tensor:
        """Return images as the model reads them in validation, (images, channels, side, side)."""
        config, random = self.model_config, np.random.default_rng(0)
        reading = Reading(config.image_size, config.channels, self.data_config.normalisation)
        transform = WholeImage(reading)
        return torch.from_numpy(np.stack([transform(each, random) for each in pictures]))

    def longest_texts(self, count: int) -> list[np.ndarray]:
        """Return the longest texts that fit, for a batch without data."""
        return [np.zeros(self.model_config.max_length, np.int64)] * count

    def black_images(self, count: int) -> torch.Tensor:
        """Return images of the model's size, (count, channels, height, width)."""
        config = self.model_config
        return torch.zeros(count, config.channels, config.image_size, config.image_size)

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write the tokenizer, and what names the content of the data."""
        (directory / "tokenizer").mkdir()
        self.tokenizer.save(directory / "tokenizer")
        digest = f"{self.splits.train.digest} {self.splits.validation.digest}"
        (directory / DIGEST_FILE).write_text(digest, encoding="utf-8")
        return {"data.tokenizer": directory / "tokenizer", "model.pretrained": None}


class CaptionedTask(FineTunedTask):
    """A task over images with captions, several each: a `CaptionDataConfig`."""

    words = "captions"

    def read_splits(self) -> RowSplits:
        """Training and validation images with their captions.

        Of drawn scenes with the same caption one is kept: no model can tell them apart by text.
        """
        found = load_captions(self.data_config, self.problems, self._progress)
        if parse_source(self.data_config.source).kind != "builtin":
            return found
        return RowSplits(distinct(found.train), distinct(found.validation), found.counts)

    def training_texts(self) -> Iterable[str]:
        """Return the training captions."""
        return (text for captions in self.splits.train.values("captions") for text in captions)

    def check_data(self) -> None:
        """Say how much there is, and what was odd."""
        found = self.splits
        parts = {"images to train on": len(found.train), "to validate on": len(found.validation)}
        self._progress.say(f"{self.data_config.source}: {Counts(found.counts).beside(parts)}")

    def tokenised(self, split: str, rows: ImageRows) -> list[list[np.ndarray]]:
        """Return the tokens of each image's captions."""
        captions = rows.values("captions")
        texts = iter(self.framed(split, [text for own in captions for text in own]))
        return [[next(texts) for _ in own] for own in captions]

    @cached_property
    def pairs(self) -> np.ndarray:
        """(row, number of a caption of it) of each training pair, int64 (pairs, 2)."""
        return np.array([(row, caption) for row, texts in enumerate(self.train_tokens)
                         for caption in range(len(texts))], np.int64)  # fmt: skip


def distinct(rows: ImageRows) -> ImageRows:
    """Return the first row of those with the same captions."""
    captions = rows.values("captions")
    first = {own: row for row, own in reversed([*enumerate(captions)])}
    return rows.take(np.array(sorted(first.values()), np.int64))
