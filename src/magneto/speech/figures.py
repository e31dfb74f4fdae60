"""Figures of speech recognition: spectrogram, alignment, errors by word."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any

import numpy as np
import torch

from magneto.data.stream import to_device
from magneto.figures import as_png, canvas, table
from magneto.functional.transducer import TransducerAlignment, transducer_alignment
from magneto.speech.config import SUBSAMPLING
from magneto.speech.decoding import Hypothesis
from magneto.speech.long_audio import timed_words
from magneto.speech.model import Transducer
from magneto.speech.task import SpeechRecognition, word_errors
from magneto.training.task import Figure

# Validation batches behind the table of errors, and its number of rows.
BATCHES = 16
MOST_WORDS = 30
# Width of figures in inches, and height of the spectrogram with its words, relative to the bins.
WIDTH = 9.0
HEADROOM = 1.18


def recognised_words(
    references: Sequence[str], hypotheses: Sequence[str]
) -> dict[str, Counter[str]]:
    """For each reference word, count the words that were recognised in its place.

    The recognised word is "" for a deletion. The reference word is "" for an insertion.
    """
    found: dict[str, Counter[str]] = defaultdict(Counter)
    errors = word_errors(references, hypotheses)
    texts = zip(errors.references, errors.hypotheses, errors.alignments, strict=True)
    for reference, hypothesis, chunks in texts:
        for chunk in chunks:
            theirs = reference[chunk.ref_start_idx : chunk.ref_end_idx]
            ours = hypothesis[chunk.hyp_start_idx : chunk.hyp_end_idx]
            for word, recognised in zip_longest(theirs, ours, fillvalue=""):
                found[word][recognised] += 1
    return found


@torch.no_grad()
def draw_figures(task: SpeechRecognition, model: Transducer) -> list[Figure]:
    """Return figures of one utterance, and a table of word errors.

    The figures of the utterance are a spectrogram and an alignment. The table covers the first
    `BATCHES` validation batches.
    """
    device = next(model.parameters()).device
    answers: list[tuple[str, str, str]] = []
    figures: list[Figure] = []
    for batch in islice(task.validation_batches(), BATCHES):
        moved = to_device(batch, device)
        answers += task.score(model, moved).predictions
        figures = figures or draw_example(task, model, moved)
    words = recognised_words([r for _, r, _ in answers], [h for _, _, h in answers])
    return [*figures, draw_errors(words, len(answers))]


def draw_example(task: SpeechRecognition, model: Transducer, batch: Any) -> list[Figure]:
    for row, (frames, labels) in enumerate(batch.sizes):
        if not labels or batch.problems[row]:
            continue
        part = slice(row, row + 1)
        features, targets = batch.features[part, :frames], batch.targets[part, :labels]
        encoded, lengths = model.encode(features, batch.feature_lengths[part])
        frames_and_labels = model.joiner(encoded, model.predictor(targets))
        output = model.joiner.output
        alignment = transducer_alignment(
            frames_and_labels[0], frames_and_labels[1], output.weight, output.bias, targets,
            lengths, batch.target_lengths[part],
        )  # fmt: skip
        found = task.search(model, encoded, lengths)[0][0]
        names = batch.ids[row], batch.texts[row]
        return [
            draw_spectrogram(task, *names, features[0].cpu().numpy(), found),
            draw_alignment(task, *names, targets[0].tolist(), alignment),
        ]
    return []


def draw_spectrogram(
    task: SpeechRecognition, id: str, text: str, features: np.ndarray, hypothesis: Hypothesis
) -> Figure:
    shift = task.speech.filter_bank.shift_seconds
    words = timed_words(hypothesis, task.vocabulary, SUBSAMPLING * shift)
    figure, axes = canvas(WIDTH, 3.2)
    seconds, bins = len(features) * shift, features.shape[1]
    axes.imshow(
        features.T, origin="lower", aspect="auto", cmap="magma", interpolation="nearest",
        extent=(0, seconds, 0, bins),
    )  # fmt: skip
    for number, word in enumerate(words):
        axes.axvspan(word.start, word.end, ymin=0.0, ymax=1 / HEADROOM, color="white", alpha=0.12)
        height = bins * (1.03 + 0.08 * (number % 2))
        axes.text((word.start + word.end) / 2, height, word.text, ha="center", va="bottom", size=8)
    axes.set(xlabel="seconds", ylabel="mel bin", ylim=(0, bins * HEADROOM))
    axes.set_yticks(range(0, bins + 1, bins // 4))
    axes.spines["left"].set_bounds(0, bins)
    recognised = task.vocabulary.decode(hypothesis.labels)
    return Figure(
        "spectrogram",
        "Spectrogram and recognised words",
        f"Normalised log-mel features of {id}, with the recognised words at the frames of "
        f"their labels. Reference: “{text}”. Recognised: “{recognised}”.",
        as_png(figure),
    )


def draw_alignment(
    task: SpeechRecognition,
    id: str,
    text: str,
    labels: Sequence[int],
    alignment: TransducerAlignment,
) -> Figure:
    seconds = SUBSAMPLING * task.speech.filter_bank.shift_seconds
    occupancy, frames = alignment.occupancy[0].cpu().numpy(), alignment.frames[0].tolist()
    pieces = task.vocabulary.pieces()
    names = ["start", *(pieces[label].replace(" ", "␣") for label in labels)]
    figure, axes = canvas(WIDTH, min(1.6 + 0.17 * len(names), 9.0))
    shown = axes.imshow(
        occupancy.T, origin="lower", aspect="auto", cmap="Blues", interpolation="nearest",
        vmin=0, vmax=1, extent=(0, len(occupancy) * seconds, -0.5, len(names) - 0.5),
    )  # fmt: skip
    # The best path rises by one in the middle of each label's frame.
    times = np.array([0, *(frame + 0.5 for frame in frames), len(occupancy)]) * seconds
    heights = [*range(len(names)), len(labels)]
    axes.step(times, heights, where="post", color="#c1440e", linewidth=1.2)
    axes.set(xlabel="seconds", ylabel="emitted labels")
    axes.set_yticks(range(len(names)), names, size=7)
    figure.colorbar(shown, ax=axes, label="probability of passing", pad=0.01)
    best, total = float(alignment.score[0]), float(alignment.log_likelihood[0])
    return Figure(
        "alignment",
        "Alignment of labels and frames",
        f"Transducer lattice of {id} with its reference “{text}”. The line is the best path. The "
        "darker a node, the more probable it is that a path passes it. The log-probability is "
        f"{best:.2f} nats for the best path and {total:.2f} nats for all paths together.",
        as_png(figure),
    )


def draw_errors(words: Mapping[str, Counter[str]], utterances: int) -> Figure:
    total = {word: found.total() for word, found in words.items() if word}
    correct = {word: words[word][word] for word in total}
    wrong = sorted((correct[w] - total[w], w) for w in total if correct[w] < total[w])
    lines = [["word", "occurrences", "correct", "deleted", "substituted by"]]
    for _, word in wrong[:MOST_WORDS]:
        others = Counter({w: n for w, n in words[word].items() if w not in (word, "")})
        numbers = map(str, (total[word], correct[word], words[word][""]))
        lines.append([word, *numbers, _list(others)])
    if inserted := words.get(""):
        lines.append(["(inserted)", "", "", "", _list(inserted)])
    if len(lines) == 1:
        lines.append(["no errors", "", "", "", ""])
    return Figure(
        "errors-by-word",
        "Errors by word",
        f"{utterances} validation utterances have {sum(total.values())} words. "
        f"The model recognised {sum(correct.values())} of these words correctly. The references "
        f"have {len(total)} different words. The table lists up to {MOST_WORDS} words with errors, "
        "starting with the word with the most errors. In the last column, counts are in "
        "parentheses.",
        table(lines, right=(1, 2, 3)),
    )


def _list(counts: Counter[str], most: int = 4) -> str:
    shown = ", ".join(f"{word} ({count})" for word, count in counts.most_common(most))
    return f"{shown}, ..." if len(counts) > most else shown
