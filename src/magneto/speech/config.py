"""The `data` section of recipes of speech recognition. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from magneto.config import ConfigError
from magneto.data.sources import check_builtin, parse_source
from magneto.speech.data_config import AugmentationConfig, FilterBankConfig, SyntheticConfig

# Labels written at one frame at most: without a limit a model can write them there for ever; one or
# ten make no difference to a trained one.
SYMBOLS_PER_FRAME = 10
NAMES = ("spoken-digits", "spoken-commands")


@dataclass(frozen=True, kw_only=True)
class SpeechDataConfig:
    """Recordings and their transcripts: the `data` section of a recipe.

    Attributes:
        source: PATH (LibriSpeech's folders, Common Voice's, Kaldi's, or a .tsv, .csv or .jsonl
            manifest), hf:NAME[:CONFIG[:SPLIT]], builtin:spoken-digits or builtin:spoken-commands.
        validation_source: Another source to validate on: its validation split if it has one, else
            its test split, else all of it.
        train_splits: Names of the source's splits to train on, as train-clean-100; null for those
            whose names say so.
        validation_splits: To validate on, as dev-clean,dev-other; null for those whose names say
            so.
        validation_fraction: Share of the utterances that is held out where there is no validation
            split.
        hold_out: Whether whole speakers are held out (where they are known) or utterances.
        validation_limit: Utterances to validate on, at most; drawn by the hash of their ids.
        text_case: What becomes of transcripts: LibriSpeech's are in capitals.
        sample_rate: In Hz; recordings with another are resampled.
        features: What a model sees of the sound.
        cmvn: Normalisation of mean and variance of each feature: "global" (over the training
            split), "utterance", "none", or the path of a run's cmvn.json.
        augmentation: What is varied in training.
        cached: Whether features are computed once and kept on the disk; then without speeds, gain
            and noise.
        tokenizer: "characters", "bpe" or "sentencepiece" (learnt from the training transcripts),
            "bytes", or the path of a tokenizer.
        vocab_size: Of a "bpe" or "sentencepiece" tokenizer (5000 in the paper's table).
        max_duration: Longest utterance that is trained on, in seconds.
        max_text_rate: Most characters a second of what is trained on: a transcript that nobody can
            speak in the time is a wrong one.
        max_frames: Largest padded size of a group of utterances of like length: its utterances
            times the longest's frames. `training.batch_size` counts groups.
        max_cells: Likewise, times the longest's tokens: what the transducer loss goes through.
        block: Utterances that are sorted by length at a time.
        synthetic: What built-in utterances are like.

    Raises:
        ConfigError: For impossible values, all at once.
    """

    source: str = "builtin:spoken-digits"
    validation_source: str | None = None
    train_splits: tuple[str, ...] | None = None
    validation_splits: tuple[str, ...] | None = None
    validation_fraction: float = 0.05
    hold_out: Literal["speaker", "utterance"] = "speaker"
    validation_limit: int | None = None
    text_case: Literal["keep", "lower", "upper"] = "keep"
    sample_rate: int = 16000
    features: FilterBankConfig = field(default_factory=FilterBankConfig)
    cmvn: str = "global"
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    cached: bool = False
    tokenizer: str = "sentencepiece"
    vocab_size: int = 5000
    max_duration: float = 30.0
    max_text_rate: float = 60.0
    max_frames: int = 20_000
    max_cells: int = 1_000_000
    block: int = 20_000
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)

    def __post_init__(self) -> None:
        least = {"sample_rate": 1000, "vocab_size": 1, "block": 1}
        wrong = [
            f"{name} must be {number} or more, not {getattr(self, name)}"
            for name, number in least.items()
            if getattr(self, name) < number
        ]
        wrong += [
            f"{name} must be above 0, not {getattr(self, name)}"
            for name in ("max_duration", "max_text_rate", "max_cells")
            if getattr(self, name) <= 0
        ]
        if not 0 < self.validation_fraction < 1:
            wrong.append(f"validation_fraction must be in (0, 1), not {self.validation_fraction}")
        if self.validation_limit is not None and self.validation_limit < 1:
            wrong.append(f"validation_limit must be 1 or more, not {self.validation_limit}")
        longest = int(self.max_duration * 1000 / self.features.frame_shift)
        longest = int(longest / min(self.augmentation.speeds))
        if self.max_frames < longest:
            wrong.append(f"max_frames ({self.max_frames}) must hold the longest utterance: "
                         f"{longest} frames by max_duration")  # fmt: skip
        low, high = self.mel_range
        if not low < high <= self.sample_rate / 2:
            wrong.append(f"features: filters from {low} to {high} Hz don't fit below half the "
                         f"sample rate ({self.sample_rate / 2} Hz)")  # fmt: skip
        varied = (self.augmentation.gain, self.augmentation.noise, self.augmentation.speeds != (1,))
        if self.cached and any(varied):
            wrong.append("cached features can't vary: leave out augmentation's speeds, gain and "
                         "noise, or cached")  # fmt: skip
        if self.source.startswith("builtin:"):
            check_builtin(parse_source(self.source), NAMES, "speech")
        if wrong:
            raise ConfigError(wrong)

    @property
    def mel_range(self) -> tuple[float, float]:
        """Where the filters begin and end, in Hz."""
        high = self.features.high_frequency
        return self.features.low_frequency, high if high > 0 else self.sample_rate / 2 + high
