"""Transcripts as others compare them: in small letters, without punctuation, numbers as figures.

Error rates of normalised texts say nothing without the normaliser's name and version, which go with
them; those of the texts as they are stay the headline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from magneto.config import ConfigError, nearest
from magneto.files import import_extra
from magneto.speech.scores import character_errors, half_width_of_rate, word_errors

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
