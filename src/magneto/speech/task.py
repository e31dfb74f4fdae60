"""Speech recognition with a transducer (paper, section 6), and its error rates, by jiwer."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from magneto.config import ConfigError, nearest
from magneto.data.problems import listed
from magneto.data.stream import BatchStream
from magneto.files import import_extra, user_path
from magneto.progress import SILENT, Progress
from magneto.speech.batching import (
    TRAINED,
    PreparedSpeech,
    SpeechBatch,
    SpeechVocabulary,
    make_vocabulary,
)
from magneto.speech.config import SpeechDataConfig, TransducerConfig
from magneto.speech.decoding import GreedySearch, Search
from magneto.speech.features import CMVN_FILE
from magneto.speech.model import Transducer
from magneto.training.task import DIGEST_FILE, NON_FINITE, Figure, Loss, Scores, Task
from magneto.weights import StoredTensor, find_weights, open_tensors

# Share of validation transcripts without a word above which something is wrong, and is said.
MOSTLY_EMPTY = 0.9
# Groups with what was excluded that are held until the next evaluation, at most: more than the
# paper's recipes have in that time (8 of each of 4000 steps).
REMEMBERED = 100_000
# What can be wrong with an utterance.
LEFT_OUT = "utterance left out of training"
NO_FINITE_LOSS = "utterance whose loss was not finite"
UNREADABLE = "validation utterance that is not as it should be"
# What a normal value is within of its mean, 95 % of the time, in standard deviations.
NORMAL = 1.959964
# By name: class in transformers' copy of Whisper's normalisers (arXiv 2212.04356, appendix C), what
# it is made of, and what is to be known. The English one turns British spellings into American ones
# by a table that is not in transformers.
NORMALISERS = {
    "whisper-english": ("EnglishTextNormalizer", ({},), ", British spellings left as they are"),
    "whisper-basic": ("BasicTextNormalizer", (), ""),
}
WHISPER = "transformers.models.whisper.english_normalizer"

Answer = tuple[str, str, str]
"""Id, reference and hypothesis of an utterance."""


class SpeechRecognition(Task):
    """Utterances, a `Transducer`, its loss in nats per utterance.

    A batch is a list of groups, each padded to its own longest utterance; a training example, as
    `training.batch_size` counts them, is a group. Throughput counts frames of 10 ms.
    """

    primary_metric = "wer"
    unit = "frames"
    whole_model = "speech recognition transcribes in evaluations"
    model_config: TransducerConfig
    data_config: SpeechDataConfig

    def __init__(self, model: TransducerConfig, data: SpeechDataConfig, seed: int) -> None:
        super().__init__(model, data, seed)
        if model.mel_bins != data.features.mel_bins:
            raise ValueError(f"model.mel_bins ({model.mel_bins}) is not data.features.mel_bins "
                             f"({data.features.mel_bins})")  # fmt: skip
        self.search: Search = GreedySearch()
        # Which utterances of which training batches had no finite loss, on the device.
        self._excluded: deque[tuple[list[str], Tensor]] = deque(maxlen=REMEMBERED)

    @cached_property
    def speech(self) -> PreparedSpeech:
        """Recordings, vocabulary and means."""
        return PreparedSpeech(self.data_config, self.seed, self._progress)

    @cached_property
    def vocabulary(self) -> SpeechVocabulary:
        """Labels; where `data.tokenizer` is a run's, without touching any recording."""
        if self.data_config.tokenizer not in TRAINED:
            return make_vocabulary(self.data_config, ())
        return self.speech.vocabulary

    def prepare(self, progress: Progress = SILENT) -> None:
        """Find the recordings, learn tokenizer and means, unless it was done before.

        Raises:
            ValueError: If the model's vocabulary is set, and too small.
        """
        if "speech" in self.__dict__:
            return
        self._progress = progress
        import_jiwer()  # a missing package is known at once
        size, least = self.model_config.vocab_size, self.vocabulary.size
        if size is not None and size < least:
            raise ValueError(f"model.vocab_size ({size}) is below {least}: the tokenizer's "
                             f"{least - 1} and blank")  # fmt: skip
        for name, why in self.speech.splits.excluded:
            self.problems.met(LEFT_OUT, name, why)

    def build_model(self) -> Transducer:
        """Build the model, with the data's vocabulary if none is set."""
        size = self.model_config.vocab_size or self.vocabulary.size
        return Transducer(replace(self.model_config, vocab_size=size))

    def initial_weights(self) -> dict[str, StoredTensor]:
        """Return all weights of another run, if one is named; say what it lacks.

        Raises:
            FileNotFoundError: If there is no such run, or it has no weights.
            ValueError: If it has none of this model's.
        """
        named = self.model_config.pretrained
        if not named:
            return {}
        found = dict(open_tensors(find_weights(user_path(named))))
        with torch.device("meta"):
            names = list(self.build_model().state_dict())
        anew = [name for name in names if name not in found]
        if len(anew) == len(names):
            raise ValueError(f"model.pretrained {named} has none of this model's weights: "
                             "give a run of transducer")  # fmt: skip
        if anew:
            self._progress.say(f"begun with {named}; drawn anew, as it has none: {listed(anew)}")
        return found

    def searching(self, search: Search) -> SpeechRecognition:
        """Return this task with another search of transcripts in evaluations."""
        made = copy(self)
        made.search = search
        return made

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        """Return groups of utterances of like length, `batch_size` groups at a time."""
        return self.speech.train_stream(batch_size, seed)

    def dummy_batch(self, examples: int) -> list[SpeechBatch]:
        """Return groups of the longest utterances, as many as fit, with as many labels as fit."""
        data = self.data_config
        frames = int(data.max_duration * 1000 / data.features.frame_shift)
        count = max(data.max_frames // frames, 1)
        spoken = int(data.max_duration * data.max_text_rate)
        labels = max(min(int(data.max_cells // (count * frames)) - 1, spoken), 1)
        group = SpeechBatch(
            features=torch.zeros(count, frames, data.features.mel_bins),
            feature_lengths=torch.full((count,), frames),
            targets=torch.ones(count, labels, dtype=torch.long),
            target_lengths=torch.full((count,), labels),
            sizes=[(frames, labels)] * count,
            weights=torch.ones(count),
            ids=[""] * count,
            problems=[""] * count,
            texts=[""] * count,
            frames=count * frames,
        )
        return [group] * examples

    def loss(self, model: nn.Module, batch: list[SpeechBatch]) -> Loss:
        """Sum the losses of the utterances of a list of groups.

        Logged beside it: each loss without its weight; `non_finite`, utterances left out since
        their loss is not finite, for each that counts; and `padding`, the share of places that hold
        no frame, each group weighing as much as its utterances that count.
        """
        found = [run(model, group) for group in batch]
        for group, each in zip(batch, found, strict=True):
            self._excluded.append((group.ids, each.excluded))
            self._note(LEFT_OUT, group)
        parts = {
            name: torch.stack([each.parts[name] for each in found]).sum() for name in found[0].parts
        }
        total = torch.stack([each.total for each in found]).sum()
        shares = [1 - group.frames / group.cells for group in batch]
        empty = [each.count * share for share, each in zip(shares, found, strict=True)]
        return Loss(
            total,
            torch.stack([each.count for each in found]).sum(),
            {
                **parts,
                NON_FINITE: torch.stack([each.excluded.sum() for each in found]).sum(),
                "padding": torch.stack(empty).sum(),
            },
            units=sum(group.frames for group in batch),
        )

    def validation_batches(self) -> Sequence[SpeechBatch]:
        """Return the groups of the validation split, in mixed order."""
        return self.speech.validation_batches()

    def score(self, model: nn.Module, batch: SpeechBatch) -> Scores:
        """Sum the loss, and transcribe, which waits for the device.

        No utterance is left out of the transcripts: one that can't be read has an empty one. The
        loss is of those for which it is finite.
        """
        self._note(UNREADABLE, batch)
        found = run(model, batch)
        model_itself: Any = model
        encoded, lengths = model_itself.encode(batch.features, batch.feature_lengths)
        usable = batch.weights > 0
        hypotheses = self.search(model_itself, encoded, torch.where(usable, lengths, 0))
        texts = [self.vocabulary.decode(best[0].labels) for best in hypotheses]
        sums = {"loss": found.total, "count": found.count, NON_FINITE: found.excluded.sum()}
        sums["unreadable"] = (~usable).sum()
        answers = list(zip(batch.ids, batch.texts, texts, strict=True))
        return Scores(sums, answers)

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return loss, error rates of words and characters, and the kinds of the errors of words.

        Error rates are errors per word or character of the references. `empty` is the share of
        transcripts without a word, `non_finite` and `unreadable` are numbers of utterances.
        """
        self._note_not_finite()
        answers = list(chain.from_iterable(predictions))
        found = {"loss": sums["loss"] / max(sums["count"], 1)} | error_rates(answers)
        found |= {name: sums[name] for name in (NON_FINITE, "unreadable")}
        if found["empty"] > MOSTLY_EMPTY:
            self._progress.say(
                f"{found['empty']:.0%} of the validation transcripts are empty: the model writes "
                "blanks. At the start that is usual; if it stays, try a lower rate, more warm-up, "
                "or a greater model.ctc_weight"
            )
        return found

    def _note(self, kind: str, group: SpeechBatch) -> None:
        for name, why in zip(group.ids, group.problems, strict=True):
            if why:
                self.problems.met(kind, name, why)

    def _note_not_finite(self) -> None:
        """Read from the device which utterances had no finite loss since the last evaluation."""
        while self._excluded:
            ids, excluded = self._excluded.popleft()
            if type(excluded) is Tensor:  # else its operations were counted, and it has no values
                for number in excluded.nonzero()[:, 0].tolist():
                    self.problems.met(NO_FINITE_LOSS, ids[number], "in at least one step")

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        """Return the error rates of answering always with the commonest word."""
        words = Counter(word for text in self.speech.splits.train.texts for word in text.split())
        answer = words.most_common(1)[0][0]
        asked = islice(self.validation_batches(), limit)
        return error_rates(
            [(id, text, answer) for b in asked for id, text in zip(b.ids, b.texts, strict=True)]
        )

    def save_assets(self, directory: Path) -> dict[str, Any]:
        """Write tokenizer, means and a digest; the run stands alone."""
        self.speech.save(directory)
        (directory / DIGEST_FILE).write_text(self.speech.splits.digest, encoding="utf-8")
        means = directory / CMVN_FILE
        kept: dict[str, Any] = {"data.cmvn": means} if means.is_file() else {}
        return {"data.tokenizer": directory / "tokenizer", "model.pretrained": None, **kept}


def run(model: nn.Module, group: SpeechBatch) -> Any:
    """Return the `TransducerLoss` of a group."""
    return model(
        group.features, group.feature_lengths, group.targets, group.target_lengths,
        group.weights, group.sizes,
    )  # fmt: skip


@dataclass(frozen=True)
class ErrorCounts:
    """How transcripts differ from references: in how many units, which are words or characters."""

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def units(self) -> int:
        """Units of the references."""
        return self.hits + self.substitutions + self.deletions

    @property
    def errors(self) -> int:
        """Units that are others, missing, or too many."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per unit of the references: 0.05 is 5 %; above 1 with many insertions."""
        return self.errors / max(self.units, 1)


def word_errors(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorCounts:
    """Count errors of words, as they are written: nothing is normalised but spaces."""
    return _errors(references, hypotheses, "process_words", str.split)


def character_errors(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorCounts:
    """Count errors of characters, single spaces included."""
    return _errors(references, hypotheses, "process_characters", list)


def _errors(
    references: Sequence[str], hypotheses: Sequence[str], name: str, units: Any
) -> ErrorCounts:
    """Count errors; jiwer takes no empty reference, all of whose answer is too many."""
    library = import_jiwer()
    texts = zip(references, hypotheses, strict=True)
    pairs = [(" ".join(r.split()), " ".join(h.split())) for r, h in texts]
    inserted = sum(len(units(h)) for r, h in pairs if not r)
    there = [pair for pair in pairs if pair[0]]
    if not there:
        return ErrorCounts(insertions=inserted)
    found = getattr(library, name)(*map(list, zip(*there, strict=True)))
    return ErrorCounts(
        found.hits, found.substitutions, found.deletions, found.insertions + inserted
    )


def import_jiwer() -> Any:
    """Import jiwer, or say which extra has it."""
    return import_extra("jiwer", "speech", "word error rates need jiwer")


def error_rates(answers: Sequence[Answer]) -> dict[str, float]:
    """Return the error rates of utterances, as `SpeechRecognition.summarise` gives them."""
    references, hypotheses = ([answer[place] for answer in answers] for place in (1, 2))
    words = word_errors(references, hypotheses)
    count = max(words.units, 1)
    return {
        "wer": words.rate,
        "cer": character_errors(references, hypotheses).rate,
        "substitutions": words.substitutions / count,
        "deletions": words.deletions / count,
        "insertions": words.insertions / count,
        "empty": sum(not text.strip() for text in hypotheses) / max(len(hypotheses), 1),
    }


def half_width_of_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Return the half-width of a 95 % confidence interval of a word error rate.

    By the variance of a ratio over utterances, which are taken as independent; nan for fewer than
    two with words.
    """
    each = [word_errors([r], [h]) for r, h in zip(references, hypotheses, strict=True)]
    units = sum(found.units for found in each)
    if sum(found.units > 0 for found in each) < 2:
        return math.nan
    rate = sum(found.errors for found in each) / units
    square = sum((found.errors - rate * found.units) ** 2 for found in each)
    return NORMAL * math.sqrt(square * len(each) / (len(each) - 1)) / units


@dataclass(frozen=True)
class TextNormaliser:
    """What brings texts to one form, and its name and version, as they stand beside a score."""

    normalise: Callable[[str], str]
    title: str


def text_normaliser(name: str) -> TextNormaliser:
    """Return a normaliser by its name, one of `NORMALISERS`.

    Raises:
        ConfigError: If there is none of this name.
        ModuleNotFoundError: If transformers is not installed.
    """
    if name not in NORMALISERS:
        raise ConfigError([f"no normaliser {name!r}{nearest(name, list(NORMALISERS))}"])
    kind, arguments, note = NORMALISERS[name]
    module, library = (
        import_extra(each, "hf", f"the normaliser {name} needs transformers")
        for each in (WHISPER, "transformers")
    )
    title = f"{name} (transformers {library.__version__}{note})"
    return TextNormaliser(getattr(module, kind)(*arguments), title)


def normalised_rates(
    answers: Sequence[Answer], normalise: Callable[[str], str]
) -> dict[str, float]:
    """Return the error rates of normalised texts."""
    references, hypotheses = ([normalise(each[place]) for each in answers] for place in (1, 2))
    return {
        "wer_normalised": word_errors(references, hypotheses).rate,
        "cer_normalised": character_errors(references, hypotheses).rate,
        "wer_normalised_half_width": half_width_of_rate(references, hypotheses),
    }


def figures(task: SpeechRecognition, model: nn.Module) -> Sequence[Figure]:
    """Return an utterance with the model's path through it, and a table of errors by word."""
    from magneto.speech.figures import draw_figures

    transducer: Any = model
    return draw_figures(task, transducer)
