"""Translation between many languages with one encoder-decoder (paper, section 4.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from magneto.data.stream import EVALUATION_SEED, BatchStream, LazyBatches
from magneto.files import user_path
from magneto.functional.cross_entropy import count_targets, frequency_nats
from magneto.progress import SILENT, Progress
from magneto.training.task import DIGEST_FILE, Loss, Scores, Task
from magneto.translation.config import (
    ParallelDataConfig,
    Texts,
    TranslationConfig,
)
from magneto.translation.model import TranslationModel
from magneto.translation.prepare import (
    Group,
    GroupMaker,
    Pair,
    PreparedParallel,
    TranslationVocabulary,
    known_tags,
    length_groups,
    load_vocabulary,
    prepare_parallel,
    training_stream,
)
from magneto.translation.text import read_validation_texts
from magneto.translation.translator import TextTranslator, score_translations

# Sentences that are translated together in an evaluation.
TRANSLATED = 64


class Translation(Task):
    """Parallel text, a `TranslationModel`, label-smoothed cross-entropy per target token.

    A batch is a list of groups, each padded to its own longest sentence; a training example, as
    `training.batch_size` counts them, is a group.
    """

    unit = "tokens"
    model_config: TranslationConfig
    data_config: ParallelDataConfig

    def __init__(self, model: TranslationConfig, data: ParallelDataConfig, seed: int) -> None:
        if model.encoder_layers is None:
            raise ValueError("translation needs model.encoder_layers and model.decoder_layers")
        super().__init__(model, data, seed)
        if data.select_by == "bleu":
            self.primary_metric, self.higher_is_better = "bleu", True
            self.whole_model = "data.select_by bleu translates in evaluations"

    @cached_property
    def text(self) -> PreparedParallel:
        """The filtered, tokenised corpus."""
        return prepare_parallel(self.data_config, self._progress)

    @cached_property
    def vocabulary(self) -> TranslationVocabulary:
        """Tokens and tags; where `data.tokenizer` is a run's, without touching the text."""
        folder = user_path(self.data_config.tokenizer)
        if folder.is_dir() and known_tags(self.data_config) is not None:
            return load_vocabulary(folder)
        return self.text.vocabulary

    def prepare(self, progress: Progress = SILENT) -> None:
        """Filter and tokenise the source, unless it was done before; say what was left out.

        Raises:
            ValueError: If the model's vocabulary is set, and too small.
        """
        if "text" in self.__dict__:
            return
        self._progress = progress
        text = self.text
        for line in text.describe(self.data_config.source):
            progress.say(line)
        size, least = self.model_config.vocab_size, self.vocabulary.size
        if size is not None and size < least:
            raise ValueError(
                f"model.vocab_size ({size}) is below {least}: the tokenizer's "
                f"{self.vocabulary.tokenizer.vocab_size} and a tag per language"
            )

    def build_model(self) -> TranslationModel:
        """Build the model, with the data's vocabulary if none is set."""
        size = self.model_config.vocab_size or self.vocabulary.size
        return TranslationModel(replace(self.model_config, vocab_size=size))

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return groups of sentences of like length, `batch_size` groups at a time."""
        maker = GroupMaker(self.text.train, self.vocabulary, self.text.directions)
        return training_stream(maker, batch_size, self.data_config, seed)

    def dummy_batch(self, examples: int) -> list[Group]:
        """Return groups of the longest sentences, as many as fit; their tokens mean nothing."""
        data = self.data_config
        tokens = torch.zeros(data.max_tokens // data.max_length, data.max_length, dtype=torch.long)
        count, cells = tokens.numel(), 2 * tokens.numel()
        group = {name: tokens.clone() for name in ("source", "target", "targets")}
        mask = {"source_mask": torch.ones_like(tokens, dtype=torch.bool)}
        return [group | mask | {"predicted": count, "real": cells, "cells": cells}] * examples

    def loss(self, model: nn.Module, batch: list[Group]) -> Loss:
        """Sum the cross-entropy over the target tokens of a list of groups.

        Logged beside it: `nll`, the same without label smoothing, and `padding`, the share of
        places that hold no token, each group weighing as much as its target tokens.
        """
        parts = [
            model(g["source"], g["target"], g["source_mask"], targets=g["targets"]) for g in batch
        ]
        empty = sum((1 - g["real"] / g["cells"]) * g["predicted"] for g in batch)
        total: Tensor = torch.stack([part.total for part in parts]).sum()
        logs = {
            "nll": torch.stack([part.nll for part in parts]).sum(),
            "padding": total.new_full((), empty),  # no copy from the host
        }
        count = torch.stack([part.count for part in parts]).sum()
        # Target tokens, ends included and padding not.
        return Loss(total, count, logs, units=sum(group["predicted"] for group in batch))

    @cached_property
    def validation_groups(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Directions and numbers of the sentences of each evaluation batch, in mixed order."""
        maker = self._validation_maker
        examples = [np.arange(size) for size in maker.sizes]
        directions, numbers = (
            np.repeat(np.arange(len(examples)), maker.sizes),
            np.concatenate(examples),
        )
        lengths = np.concatenate([maker.lengths(i, each) for i, each in enumerate(examples)])
        random = np.random.default_rng(EVALUATION_SEED)
        groups = length_groups(lengths, self.data_config.max_tokens, random)
        order = random.permutation(len(groups))
        return [(directions[groups[i]], numbers[groups[i]]) for i in order]

    @cached_property
    def _validation_maker(self) -> GroupMaker:
        return GroupMaker(self.text.validation, self.vocabulary, self.text.directions)

    def validation_batches(self) -> Sequence[Group]:
        """Return the groups of the validation split, in mixed order.

        If BLEU chooses the best checkpoint, the sentences to translate are spread over them, under
        "texts": (direction, sentences with references) each.
        """
        count = len(self.validation_groups)

        def make(number: int) -> Group:
            group = self._validation_maker.make(*self.validation_groups[number])
            return group | {"texts": self._bleu_texts[number::count]}

        return LazyBatches(range(count), make)

    def score(self, model: nn.Module, batch: Group) -> Scores:
        """Sum the cross-entropy without label smoothing; translate, if BLEU is asked for.

        To translate waits for the device.
        """
        part = model(
            batch["source"], batch["target"], batch["source_mask"], targets=batch["targets"]
        )
        sums = {"loss": part.nll, "count": part.count}
        if not batch["texts"]:
            return Scores(sums)
        from magneto.hf import BeamSearch

        how = BeamSearch(beams=1, longest=self.data_config.max_length)
        wrapped: Any = model
        translator = TextTranslator(wrapped, self.vocabulary, self.data_config.max_length, how)
        return Scores(sums, [translator.answers(*each) for each in batch["texts"]])

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return loss (nats per target token, without label smoothing) and perplexity.

        If BLEU chooses the best checkpoint, also its unweighted mean over directions.
        """
        loss = sums["loss"] / sums["count"]
        found = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        written: dict[Pair, list[tuple[str, str]]] = {}
        for direction, answers in chain.from_iterable(predictions):
            written.setdefault(direction, []).extend(answers)
        if written:
            scores = [score_translations(*zip(*pairs, strict=True)) for pairs in written.values()]
            found["bleu"] = fmean(each.bleu for each in scores)
        return found

    @cached_property
    def _bleu_texts(self) -> list[tuple[Pair, list[Texts]]]:
        """Sentences to translate, some of one direction and of like length at a time.

        Directions take turns, so that a limit on batches reaches many.
        """
        if self.data_config.select_by != "bleu":
            return []
        found = read_validation_texts(self.data_config, self.data_config.bleu_sentences).texts
        parts = []
        for direction, texts in found.items():
            ordered = sorted(texts, key=lambda pair: len(pair[0]))
            starts = range(0, len(ordered), TRANSLATED)
            parts.append([(direction, ordered[start : start + TRANSLATED]) for start in starts])
        return [part for turn in zip_longest(*parts) for part in turn if part is not None]

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the metrics of the frequencies of target tokens in the training split."""
        # No tag is ever a target.
        size, text = self.vocabulary.tokenizer.vocab_size, self.text
        train = GroupMaker(text.train, self.vocabulary, text.directions).target_counts(size)
        asked = count_targets(self.validation_batches(), size, limit)
        sums = {"loss": frequency_nats(train, asked), "count": float(asked.sum())}
        return self.summarise(sums, ())

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write the vocabulary: tokenizer and languages."""
        (directory / "tokenizer").mkdir()
        self.vocabulary.save(directory / "tokenizer")
        (directory / DIGEST_FILE).write_text(self.text.digest, encoding="utf-8")
        return {"data.tokenizer": directory / "tokenizer"}
