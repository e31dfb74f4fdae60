"""Speech recognition task (paper, section 6), and word and character error rates by jiwer."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from magneto.config import ConfigError, nearest
from magneto.data.problems import join_words
from magneto.data.stream import BatchStream, LazyBatches
from magneto.data.tokenizer import check_vocabulary
from magneto.files import import_extra, user_path
from magneto.progress import SILENT, Progress
from magneto.speech.batching import (
    TRAINED,
    PreparedSpeech,
    SpeechBatch,
    SpeechVocabulary,
    build_vocabulary,
    pad_batch,
)
from magneto.speech.config import SpeechDataConfig, TransducerConfig
from magneto.speech.decoding import GreedySearch, Search
from magneto.speech.features import CMVN_FILE, Normaliser
from magneto.speech.model import Transducer
from magneto.training.task import NON_FINITE, Figure, Loss, Scores, Task, add_losses, write_assets
from magneto.weights import StoredTensor, find_weights, open_weights

# Share of empty decoded validation texts above which a warning is shown.
MOSTLY_EMPTY = 0.9
# Maximum number of groups kept between evaluations to name excluded utterances: more than the
# paper's recipes have (8 in each of 4000 steps).
REMEMBERED = 100_000
# Kinds of data problems.
LEFT_OUT = "utterance left out of training"
NO_FINITE_LOSS = "utterance with an infinite or NaN loss"
UNREADABLE = "damaged validation utterance"
# Half-width of a 95 % interval of the normal distribution in standard deviations.
NORMAL = 1.959964
# By name: class of Whisper's normaliser in transformers (arXiv 2212.04356, appendix C), its
# arguments, and a note. The English one lacks the table of British and American spellings, which is
# not part of transformers.
NORMALISERS = {
    "whisper-english": ("EnglishTextNormalizer", ({},), ", British spellings unchanged"),
    "whisper-basic": ("BasicTextNormalizer", (), ""),
}
WHISPER = "transformers.models.whisper.english_normalizer"

Answer = tuple[str, str, str]
"""Id, reference and hypothesis of an utterance."""


class SpeechRecognition(Task):
    """Speech recognition by a `Transducer`; the loss is in nats per utterance.

    A batch is a list of groups, each padded to its longest utterance. `training.batch_size` counts
    groups. Throughput counts frames. Evaluations decode with `search`.
    """

    primary_metric = "wer"
    unit = "frames"
    whole_model = "evaluations transcribe utterances"
    model_config: TransducerConfig
    data_config: SpeechDataConfig

    def __init__(self, model: TransducerConfig, data: SpeechDataConfig, seed: int) -> None:
        super().__init__(model, data, seed)
        if model.mel_bins != data.features.mel_bins:
            raise ValueError(f"model.mel_bins ({model.mel_bins}) must equal data.features.mel_bins "
                             f"({data.features.mel_bins})")  # fmt: skip
        self.search: Search = GreedySearch()
        # Ids of a training group's utterances, and which had no finite loss, on the device.
        self._excluded: deque[tuple[list[str], Tensor]] = deque(maxlen=REMEMBERED)

    @cached_property
    def speech(self) -> PreparedSpeech:
        return PreparedSpeech(self.data_config, self.seed, self._progress)

    @cached_property
    def vocabulary(self) -> SpeechVocabulary:
        if self.data_config.tokenizer not in TRAINED:
            return build_vocabulary(self.data_config, ())
        return self.speech.vocabulary

    def prepare(self, progress: Progress = SILENT) -> None:
        """Read the corpus, and train or load the tokenizer and the feature normaliser."""
        if "speech" in self.__dict__:
            return
        self._progress = progress
        import_jiwer()  # raise early if it is missing
        whose = "the transcripts' tokenizer and the blank"
        check_vocabulary(self.model_config.vocab_size, self.vocabulary.size, whose)
        for name, why in self.speech.splits.excluded:
            self.problems.record(LEFT_OUT, name, why)

    def build_model(self) -> Transducer:
        size = self.model_config.vocab_size or self.vocabulary.size
        return Transducer(replace(self.model_config, vocab_size=size))

    def initial_weights(self) -> dict[str, StoredTensor]:
        """Return the weights of the run `model.pretrained`, and report missing weights.

        Raises:
            ValueError: If the run has none of this model's weights.
        """
        run = self.model_config.pretrained
        if not run:
            return {}
        weights = dict(open_weights(find_weights(user_path(run))))
        with torch.device("meta"):
            names = list(self.build_model().state_dict())
        missing = [name for name in names if name not in weights]
        if len(missing) == len(names):
            raise ValueError(f"model.pretrained {run} has no weights of this model. Give a run of "
                             "the task 'transducer'.")  # fmt: skip
        if missing:
            self._progress.say(f"model.pretrained {run} lacks these weights, which are "
                               f"initialised randomly: {join_words(missing)}")  # fmt: skip
        return weights

    def train_stream(self, batch_size: int, seed: int) -> BatchStream:
        return self.speech.train_stream(batch_size, seed)

    def dummy_batch(self, examples: int) -> list[SpeechBatch]:
        data = self.data_config
        frames = int(data.max_duration * 1000 / data.features.frame_shift)
        count = max(data.max_frames // frames, 1)
        most_labels = int(data.max_duration * data.max_text_rate)
        labels = max(min(int(data.max_cells // (count * frames)) - 1, most_labels), 1)
        features = np.zeros((count, frames, data.features.mel_bins), np.float32)
        names = [""] * count
        group = pad_batch([*features], [np.ones(labels, int)] * count, names, names, names)
        return [group] * examples

    def loss(self, model: nn.Module, batch: list[SpeechBatch]) -> Loss:
        """Return the weighted sum of the losses; log the unweighted losses and two ratios.

        `non_finite` is the number of utterances without a finite loss, divided by the number of
        those with a finite loss. `padding` is the share of padding in a group's frames,
        averaged over groups. Each group is weighted by its number of utterances with a finite loss.
        """
        losses = []
        for group in batch:
            found = run(model, group)
            self._excluded.append((group.ids, found.excluded))
            self._note(LEFT_OUT, group)
            padding = found.count * (1 - group.frames / group.cells)
            logs = {**found.parts, NON_FINITE: found.excluded.sum(), "padding": padding}
            losses.append(Loss(found.total, found.count, logs, group.frames))
        return add_losses(losses)

    def validation_batches(self) -> LazyBatches:
        return self.speech.validation_batches()

    def score(self, model: Any, batch: SpeechBatch) -> Scores:
        """Return the loss, and the id, reference and hypothesis of each utterance.

        The hypothesis of an unreadable utterance is empty. The loss is summed over utterances with
        a finite loss.
        """
        self._note(UNREADABLE, batch)
        loss = run(model, batch)
        usable = batch.weights > 0
        lengths = torch.where(usable, loss.lengths, 0)
        hypotheses = self.search(model, loss.encoded, lengths)
        texts = [self.vocabulary.decode(best[0].labels) for best in hypotheses]
        sums = {"loss": loss.total, "count": loss.count, NON_FINITE: loss.excluded.sum()}
        sums["unreadable"] = (~usable).sum()
        return Scores(sums, list(zip(batch.ids, batch.texts, texts, strict=True)))

    def summarise(self, sums: Mapping[str, Any], predictions: Sequence[Any]) -> dict[str, float]:
        """Return the loss, the word and character error rates, and the word errors by kind.

        `empty` is the share of empty decoded texts. `non_finite` and `unreadable` are numbers of
        utterances.
        """
        self._note_not_finite()
        answers = list(chain.from_iterable(predictions))
        metrics = {"loss": sums["loss"] / max(sums["count"], 1)} | error_rates(answers)
        metrics |= {name: sums[name] for name in (NON_FINITE, "unreadable")}
        if metrics["empty"] > MOSTLY_EMPTY:
            self._progress.say(
                f"{metrics['empty']:.0%} of the decoded validation texts are empty, because the "
                "model emits only blanks. Empty texts are usual at the start of training. If "
                "later texts are empty too, lower the learning rate, lengthen the warm-up, or "
                "raise model.ctc_weight."
            )
        return metrics

    def _note(self, kind: str, group: SpeechBatch) -> None:
        for name, why in zip(group.ids, group.problems, strict=True):
            if why:
                self.problems.record(kind, name, why)

    def _note_not_finite(self) -> None:
        while self._excluded:
            ids, excluded = self._excluded.popleft()
            if type(excluded) is Tensor:  # tensors have no values while FLOPs are counted
                for number in excluded.nonzero()[:, 0].tolist():
                    why = "the loss was infinite or NaN in one or more steps"
                    self.problems.record(NO_FINITE_LOSS, ids[number], why)

    def baseline(self, limit: int | None = None) -> dict[str, float]:
        texts = self.speech.splits.train.values("text")
        words = Counter(word for text in texts for word in text.split())
        word = words.most_common(1)[0][0]
        maker = self.speech.validation_maker
        batches = self.validation_batches().plans[:limit]
        return error_rates([("", maker.texts[n], word) for numbers in batches for n in numbers])

    def save_assets(self, directory: Path) -> dict[str, Any]:
        speech = self.speech
        fields = write_assets(directory, speech.splits.digest, speech.vocabulary.tokenizer)
        if isinstance(speech.normaliser, Normaliser):
            fields["data.cmvn"] = directory / CMVN_FILE
            speech.normaliser.save(fields["data.cmvn"])
        return fields | {"model.pretrained": None}


def run(model: nn.Module, group: SpeechBatch) -> Any:
    return model(
        group.features, group.feature_lengths, group.targets, group.target_lengths,
        group.weights, group.sizes,
    )  # fmt: skip


def word_errors(references: Sequence[str], hypotheses: Sequence[str]) -> Any:
    """Return jiwer's `WordOutput`. Repeated spaces count as one."""
    return import_jiwer().process_words(single_spaced(references), single_spaced(hypotheses))


def character_errors(references: Sequence[str], hypotheses: Sequence[str]) -> Any:
    return import_jiwer().process_characters(single_spaced(references), single_spaced(hypotheses))


def single_spaced(texts: Sequence[str]) -> list[str]:
    return [" ".join(text.split()) for text in texts]


def count_references(found: Any) -> int:
    """Return the number of words or characters of the references, from jiwer's counts."""
    return found.hits + found.substitutions + found.deletions


def import_jiwer() -> Any:
    return import_extra("jiwer", "speech", "word error rates need jiwer")


def error_rates(answers: Sequence[Answer]) -> dict[str, float]:
    references, hypotheses = ([answer[place] for answer in answers] for place in (1, 2))
    words = word_errors(references, hypotheses)
    count = max(count_references(words), 1)
    return {
        "wer": words.wer,
        "cer": character_errors(references, hypotheses).cer,
        "substitutions": words.substitutions / count,
        "deletions": words.deletions / count,
        "insertions": words.insertions / count,
        "empty": sum(not text.strip() for text in hypotheses) / max(len(hypotheses), 1),
    }


def error_rate_half_width(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Return the half-width of the 95 % confidence interval of a word error rate.

    The interval assumes that utterances are independent. The result is nan for fewer than two
    references with words.
    """
    each = [word_errors([r], [h]) for r, h in zip(references, hypotheses, strict=True)]
    words = np.array([count_references(found) for found in each])
    errors = np.array([f.substitutions + f.deletions + f.insertions for f in each])
    if (words > 0).sum() < 2:
        return math.nan
    residuals = errors - errors.sum() / words.sum() * words
    deviation = math.sqrt((residuals**2).sum() * len(each) / (len(each) - 1))
    return NORMAL * deviation / float(words.sum())


def text_normaliser(name: str) -> tuple[Callable[[str], str], str]:
    """Return a normaliser, and a title with its name and the version of the package transformers.

    `name` is a key of `NORMALISERS`.

    Raises:
        ConfigError: If no normaliser has this name.
    """
    if name not in NORMALISERS:
        raise ConfigError([f"no normaliser {name!r}{nearest(name, list(NORMALISERS))}"])
    kind, arguments, note = NORMALISERS[name]
    module, library = (
        import_extra(each, "hf", f"the normaliser {name} needs the package transformers")
        for each in (WHISPER, "transformers")
    )
    title = f"{name} (transformers {library.__version__}{note})"
    return getattr(module, kind)(*arguments), title


def normalised_rates(
    answers: Sequence[Answer], normalise: Callable[[str], str]
) -> dict[str, float]:
    """Return the word and character error rates of normalised texts.

    "wer_normalised_half_width" is the half-width of the word error rate's 95 % interval.
    """
    references, hypotheses = ([normalise(each[place]) for each in answers] for place in (1, 2))
    return {
        "wer_normalised": word_errors(references, hypotheses).wer,
        "cer_normalised": character_errors(references, hypotheses).cer,
        "wer_normalised_half_width": error_rate_half_width(references, hypotheses),
    }


def figures(task: SpeechRecognition, model: Any) -> Sequence[Figure]:
    from magneto.speech.figures import draw_figures

    return draw_figures(task, model)
