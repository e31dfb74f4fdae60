"""How good transcripts are: word and character error rates, by jiwer.

They are of texts as they are; those of texts in a normaliser's form go beside them, with its name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from magneto.config import ConfigError, nearest
from magneto.files import import_extra

# What a normal value is within of its mean, 95 % of the time, in standard deviations.
NORMAL = 1.959964


@dataclass(frozen=True)
class ErrorCounts:
    """How transcripts differ from references.

    Attributes:
        hits: Units that are right.
        substitutions: Units that are others.
        deletions: Units that are missing.
        insertions: Units too many.
    """

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def units(self) -> int:
        """Units of the references."""
        return self.hits + self.substitutions + self.deletions

    @property
    def rate(self) -> float:
        """Errors per unit of the references: 0.05 is 5 %; above 1 with many insertions."""
        errors = self.substitutions + self.deletions + self.insertions
        return errors / max(self.units, 1)


def word_errors(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorCounts:
    """Count errors of words, as they are written: nothing is normalised but spaces."""
    return _errors(references, hypotheses, "process_words", str.split)


def character_errors(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorCounts:
    """Count errors of characters, single spaces included."""
    return _errors(references, hypotheses, "process_characters", list)


def _errors(
    references: Sequence[str], hypotheses: Sequence[str], name: str, units: Any
) -> ErrorCounts:
    """Count errors; jiwer takes no empty reference, all of whose answer is too many.

    Raises:
        ValueError: If there are not as many of both.
        ModuleNotFoundError: If jiwer is not installed.
    """
    if len(references) != len(hypotheses):
        raise ValueError(f"{len(references)} references and {len(hypotheses)} hypotheses")
    library = import_jiwer()
    pairs = [(spaced(r), spaced(h)) for r, h in zip(references, hypotheses, strict=True)]
    inserted = sum(len(units(h)) for r, h in pairs if not r)
    there = [pair for pair in pairs if pair[0]]
    if not there:
        return ErrorCounts(insertions=inserted)
    found = getattr(library, name)(*map(list, zip(*there, strict=True)))
    return ErrorCounts(
        found.hits, found.substitutions, found.deletions, found.insertions + inserted
    )


def half_width_of_rate(
    references: Sequence[str],
    hypotheses: Sequence[str],
    errors: Callable[[Sequence[str], Sequence[str]], ErrorCounts] = word_errors,
) -> float:
    """Return the half-width of a 95 % confidence interval of an error rate.

    By the variance of a ratio over utterances, which are taken as independent; nan for fewer than
    two with words.

    Args:
        references: What was said, of each utterance.
        hypotheses: What was recognised.
        errors: Counts them: `word_errors` or `character_errors`.
    """
    each = [errors([r], [h]) for r, h in zip(references, hypotheses, strict=True)]
    units = sum(found.units for found in each)
    if sum(found.units > 0 for found in each) < 2:
        return math.nan
    wrong = [found.substitutions + found.deletions + found.insertions for found in each]
    rate = sum(wrong) / units
    square = sum((e - rate * found.units) ** 2 for e, found in zip(wrong, each, strict=True))
    return NORMAL * math.sqrt(square * len(each) / (len(each) - 1)) / units


@dataclass(frozen=True)
class WordRow:
    """What became of one word of the references.

    Attributes:
        word: The word; "" in the row of what was inserted.
        said: How often it is in the references.
        right: How often it was recognised.
        missing: How often it was left out.
        instead: What was written for it, most frequent first, with how often.
    """

    word: str
    said: int
    right: int
    missing: int
    instead: list[tuple[str, int]]


def errors_by_word(references: Sequence[str], hypotheses: Sequence[str]) -> list[WordRow]:
    """Return what became of each word of the references, most errors first; insertions last."""
    library = import_jiwer()
    pairs = [(spaced(r), spaced(h)) for r, h in zip(references, hypotheses, strict=True)]
    inserted = Counter(word for r, h in pairs if not r for word in h.split())
    pairs = [pair for pair in pairs if pair[0]]
    said, right, missing = Counter[str](), Counter[str](), Counter[str]()
    instead: dict[str, Counter[str]] = {}
    found: Any = library.process_words(*map(list, zip(*pairs, strict=True))) if pairs else None
    for row in range(len(pairs)):
        reference, answer = pairs[row][0].split(), pairs[row][1].split()
        said.update(reference)
        for chunk in found.alignments[row]:
            theirs = reference[chunk.ref_start_idx : chunk.ref_end_idx]
            ours = answer[chunk.hyp_start_idx : chunk.hyp_end_idx]
            if chunk.type == "equal":
                right.update(theirs)
            elif chunk.type == "delete":
                missing.update(theirs)
            elif chunk.type == "insert":
                inserted.update(ours)
            else:
                for word, wrong in zip(theirs, ours, strict=True):
                    instead.setdefault(word, Counter())[wrong] += 1
    rows = [
        WordRow(w, n, right[w], missing[w], instead.get(w, Counter()).most_common())
        for w, n in said.items()
    ]
    rows.sort(key=lambda row: (row.right - row.said, row.word))
    return [*rows, WordRow("", 0, 0, 0, inserted.most_common())]


def spaced(text: str) -> str:
    """Return a text with single spaces between words."""
    return " ".join(text.split())


def import_jiwer() -> Any:
    """Import jiwer, or say which extra has it."""
    return import_extra("jiwer", "speech", "word error rates need jiwer")


# Name: class in transformers' copy of Whisper's normalisers (arXiv 2212.04356, appendix C).
NORMALISERS = {"whisper-english": "EnglishTextNormalizer", "whisper-basic": "BasicTextNormalizer"}
MODULE = "transformers.models.whisper.english_normalizer"
# The English one turns British spellings into American ones by a table that is not in transformers.
ARGUMENTS = {"whisper-english": ({},), "whisper-basic": ()}
NOTES = {"whisper-english": ", British spellings left as they are", "whisper-basic": ""}


@dataclass(frozen=True)
class TextNormaliser:
    """What brings texts to one form.

    Attributes:
        name: One of `NORMALISERS`.
        version: Of what, which release.
        normalise: From a text to its form.
    """

    name: str
    version: str
    normalise: Callable[[str], str]

    @property
    def title(self) -> str:
        """Name and version, as they stand beside a score."""
        return f"{self.name} ({self.version}{NOTES[self.name]})"


def text_normaliser(name: str) -> TextNormaliser:
    """Return a normaliser by its name.

    Raises:
        ConfigError: If there is none of this name.
        ModuleNotFoundError: If transformers is not installed.
    """
    if name not in NORMALISERS:
        raise ConfigError([f"no normaliser {name!r}{nearest(name, list(NORMALISERS))}"])
    module = import_extra(MODULE, "hf", f"the normaliser {name} needs transformers")
    library = import_extra("transformers", "hf", f"the normaliser {name} needs transformers")
    normalise = getattr(module, NORMALISERS[name])(*ARGUMENTS[name])
    return TextNormaliser(name, f"transformers {library.__version__}", normalise)


def normalised_rates(
    answers: Sequence[tuple[str, str, str]], normaliser: TextNormaliser
) -> dict[str, float]:
    """Return the error rates of normalised texts."""
    references, hypotheses = (
        [normaliser.normalise(texts[place]) for texts in answers] for place in (1, 2)
    )
    return {
        "wer_normalised": word_errors(references, hypotheses).rate,
        "cer_normalised": character_errors(references, hypotheses).rate,
        "wer_normalised_half_width": half_width_of_rate(references, hypotheses),
    }
