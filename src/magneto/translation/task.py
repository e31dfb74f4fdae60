"""Translation task (paper, section 4.3), with BLEU and chrF from sacreBLEU."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import nn

from magneto.data.stream import EVALUATION_SEED, BatchStream, LazyBatches
from magneto.data.tokenizer import check_vocabulary
from magneto.files import import_extra, user_path
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

# Sentences per batch of translations in an evaluation.
TRANSLATED = 64
COLUMNS = "  {:<22}{:>10}{:>8}{:>8}"


class Translation(Task):
    """Translation task. The loss is in nats per target token.

    A batch is a list of groups. A group has padded sentence pairs. `training.batch_size` counts
    groups.

    Attributes:
        directions: Directions to evaluate, or None for all directions of the data.
    """

    unit = "tokens"
    directions: Sequence[LanguagePair] | None = None
    model_config: TranslationConfig
    data_config: ParallelDataConfig

    def __init__(self, model: TranslationConfig, data: ParallelDataConfig, seed: int) -> None:
        if model.encoder_layers is None:
            raise ValueError("translation needs model.encoder_layers and model.decoder_layers")
        super().__init__(model, data, seed)
        if data.select_by == "bleu":
            self.primary_metric, self.higher_is_better = "bleu", True
            self.whole_model = "evaluations translate sentences (data.select_by 'bleu')"

    @cached_property
    def text(self) -> PreparedParallel:
        return prepare_parallel(self.data_config, self._progress)

    @cached_property
    def vocabulary(self) -> TranslationVocabulary:
        """Tokenizer and language tags."""
        folder = user_path(self.data_config.tokenizer)
        if folder.is_dir() and stored_languages(self.data_config) is not None:
            return load_vocabulary(folder)
        return self.text.vocabulary

    def prepare(self, progress: Progress = SILENT) -> None:
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
        """Return the loss, and log `nll` and `padding`.

        `nll` is the cross-entropy without label smoothing. `padding` is the share of padding in
        the batch.
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
        numbers = np.concatenate(examples)
        directions = np.repeat(np.arange(len(examples)), maker.sizes)
        lengths = np.concatenate([maker.lengths(i, each) for i, each in enumerate(examples)])
        random = np.random.default_rng(EVALUATION_SEED)
        groups = length_groups(lengths, self.data_config.max_tokens, random)
        order = random.permutation(len(groups))
        return [(directions[groups[i]], numbers[groups[i]]) for i in order]

    @cached_property
    def _validation_maker(self) -> GroupMaker:
        directions = self.text.directions if self.directions is None else self.directions
        return GroupMaker(self.text.validation, self.vocabulary, directions)

    def validation_batches(self) -> Sequence[Group]:
        count = len(self.validation_groups)

        def make(number: int) -> Group:
            group = self._validation_maker.make(*self.validation_groups[number])
            return group | {"texts": self._bleu_texts[number::count]}

        return LazyBatches(range(count), make)

    def score(self, model: nn.Module, batch: Group) -> Scores:
        """Return the loss without label smoothing and, with `select_by: bleu`, translations."""
        part = self._group_loss(model, batch)
        sums = {"loss": part.nll, "count": part.count}
        if not batch["texts"]:
            return Scores(sums)
        from magneto.hf import BeamSearch

        search = BeamSearch(beams=1, longest=self.data_config.max_length)
        wrapped: Any = model
        translator = TextTranslator(wrapped, self.vocabulary, self.data_config.max_length, search)
        predictions = []
        for direction, texts in batch["texts"]:
            results = translator.translate([source for source, _ in texts], direction[1])
            pairs = zip(results, texts, strict=True)
            predictions.append((direction, [(each.texts[0], other) for each, (_, other) in pairs]))
        return Scores(sums, predictions)

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the loss (nats per target token, without label smoothing) and perplexity.

        With `select_by: bleu`, also return BLEU, averaged over directions.
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
        if self.data_config.select_by != "bleu":
            return []
        reference = read_validation_texts(self.data_config, self.data_config.bleu_sentences)
        parts = []
        for direction, texts in reference.texts.items():
            ordered = sorted(texts, key=lambda pair: len(pair[0]))
            starts = range(0, len(ordered), TRANSLATED)
            parts.append([(direction, ordered[start : start + TRANSLATED]) for start in starts])
        # Directions alternate, so that few batches cover many directions.
        return [part for turn in zip_longest(*parts) for part in turn if part is not None]

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        # Tags are never targets.
        size, text = self.vocabulary.tokenizer.vocab_size, self.text
        train = GroupMaker(text.train, self.vocabulary, text.directions).target_counts(size)
        targets = count_targets(self.validation_batches(), size, limit)
        return self.summarise(frequency_sums(train, targets), ())

    def save_assets(self, directory: Path) -> dict[str, Any]:
        return write_assets(directory, self.text.digest, self.vocabulary)


@dataclass(frozen=True)
class TranslationScores:
    """Scores of a set of translations. `bleu` and `chrf` are from 0 to 100.

    BLEU is sacreBLEU's score of cased, detokenised text (13a, "exp" smoothing). chrF is chrF2
    (character 6-grams).
    """

    bleu: float
    chrf: float
    sentences: int


def score_translations(translations: Sequence[str], references: Sequence[str]) -> TranslationScores:
    """Score translations with one reference each. Raise ValueError if there are no translations."""
    if len(translations) != len(references):
        raise ValueError(
            f"{len(translations)} translations and {len(references)} references: give one "
            "reference for each translation"
        )
    if not translations:
        raise ValueError("no translations to score")
    metrics = import_metrics()
    bleu = metrics.BLEU().corpus_score(list(translations), [list(references)])
    chrf = metrics.CHRF().corpus_score(list(translations), [list(references)])
    return TranslationScores(bleu.score, chrf.score, len(translations))


def import_metrics() -> Any:
    return import_extra("sacrebleu", "text", "scoring needs sacrebleu").metrics


def signatures() -> dict[str, str]:
    metrics = import_metrics()
    used = {"bleu": metrics.BLEU(), "chrf": metrics.CHRF()}
    for metric in used.values():
        metric.corpus_score(["a"], [["a"]])  # the signature names the number of references
    return {name: str(metric.get_signature()) for name, metric in used.items()}


def average_directions(
    values: Mapping[LanguagePair, float], pivot_language: str
) -> dict[str, float]:
    """Average a score over directions, as in the paper's table of BLEU scores.

    `out` is the mean over directions from the pivot language. `into` is the mean over directions
    into the pivot language. `both` is the mean of the two scores `out` and `into`. A mean
    over no directions is NaN; `both` is then NaN too.
    """
    out, into = (
        [value for direction, value in values.items() if direction[end] == pivot_language]
        for end in (0, 1)
    )
    means = [fmean(found) if found else math.nan for found in (out, into)]
    return {"out": means[0], "into": means[1], "both": fmean(means)}


def describe_scores(
    split: str, scores: dict[LanguagePair, TranslationScores], pivot: str
) -> dict[str, Any]:
    """Return scores, averages and sacreBLEU signatures, for JSON."""
    result: dict[str, Any] = {"split": split, "pivot_language": pivot}
    for name in ("bleu", "chrf"):
        values = {direction: getattr(each, name) for direction, each in scores.items()}
        result[name] = {"-".join(direction): value for direction, value in values.items()}
        result[f"{name}_average"] = average_directions(values, pivot)
    result["sentences"] = {"-".join(d): each.sentences for d, each in scores.items()}
    result["signatures"] = signatures()
    return result


def score_lines(result: dict[str, Any], scores: dict[LanguagePair, TranslationScores]) -> list[str]:
    lines = [f"{result['weights']} on {result['data']} ({result['split']}):"]
    lines += [
        f"  {name:<16}{result[name]:.4f}" for name in ("loss", "perplexity") if name in result
    ]
    lines.append(COLUMNS.format("direction", "sentences", "BLEU", "chrF"))
    lines += [
        COLUMNS.format("-".join(direction), each.sentences, f"{each.bleu:.2f}", f"{each.chrf:.2f}")
        for direction, each in scores.items()
    ]
    if len(scores) > 1:
        pivot = result["pivot_language"]
        for key, name in (("out", f"{pivot}->X"), ("into", f"X->{pivot}"), ("both", "average")):
            bleu, chrf = (result[f"{metric}_average"][key] for metric in ("bleu", "chrf"))
            if not math.isnan(bleu):
                lines.append(COLUMNS.format(f"mean {name}", "", f"{bleu:.2f}", f"{chrf:.2f}"))
    lines += [f"  {name}: {text}" for name, text in result["signatures"].items()]
    return lines


@dataclass(frozen=True)
class TranslationResult:
    """Translations of one text, the best first.

    An empty text has empty translations. A score is log-probability / length ** `length_penalty`.
    `scores` is empty if no scores were requested. `truncated` says whether the text was cut to the
    maximum length.
    """

    texts: list[str]
    scores: list[float]
    truncated: bool = False


class TextTranslator:
    """Translator of texts. The results are in the order of the texts.

    `model` must be in evaluation mode. `max_length` is the maximum number of tokens of a source,
    tag and end token included. `search` is a `magneto.hf.BeamSearch`.

    Raises:
        ModuleNotFoundError: If transformers is not installed.
    """

    def __init__(
        self,
        model: TranslationModel,
        vocabulary: TranslationVocabulary,
        max_length: int,
        search: Any,
    ) -> None:
        from magneto.hf import Translator

        if model.config.positions == "learned":  # no further positions exist
            max_length = min(max_length, model.config.max_length)
            search = replace(search, longest=min(search.longest, model.config.max_length - 1))
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.count: int = search.count
        self.translator: Any = Translator.of(model, vocabulary.end, search)

    def translate(
        self,
        texts: Sequence[str],
        language: str,
        scored: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[TranslationResult]:
        """Translate texts into a language.

        If `scored` is True, the results include the scores of the translations. A text without
        visible characters has empty translations. `progress` is called with the number of finished
        texts, empty texts excluded.

        Raises:
            ValueError: If the vocabulary lacks the language.
        """
        nonempty = [number for number, text in enumerate(texts) if is_visible(text)]
        sources = self.vocabulary.encode_source([texts[number] for number in nonempty], language)
        truncated = [len(tokens) > self.max_length for tokens in sources]
        sources = [
            [*tokens[: self.max_length - 1], self.vocabulary.end] if long else tokens
            for tokens, long in zip(sources, truncated, strict=True)
        ]
        found = self.translator.search(sources, progress)
        scores = self.translator.score(sources, found) if scored else [[] for _ in found]
        empty_scores = [0.0] * self.count * scored
        results = [TranslationResult([""] * self.count, empty_scores) for _ in texts]
        for place, number in enumerate(nonempty):
            translations = [self.vocabulary.decode(tokens) for tokens in found[place]]
            results[number] = TranslationResult(translations, scores[place], truncated[place])
        return results


def is_visible(text: str) -> bool:
    """Return False if a text has only spaces, control characters and format characters."""
    return any(not c.isspace() and unicodedata.category(c) not in ("Cc", "Cf") for c in text)


def score_directions(
    translator: TextTranslator,
    texts: Mapping[LanguagePair, Sequence[tuple[str, str]]],
    progress: Progress,
) -> tuple[dict[LanguagePair, TranslationScores], dict[LanguagePair, list[str]]]:
    """Translate the texts of each direction; return scores and translations."""
    scores: dict[LanguagePair, TranslationScores] = {}
    written: dict[LanguagePair, list[str]] = {}
    for direction, pairs in texts.items():
        sources, references = map(list, zip(*pairs, strict=True))
        show = partial(progress.update, f"translating {'-'.join(direction)}", total=len(sources))
        results = translator.translate(sources, direction[1], progress=show)
        show(len(sources))
        written[direction] = [each.texts[0] for each in results]
        scores[direction] = score_translations(written[direction], references)
    return scores, written
