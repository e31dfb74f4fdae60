"""What tasks over images with texts share: the tokenizer, the form of images, a pre-trained run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from magneto.data.frequencies import warn_unlearnt
from magneto.data.tokenizer import Tokenizer, vocabulary_size
from magneto.progress import SILENT, Progress
from magneto.training.task import DIGEST_FILE, Task
from magneto.vision.transforms import Reading
from magneto.vision_language.pretrained import load_pretrained, pretrained_reading
from magneto.vision_language.samples import frame_text
from magneto.vision_language.vocabulary import text_tokenizer
from magneto.weights import StoredTensor


class FineTunedTask(Task):
    """A task over images with texts: a `FineTunedConfig`, and the data that goes with it.

    Attributes:
        splits: Training and validation data, each with `digest`; read when it is first asked for.
    """

    higher_is_better = True

    def __init__(self, model: Any, data: Any, seed: int) -> None:
        super().__init__(model, data, seed)
        self._progress: Progress = SILENT

    @cached_property
    def splits(self) -> Any:
        """Training and validation data, whose broken images are told to `problems`."""
        found = self.read_splits()
        train, validation = (
            replace(split, problems=self.problems) for split in (found.train, found.validation)
        )
        return replace(found, train=train, validation=validation)

    @abstractmethod
    def read_splits(self) -> Any:
        """Read the data; return "train" and "validation", which have "problems"."""

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
        config, peak = self.model_config, self.splits.train.images.peak
        return Reading(config.image_size, config.channels, self.data_config.normalisation, peak)

    def prepare(self, progress: Progress = SILENT) -> None:
        """Read the data; see that model, data and the run to begin with fit together.

        Raises:
            ValueError: If they don't.
        """
        if "splits" in self.__dict__:
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

    def framed(self, split: str, unit: str, texts: Sequence[str]) -> list[np.ndarray]:
        """Return each text's tokens as the model reads them: `<s>` ... `</s>`, cut to fit.

        Before `</s>` stands what `closing` says.

        Args:
            split: "training" or "validation", for a message on how many are cut.
            unit: What the texts are, in the plural, for that message.
            texts: Of the split; many may be alike.
        """
        different, longest = list(dict.fromkeys(texts)), self.model_config.max_length
        encoded = self.tokenizer.encode(different)
        known = {text: frame_text(tokens, self.tokenizer, longest, self.closing)
                 for text, tokens in zip(different, encoded, strict=True)}  # fmt: skip
        over = {text for text, tokens in zip(different, encoded, strict=True)
                if len(tokens) > self.room}  # fmt: skip
        if cut := sum(text in over for text in texts):
            self._progress.say(f"{split}: {cut:,} {unit} cut to model.max_length ({longest})")
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
