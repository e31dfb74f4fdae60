"""Causal language modelling: next-token prediction (paper, section 4.1).

The way from a file to a batch on the device:

1. Files to documents: `open_documents` (data/documents.py), `split_documents` (language/text.py).
2. Documents to tokens in the cache: `prepare_text`, `tokenize_documents` (language/text.py).
3. Which windows are in a step's batch: `shuffled`, `BatchStream.pieces` (data/stream.py).
4. Tokens to these windows: `count_windows`, `read_windows` (language/text.py).
5. Windows to a batch: `CausalLanguageModeling.make`, which calls `next_token_batch`
   (language/text.py). `BatchPrefetcher` (data/workers.py) makes batches ahead of training.
6. Batch to the device: `to_device` (data/stream.py), called by `accumulate` (training/loop.py).

If the training text is streamed, `StreamedBlocks` (language/text.py) and `in_blocks`
(data/stream.py) do steps 2 to 4 for it, block by block and without a cache of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from magneto.data.documents import DOCUMENTS
from magneto.data.problems import Counts
from magneto.data.sources import check_two_sources
from magneto.data.stream import (
    EVALUATION_SEED,
    BatchStream,
    LazyBatches,
    example_stream,
    in_blocks,
    shuffled,
)
from magneto.data.tokenizer import Tokenizer, check_vocabulary, load_tokenizer
from magneto.functional.cross_entropy import (
    count_numbers,
    count_targets,
    frequency_sums,
    loss_metrics,
)
from magneto.language.models import LanguageModel
from magneto.language.text import (
    PreparedText,
    StreamedBlocks,
    count_windows,
    next_token_batch,
    prepare_text,
    read_windows,
    split_documents,
    tokenize_documents,
    window_count_file,
)
from magneto.progress import SILENT, Progress
from magneto.training.task import Loss, Task, write_assets

# Sequences per evaluation batch.
EVALUATION_BATCH = 16

# Documents of a stream that are shuffled together.
SHUFFLED_DOCUMENTS = 1024


class TextTask(Task):
    """Base class of tasks on packed windows of a tokenised corpus."""

    unit = "tokens"

    @cached_property
    def text(self) -> PreparedText:
        return prepare_text(self.data_config, self._progress)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        if self.data_config.tokenizer == "bpe":
            return self.text.tokenizer
        return load_tokenizer(self.data_config.tokenizer)

    def prepare(self, progress: Progress = SILENT) -> None:
        """Tokenise the source, unless the tokens are cached."""
        if "text" in self.__dict__:
            return
        self._progress = progress
        check_vocabulary(self.model_config.vocab_size, self.tokenizer.vocab_size)
        text, unit = self.text, "tokens"
        tokens = text.train
        if self.data_config.streaming:  # the training text is not tokenised yet
            tokens, unit = text.validation, "validation tokens"
        found = f"{text.counts.describe(DOCUMENTS)}, {len(tokens):,} {unit}"
        progress.say(f"{self.data_config.source}: {found}")

    def vocabulary(self) -> int:
        return self.model_config.vocab_size or self.tokenizer.vocab_size

    @property
    def length(self) -> int:
        """Number of corpus tokens in an input sequence."""
        return self.data_config.max_length

    def make(self, windows: np.ndarray, seeds: Iterable[tuple[int, ...]]) -> dict[str, Tensor]:
        """Return a batch of token windows, (batch, length + 1).

        The last token of a window is never an input. `seeds` has a random seed for each row.
        """
        raise NotImplementedError

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        check_two_sources(self.data_config)

        def make_seeded_batch(
            windows: np.ndarray, numbers: np.ndarray, draws: np.ndarray
        ) -> dict[str, Tensor]:
            seeds = map(lambda draw, number: (seed, int(draw), int(number)), draws, numbers)
            return self.make(windows, seeds)

        if self.data_config.streaming:
            return self._streamed_windows(batch_size, seed, make_seeded_batch)
        tokens, length = self.text.train, self.length
        return example_stream(
            shuffled(count_windows(tokens, length), batch_size, seed),
            lambda numbers, draws: make_seeded_batch(
                read_windows(tokens, length, numbers), numbers, draws
            ),
        )

    def _streamed_windows(
        self, batch_size: int, seed: int, make_seeded_batch: Callable[..., Any]
    ) -> BatchStream:
        data = self.data_config
        blocks = StreamedBlocks(
            lambda: self.documents("train"), self._encode, self.length, SHUFFLED_DOCUMENTS, seed,
            window_count_file(data, self.length),
        )  # fmt: skip

        def make_from_rows(rows: list[tuple[int, int, np.ndarray]]) -> Any:
            draws, numbers, windows = zip(*rows, strict=True)
            return make_seeded_batch(np.stack(windows), np.array(numbers), np.array(draws))

        plan = in_blocks(blocks.windows, batch_size, blocks.count)
        return BatchStream(plan, make_from_rows, lambda rows: f"{len(rows)} windows of tokens")

    def _encode(self, texts: list[str]) -> np.ndarray:
        return np.concatenate([part for part, _ in tokenize_documents(texts, self.tokenizer)])

    def validation_batches(self) -> Sequence[dict[str, Tensor]]:
        """Return the validation batches in the order of the corpus.

        In masked language modelling, the masked positions do not depend on the training seed.
        """
        tokens, length = self.text.validation, self.length
        count = count_windows(tokens, length)
        plans = np.array_split(np.arange(count), math.ceil(count / EVALUATION_BATCH))

        def make_validation_batch(numbers: np.ndarray) -> dict[str, Tensor]:
            seeds = ((EVALUATION_SEED, int(number)) for number in numbers)
            return self.make(read_windows(tokens, length, numbers), seeds)

        return LazyBatches(plans, make_validation_batch)

    def attention_mask(self, tokens: Tensor) -> Tensor | None:
        """Return a mask (batch, length, length) that is True between tokens of the same document.

        Return None if `mask_documents` is false.
        """
        if not self.data_config.mask_documents:
            return None
        ends = tokens == self.tokenizer.end
        document = ends.cumsum(1) - ends.long()
        return document[:, :, None] == document[:, None]

    def save_assets(self, directory: Path) -> dict[str, Any]:
        return write_assets(directory, self.text.digest, self.tokenizer)

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        if self.data_config.streaming:
            return {}
        size = self.tokenizer.vocab_size
        train = count_numbers(self.text.train, size)
        targets = count_targets(self.validation_batches(), size, limit)
        return self.summarise(frequency_sums(train, targets, self.predictable), ())

    @property
    def predictable(self) -> np.ndarray:
        """Whether each token can be a target, as an array (vocabulary,)."""
        return np.ones(self.tokenizer.vocab_size, bool)

    def documents(self, split: str, counts: Counts | None = None) -> Iterator[str]:
        """Yield the documents of "train" or "validation".

        `counts` receives the numbers of yielded and skipped documents.
        """
        return split_documents(self.data_config, split, Counts() if counts is None else counts)


class CausalLanguageModeling(TextTask):
    """Next-token prediction by a `LanguageModel`; the loss is in nats per token."""

    def build_model(self) -> LanguageModel:
        return LanguageModel(replace(self.model_config, vocab_size=self.vocabulary()))

    def make(self, windows: np.ndarray, seeds: Iterable[tuple[int, ...]]) -> dict[str, Tensor]:
        return next_token_batch(windows)

    def dummy_batch(self, examples: int) -> dict[str, Tensor]:
        windows = np.zeros((examples, self.data_config.max_length + 1), np.int64)
        return next_token_batch(windows)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Loss:
        loss = model(batch["tokens"], self.attention_mask(batch["tokens"]), batch["targets"])
        return Loss(loss.total, loss.count, units=batch["tokens"].numel())

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return loss (nats per token), perplexity and bits per byte of text.

        Bits per byte is the loss of all tokens, including end tokens, per byte of text. The number
        of bytes is estimated from the mean bytes per token of the whole split.
        """
        found = loss_metrics(sums)
        bytes_per_token = self.text.text_bytes / len(self.text.validation)
        return found | {"bits_per_byte": found["loss"] / math.log(2) / bytes_per_token}
