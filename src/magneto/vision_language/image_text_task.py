"""Base class of vision-language tasks: rows, tokenizer, input format."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from magneto.data.tokenizer import Tokenizer, check_vocabulary
from magneto.language.text import build_tokenizer
from magneto.vision.input_size import ImageInputTask

# Batch size of evaluation.
EVALUATION_BATCH = 64


class ImageTextTask(ImageInputTask):
    """Task over images with texts: a `VisionLanguageConfig` and an `ImageTextDataConfig`.

    `words` is a plural noun for the texts in messages.
    """

    words: ClassVar[str] = "texts"

    @abstractmethod
    def training_texts(self) -> Iterable[str]:
        """Return the texts on which a tokenizer is trained."""

    @property
    def tokenizer_name(self) -> str:
        return self.data_config.tokenizer

    @cached_property
    def tokenizer(self) -> Tokenizer:
        name, size = self.tokenizer_name, self.data_config.vocab_size
        texts = self.training_texts() if name == "bpe" else ()
        return build_tokenizer(name, size, texts, self._progress)

    def check(self) -> None:
        check_vocabulary(self.model_config.vocab_size, self.tokenizer.vocab_size)

    def sized_config(self) -> Any:
        size = self.model_config.vocab_size or self.tokenizer.vocab_size
        return replace(self.model_config, vocab_size=size)
