"""Multilingual translation task (paper, section 4.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import nn

from magneto.data.stream import EVALUATION_SEED, BatchStream, LazyBatches
from magneto.data.tokenizer import check_vocabulary
from magneto.files import user_path
from magneto.functional.cross_entropy import (
    CrossEntropyLoss,
    count_targets,
    frequency_sums,
    loss_metrics,
)
from magneto.progress import SILENT, Progress
from magneto.training.task import Loss, Scores, Task, add_losses, write_assets
from magneto.translation.config import ParallelDataConfig, SentencePair, TranslationConfig
from magneto.translation.model import TranslationModel
from magneto.translation.prepare import (
    Group,
    GroupMaker,
    LanguagePair,
    PreparedParallel,
    TranslationVocabulary,
    length_groups,
    load_vocabulary,
    prepare_parallel,
    stored_languages,
    training_stream,
)
from magneto.translation.text import read_validation_texts
from magneto.translation.translator import TextTranslator, score_translations

# Sentences per batch of translations in an evaluation.
TRANSLATED = 64


class Translation(Task):
    """Translation by a `TranslationModel`; the loss is in nats per target token.

    A batch is a list of groups, each padded to its longest sentence. `training.batch_size` counts
    groups.
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
        return prepare_parallel(self.data_config, self._progress)

    @cached_property
    def vocabulary(self) -> TranslationVocabulary:
        """Tokenizer and language tags; a run's vocabulary is loaded without reading the text."""
        folder = user_path(self.data_config.tokenizer)
        if folder.is_dir() and stored_languages(self.data_config) is not None:
            return load_vocabulary(folder)
        return self.text.vocabulary

    def prepare(self, progress: Progress = SILENT) -> None:
        """Filter and tokenise the source, unless it is cached; report the pairs left out."""
        if "text" in self.__dict__:
            return
        self._progress = progress
        text = self.text
        for line in text.describe(self.data_config.source):
            progress.say(line)
        whose = "the tokenizer with its language tags"
        check_vocabulary(self.model_config.vocab_size, self.vocabulary.size, whose)

    def build_model(self) -> TranslationModel:
        size = self.model_config.vocab_size or self.vocabulary.size
        return TranslationModel(replace(self.model_config, vocab_size=size))

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        maker = GroupMaker(self.text.train, self.vocabulary, self.text.directions)
        return training_stream(maker, batch_size, self.data_config, seed)

    def dummy_batch(self, examples: int) -> list[Group]:
        data = self.data_config
        tokens = torch.zeros(data.max_tokens // data.max_length, data.max_length, dtype=torch.long)
        count, cells = tokens.numel(), 2 * tokens.numel()
        group = {name: tokens.clone() for name in ("source", "target", "targets")}
        mask = {"source_mask": torch.ones_like(tokens, dtype=torch.bool)}
        return [group | mask | {"predicted": count, "real": cells, "cells": cells}] * examples

    def loss(self, model: nn.Module, batch: list[Group]) -> Loss:
        """Log `nll`, the cross-entropy without label smoothing, and the share of `padding`.

        `padding` is averaged over groups, weighted by their numbers of target tokens.
        """
        losses = []
        for group in batch:
            found = self._group_loss(model, group)
            # Units are target tokens with end tokens, without padding.
            units = group["predicted"]
            empty = (1 - group["real"] / group["cells"]) * units
            padding = found.total.new_full((), empty)  # no copy from the host
            logs = {"nll": found.nll, "padding": padding}
            losses.append(Loss(found.total, found.count, logs, units))
        return add_losses(losses)

    def _group_loss(self, model: nn.Module, group: Group) -> CrossEntropyLoss:
        return model(
            group["source"], group["target"], group["source_mask"], targets=group["targets"]
        )

    @cached_property
    def validation_groups(self) -> list[tuple[np.ndarray, np.ndarray]]:
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
        """With `select_by: bleu`, "texts" has sentences to translate, as in `_bleu_texts`."""
        count = len(self.validation_groups)

        def make(number: int) -> Group:
            group = self._validation_maker.make(*self.validation_groups[number])
            return group | {"texts": self._bleu_texts[number::count]}

        return LazyBatches(range(count), make)

    def score(self, model: nn.Module, batch: Group) -> Scores:
        """Return the loss without label smoothing, and translations, which wait for the device."""
        part = self._group_loss(model, batch)
        sums = {"loss": part.nll, "count": part.count}
        if not batch["texts"]:
            return Scores(sums)
        from magneto.hf import BeamSearch

        search = BeamSearch(beams=1, longest=self.data_config.max_length)
        wrapped: Any = model
        translator = TextTranslator(wrapped, self.vocabulary, self.data_config.max_length, search)
        return Scores(sums, [translator.translate_pairs(*each) for each in batch["texts"]])

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return loss (nats per target token, without label smoothing) and perplexity.

        With `select_by: bleu`, also return the unweighted mean BLEU over directions.
        """
        metrics = loss_metrics(sums)
        translated: dict[LanguagePair, list[tuple[str, str]]] = {}
        for direction, pairs in chain.from_iterable(predictions):
            translated.setdefault(direction, []).extend(pairs)
        if translated:
            scores = [score_translations(*zip(*each, strict=True)) for each in translated.values()]
            metrics["bleu"] = fmean(each.bleu for each in scores)
        return metrics

    @cached_property
    def _bleu_texts(self) -> list[tuple[LanguagePair, list[SentencePair]]]:
        """Batches to translate, each of one direction and of similar lengths.

        Directions alternate, so that a limited number of batches covers many directions.
        """
        if self.data_config.select_by != "bleu":
            return []
        reference = read_validation_texts(self.data_config, self.data_config.bleu_sentences)
        parts = []
        for direction, texts in reference.texts.items():
            ordered = sorted(texts, key=lambda pair: len(pair[0]))
            starts = range(0, len(ordered), TRANSLATED)
            parts.append([(direction, ordered[start : start + TRANSLATED]) for start in starts])
        return [part for turn in zip_longest(*parts) for part in turn if part is not None]

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        # Tags are never targets.
        size, text = self.vocabulary.tokenizer.vocab_size, self.text
        train = GroupMaker(text.train, self.vocabulary, text.directions).target_counts(size)
        targets = count_targets(self.validation_batches(), size, limit)
        return self.summarise(frequency_sums(train, targets), ())

    def save_assets(self, directory: Path) -> dict[str, Any]:
        return write_assets(directory, self.text.digest, self.vocabulary)
