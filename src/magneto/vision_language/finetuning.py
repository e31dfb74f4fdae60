"""What the tasks share that may begin with another run: images with texts, pairs, captions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from magneto.data.problems import Counts
from magneto.data.sources import parse_source
from magneto.data.stream import BatchStream, LazyBatches, mixed_plans
from magneto.data.tokenizer import Tokenizer, vocabulary_size
from magneto.language.text import text_tokenizer
from magneto.progress import SILENT, Progress
from magneto.runs import warn_unlearnt
from magneto.training.task import DIGEST_FILE, Task
from magneto.vision.batches import Finish, Transform, example_stream, read_or_blank
from magneto.vision.decoding import BrokenImage, Picture
from magneto.vision.image_task import Prediction
from magneto.vision.transforms import Reading
from magneto.vision_language.pretrained import Pretrained, load_pretrained, pretrained_reading
from magneto.vision_language.samples import (
    WholeImage,
    WholeImageAugmentation,
    frame_text,
    join_samples,
)
from magneto.vision_language.tables import ImageRows, RowSplits, load_captions
from magneto.weights import StoredTensor

# Rows of an evaluation batch.
EVALUATION_BATCH = 64


class FineTunedTask(Task):
    """A task over images with texts: a `FineTunedConfig`, and the data that goes with it.

    Attributes:
        words, rows: What the texts and the rows of the data are, in the plural, for messages.
        images_together: How many images, one after the other, a text is about.
    """

    higher_is_better = True
    words: ClassVar[str] = "texts"
    rows: ClassVar[str] = "rows"
    images_together: ClassVar[int] = 1

    def __init__(self, model: Any, data: Any, seed: int) -> None:
        super().__init__(model, data, seed)
        self._prepared = False

    @cached_property
    def splits(self) -> Any:
        """Training and validation rows; read when they are first asked for."""
        return self.read_splits()

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
            name, _ = pretrained_reading(self.model_config)
        name = "bpe" if name == "auto" else name
        texts = self.training_texts() if name == "bpe" else ()
        return text_tokenizer(name, size, texts, self._progress)

    @cached_property
    def reading(self) -> Reading:
        """The form in which the model reads images."""
        return self._reading(self.splits.train.images[0].peak)

    def _reading(self, peak: int = 255) -> Reading:
        config = self.model_config
        return Reading(config.image_size, config.channels, self.data_config.normalisation, peak)

    def prepare(self, progress: Progress = SILENT) -> None:
        """Read the data; see that model, data and the run to begin with fit together.

        Raises:
            ValueError: If they don't.
        """
        if self._prepared:
            return
        self._prepared, self._progress = True, progress
        self.check_data()
        vocabulary_size(self.model_config.vocab_size, self.tokenizer)
        if run := self.model_config.pretrained:
            given, (_, held) = self.data_config.normalisation, pretrained_reading(self.model_config)
            if held not in ("auto", given):
                raise ValueError(f"{run} reads images with the normalisation {held!r}, not "
                                 f"{given!r}: give --data.normalisation {held}")  # fmt: skip
            found = self._pretrained()
            progress.say(found.describe())
            warn_unlearnt(found.run, progress)

    def check_data(self) -> None:
        """Say what there is; raise ValueError if it doesn't fit the model."""
        found = self.splits
        parts = {f"{self.rows} to train on": len(found.train),
                 "to validate on": len(found.validation)}  # fmt: skip
        self._progress.say(f"{self.data_config.source}: {Counts(found.counts).beside(parts)}")

    def sized_config(self) -> Any:
        """Return the model's configuration with a known vocabulary."""
        size = self.model_config.vocab_size or self.tokenizer.vocab_size
        return replace(self.model_config, vocab_size=size)

    def _pretrained(self) -> Pretrained:
        with torch.device("meta"):
            model = self.build_model()
        return load_pretrained(model, self.model_config)

    def initial_weights(self) -> dict[str, StoredTensor]:
        """Return the encoder of the pre-trained run, if one is named."""
        return self._pretrained().weights if self.model_config.pretrained else {}

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

    def _read(self, rows: ImageRows, transform: Transform, row: int, random: Any) -> np.ndarray:
        """Return the image of a row, or all of its images, as the model reads them."""
        pictures = rows.open(row)
        if not self.sees_images:
            images = [self.reading.blank] * len(pictures)
        else:
            images = [transform(picture, random) for picture in pictures]
        return images[0] if len(images) == 1 else np.stack(images)

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
        transform = WholeImageAugmentation(self.reading, self.data_config.augmentation)

        def example(number: int, random: np.random.Generator) -> dict[str, Any]:
            return {"images": self._read(rows, transform, int(numbers[number]), random),
                    "rows": number}  # fmt: skip

        def broken(number: int, error: BrokenImage) -> None:
            rows.broken(int(numbers[number]), error)

        return example_stream(len(numbers), example, batch_size, seed, finish=finish, broken=broken)

    def validation_batches(self) -> LazyBatches:
        """Return the validation rows in mixed order; what is broken or missing is grey."""
        plans = mixed_plans(len(self.splits.validation), EVALUATION_BATCH)
        return LazyBatches(plans, self.fixed_rows)

    def fixed_rows(self, numbers: np.ndarray) -> dict[str, Any]:
        """Return the batch of some validation rows; nothing is drawn."""
        rows, blank, transform = (
            self.splits.validation,
            self.reading.blank,
            WholeImage(self.reading),
        )
        if len(rows.names) > 1:
            blank = np.stack([blank] * len(rows.names))
        seen = read_or_blank(
            lambda row, random: self._read(rows, transform, row, random),
            numbers,
            blank,
            rows.broken,
        )
        return self.validation_batch({**seen, "rows": torch.from_numpy(numbers)})

    @abstractmethod
    def validation_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add what is said to "images", "rows" and "broken" of validation rows."""

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

    @property
    def room(self) -> int:
        """How many tokens of its own a text may have."""
        return self.model_config.max_length - 2 - len(self.closing)

    def framed(self, split: str, texts: Sequence[str]) -> list[np.ndarray]:
        """Return each text's tokens as the model reads them: `<s>` ... `</s>`, cut to fit.

        Before `</s>` stands what `closing` says.
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

    def read_pictures(self, pictures: Sequence[Picture]) -> Tensor:
        """Return images as the model reads them in validation, (images, channels, side, side)."""
        transform, random = WholeImage(self._reading()), np.random.default_rng(0)
        return torch.from_numpy(np.stack([transform(each, random) for each in pictures]))

    def longest_texts(self, count: int) -> list[np.ndarray]:
        """Return the longest texts that fit, for a batch without data."""
        return [np.zeros(self.model_config.max_length, np.int64)] * count

    def black_images(self, count: int) -> Tensor:
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


class PairTask(FineTunedTask):
    """A task whose model reads a text beside each of its images, and chooses a label.

    Attributes:
        column: Of the text; also what `data.input` calls the text alone.
    """

    column: ClassVar[str]

    def training_texts(self) -> Iterable[str]:
        """Return the training texts."""
        return self.splits.train.values(self.column)

    @property
    def sees_images(self) -> bool:
        """Whether the model reads images, and not the texts alone."""
        return self.data_config.input != self.column

    def tokenised(self, split: str, rows: ImageRows) -> list[np.ndarray]:
        """Return the tokens of each text; of none of its words if images alone are read."""
        alone = self.data_config.input not in ("both", self.column)
        return self.framed(split, [""] * len(rows) if alone else rows.values(self.column))

    @abstractmethod
    def targets(self, validation: bool, rows: np.ndarray) -> dict[str, Tensor]:
        """Return what is to be answered to some rows, by its name in a batch."""

    @abstractmethod
    def blank_targets(self, count: int) -> dict[str, Tensor]:
        """Return targets of a batch without data."""

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return rows in random order, their images augmented."""
        tokens = self.train_tokens
        return self.shuffled_rows(
            batch_size, seed, lambda batch, *_: self._whole(batch, tokens, False)
        )

    def validation_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add the texts and their targets to images of validation rows."""
        return self._whole(batch, self.validation_tokens, True)

    def _whole(
        self, batch: dict[str, Any], tokens: Sequence[np.ndarray], validation: bool
    ) -> dict[str, Any]:
        """Return a batch with "samples", each image with its text, and targets.

        "images" (rows * images together, channels, height, width) are left before right.
        """
        rows = batch["rows"].numpy()
        texts = [tokens[row] for row in rows for _ in range(self.images_together)]
        return {
            **batch,
            "images": batch["images"].flatten(0, -4),
            "samples": join_samples(self.model_config.image_tokens, paired=texts),
            **self.targets(validation, rows),
        }

    def dummy_batch(self, examples: int) -> dict[str, Any]:
        """Return black images with the longest texts."""
        images = examples * self.images_together
        texts = self.longest_texts(images)
        return {
            "images": self.black_images(images),
            "samples": join_samples(self.model_config.image_tokens, paired=texts),
            **self.blank_targets(examples),
            "rows": torch.zeros(examples, dtype=torch.long),
            "broken": torch.zeros(examples, dtype=torch.bool),
        }

    @abstractmethod
    def shares(self, logits: Tensor) -> tuple[Sequence[str], Tensor]:
        """Return the labels' names, and how probable each is, (rows, labels)."""

    def framed_whole(self, text: str) -> np.ndarray:
        """Return a text's tokens, none of which is cut.

        Raises:
            ValueError: If the model reads shorter texts.
        """
        (tokens,) = self.tokenizer.encode([text])
        if len(tokens) > self.room:
            raise ValueError(f"the {self.column} has {len(tokens)} tokens, the model reads "
                             f"{self.room}: say it in fewer words")  # fmt: skip
        return frame_text(tokens, self.tokenizer, self.model_config.max_length, self.closing)

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Sequence[tuple[Picture, str]]) -> list[Prediction]:
        """Return the labels of texts about images, the likeliest first.

        Args:
            model: With a run's weights, in evaluation mode.
            inputs: Images that can be decoded, each with its text: as many of a text as it is
                about, left before right, or several times as many.

        Returns:
            Of each picture what is said of those that it belongs to.

        Raises:
            ValueError: If the model reads shorter texts.
        """
        texts = [self.framed_whole(text) for _, text in inputs]
        samples = join_samples(self.model_config.image_tokens, paired=texts)
        images = self.read_pictures([image for image, _ in inputs])
        device = next(model.parameters()).device
        names, shares = self.shares(model(images.to(device), samples.to(device)).float().cpu())
        values, order = shares.sort(dim=1, descending=True, stable=True)
        return [
            Prediction([(names[int(n)], share) for n, share in zip(numbers, own, strict=True)])
            for numbers, own in zip(order.tolist(), values.tolist(), strict=True)
            for _ in range(self.images_together)
        ]


class CaptionedTask(FineTunedTask):
    """A task over images with captions, several each: a `CaptionDataConfig`."""

    words, rows = "captions", "images"

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
