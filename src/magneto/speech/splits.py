"""The training and the validation split of a source; what is left out of training, and why.

Nothing is ever left out of validation: what can't be read counts there as not recognised.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from magneto.config import nearest
from magneto.data.cache import content_digest
from magneto.data.counts import EMPTY, Counts
from magneto.data.sources import SPLITS
from magneto.progress import SILENT, Progress
from magneto.speech.audio import NO_FRAMES
from magneto.speech.config import SpeechDataConfig
from magneto.speech.headers import measure
from magneto.speech.sources import SpeechSource, open_speech
from magneto.speech.utterances import Row, Utterances

# What is counted of a split.
READ, KEPT = "read", "utterances"
SAME_ID = "renamed, whose id was there already"
TOO_LONG = "too long"
TOO_MUCH_TEXT = "with more text than the time allows"
BEYOND_LIMIT = "beyond the limit"
ALSO_VALIDATED = "left out of training, as they are validated on"
# In the order in which a source to validate on is looked through.
VALIDATED = ("validation", "test", "train")


@dataclass(frozen=True)
class SpeechSplits:
    """What a recipe trains and validates on.

    Attributes:
        train: Training utterances, without those that headers and transcripts show to be wrong.
        validation: Validation utterances, all of them.
        counts: What was met in each split, by its name.
        excluded: Why which utterance is left out of training, by id.
    """

    train: Utterances
    validation: Utterances
    counts: dict[str, Counts]
    excluded: dict[str, str]

    @cached_property
    def digest(self) -> str:
        """A name for the content of both."""
        return content_digest(self.train.digest.encode(), self.validation.digest.encode())

    @property
    def recordings_digest(self) -> str:
        """A name for the sound of some recordings of both."""
        digests = self.train.recordings_digest, self.validation.recordings_digest
        return content_digest(*(digest.encode() for digest in digests))

    def describe(self, source: str) -> list[str]:
        """Say in lines what there is and what was left out; nothing of a split that has nothing."""
        splits = {"train": self.train, "validation": self.validation}
        return [
            f"{source}, {name}: {self.counts[name].describe(KEPT, READ)}, "
            f"{split.durations.sum() / 3600:.2f} hours"
            for name, split in splits.items()
            if self.counts[name][READ]
        ]


def load_speech(config: SpeechDataConfig, seed: int, progress: Progress = SILENT) -> SpeechSplits:
    """Find the utterances of a source and divide them.

    Args:
        config: Of the data. Where both its sources are one, all of it is to measure on.
        seed: Of built-in training sets.
        progress: Shows that headers are read, which is done once.

    Raises:
        FileNotFoundError: If there is no such source.
        ValueError: If a split is not there, or has no utterances.
    """
    counts = {"train": Counts(), "validation": Counts()}
    source = open_speech(config.source, config, seed)
    train: list[Row] = []
    if config.validation_source != config.source:
        names = config.train_splits or _named(source, "train")
        train = _rows(source, names, config, counts["train"])
    if config.validation_source is not None:
        other = open_speech(config.validation_source, config, seed)
        names = config.validation_splits or _first(other)
        validation = _rows(other, names, config, counts["validation"])
    else:
        other, names = source, config.validation_splits or _named(source, "validation")
        validation = _rows(other, names, config, counts["validation"])
        if not names:
            train, validation = hold_out(train, config)
            counts["train"][READ] -= len(validation)
            counts["validation"][READ] = len(validation)
    validation = _limited(validation, config, counts["validation"])
    rate = config.sample_rate
    measured = measure(train, rate, progress)
    kept = measure(validation, rate, progress)
    fit, excluded = _fit_to_train(measured, kept, config, counts["train"])
    counts["validation"][KEPT] = len(kept)
    counts["validation"].update(problem for problem in kept.problems if problem)
    _check(config, fit, kept, counts)
    return SpeechSplits(fit, kept, counts, excluded)


def _check(
    config: SpeechDataConfig, train: Utterances, validation: Utterances, counts: dict[str, Counts]
) -> None:
    """Raise ValueError if a split that is needed has no utterances."""
    wanted = {"validation": validation}
    if config.validation_source != config.source:
        wanted["train"] = train
    for name, split in wanted.items():
        if not len(split):
            source = config.validation_source if name == "validation" else None
            raise ValueError(f"{source or config.source} has no {name} utterances: "
                             f"{counts[name].describe(KEPT, READ)}")  # fmt: skip


def _named(source: SpeechSource, wanted: str) -> list[str]:
    """Return the names of a source's splits for "train", "validation" or "test".

    A single split is for training, and so are those whose names say nothing if none says "train".
    """
    kinds = {name: split_of(name) for name in source.splits}
    if len(kinds) == 1 or (wanted == "train" and wanted not in kinds.values()):
        return [name for name, kind in kinds.items() if wanted == "train" and _free(kinds, kind)]
    return [name for name, kind in kinds.items() if kind == wanted]


def _free(kinds: dict[str, str], kind: str) -> bool:
    return kind == "" or len(kinds) == 1


def split_of(name: str) -> str:
    """Return "train", "validation" or "test" for dev-clean or data/dev; "" if a name says none."""
    words = re.split(r"[-_./]", name.lower())
    return next((SPLITS[word] for word in words if word in SPLITS), "")


def _first(source: SpeechSource) -> list[str]:
    """Return the validation splits of a source, else its test splits, else all it has."""
    return next((names for kind in VALIDATED if (names := _named(source, kind))), [])


def _rows(
    source: SpeechSource, names: Sequence[str], config: SpeechDataConfig, counts: Counts
) -> list[Row]:
    """Return the rows of splits, with transcripts in the wanted case and ids of a kind."""
    change: Callable[[str], str] = {"keep": str, "lower": str.lower, "upper": str.upper}[
        config.text_case
    ]
    found: dict[str, Row] = {}
    same: dict[str, int] = {}
    for name in names:
        if name not in source.splits:
            there = ", ".join(source.splits)
            raise ValueError(f"no split {name!r}{nearest(name, source.splits)} (there is {there})")
        for row in source.rows(name, counts):
            counts[READ] += 1
            id = row.id
            while id in found:
                same[row.id] = same.get(row.id, 1) + 1
                id = f"{row.id}+{same[row.id]}"
            counts[SAME_ID] += id != row.id
            found[id] = replace(row, id=id, text=" ".join(change(row.text).split()))
    return list(found.values())


def hold_out(rows: Sequence[Row], config: SpeechDataConfig) -> tuple[list[Row], list[Row]]:
    """Divide rows in training and validation, by the hash of the speaker or of the id.

    Of speakers as many are held out as have the wanted share of the utterances, at least one and
    never all; where no speaker is known, or one only, utterances are.
    """
    by_speaker = config.hold_out == "speaker" and len({row.speaker for row in rows}) > 1
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.speaker if by_speaker else row.id, []).append(row)
    wanted = config.validation_fraction * len(rows)
    held: set[str] = set()
    count = 0
    for name in sorted(groups, key=_hash)[:-1]:
        if count >= wanted:
            break
        held.add(name)
        count += len(groups[name])
    parts: tuple[list[Row], list[Row]] = ([], [])
    for row in rows:
        parts[(row.speaker if by_speaker else row.id) in held].append(row)
    return parts


def _limited(rows: list[Row], config: SpeechDataConfig, counts: Counts) -> list[Row]:
    limit = config.validation_limit
    if limit is None or len(rows) <= limit:
        return rows
    counts[BEYOND_LIMIT] = len(rows) - limit
    chosen = {row.id for row in sorted(rows, key=lambda row: _hash(row.id))[:limit]}
    return [row for row in rows if row.id in chosen]


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()


def place(row: Row) -> str:
    """Return where a recording lies: its file and the stretch of it."""
    return repr((row.recording.file(), row.recording.state()))


def _fit_to_train(
    split: Utterances, validation: Utterances, config: SpeechDataConfig, counts: Counts
) -> tuple[Utterances, dict[str, str]]:
    """Leave out what can't be trained on, and what is validated on; return why, by id."""
    excluded = {}
    kept = []
    validated = {place(row) for row in validation.rows}
    for number, row in enumerate(split.rows):
        why = split.problems[number] or _misfit(row.text, float(split.durations[number]), config)
        if not why and place(row) in validated:
            why = ALSO_VALIDATED
        if why:
            excluded[row.id] = why
            counts[why] += 1
        else:
            kept.append(number)
    counts[KEPT] = len(kept)
    return split.chosen(kept), excluded


def _misfit(text: str, seconds: float, config: SpeechDataConfig) -> str:
    """Return why an utterance is not trained on, though its header is in order; "" if it is."""
    if not text:
        return EMPTY
    if seconds > config.max_duration:
        return TOO_LONG
    if seconds * 1000 < config.features.frame_length:
        return NO_FRAMES
    return TOO_MUCH_TEXT if len(text) > config.max_text_rate * seconds else ""
