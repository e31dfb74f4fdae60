"""The `model` and `data` sections of recipes of speech recognition. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from magneto.config import ConfigError
from magneto.data.sources import check_builtin, parse_source
from magneto.nn.config import TransformerConfig

# Labels written at one frame at most: without a limit a model can write them there for ever; one or
# ten make no difference to a trained one.
SYMBOLS_PER_FRAME = 10
NAMES = ("spoken-digits", "spoken-commands")
# Frames of features to one frame of the encoder: two max-poolings.
SUBSAMPLING = 4


@dataclass(frozen=True, kw_only=True)
class FilterBankConfig:
    """Log-mel filterbank features, as Kaldi computes them.

    Attributes:
        mel_bins: Features of a frame.
        frame_length: Of a window, in milliseconds.
        frame_shift: From one window to the next, in milliseconds.
        low_frequency: Where the lowest filter begins, in Hz.
        high_frequency: Where the highest ends, in Hz; 0 for half the sample rate, and a negative
            number that many below it.
    """

    mel_bins: int = 80
    frame_length: float = 25.0
    frame_shift: float = 10.0
    low_frequency: float = 20.0
    high_frequency: float = 0.0

    def __post_init__(self) -> None:
        wrong = too_small(self, {"mel_bins": 4, "low_frequency": 0})
        if not 1 <= self.frame_shift <= self.frame_length:
            wrong.append("frame_shift must be 1 or more and at most frame_length "
                         f"({self.frame_length} ms), not {self.frame_shift}")  # fmt: skip
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, kw_only=True)
class AugmentationConfig:
    """What is varied of training utterances, anew in each epoch. The defaults are the paper's.

    Attributes:
        frequency_masks: Of SpecAugment (arXiv 1904.08779); 0 for none.
        frequency_width: Widest of them, in bins.
        time_masks: Of SpecAugment, at most; 0 for none.
        time_ratio: Longest of them, as a share of the utterance's frames.
        time_masks_ratio: So many masks a frame, up to `time_masks` (arXiv 1912.05533, p_M); 0 for
            `time_masks` whatever the length.
        time_warp: Frames by which a point of the utterance is moved, at most (ESPnet: 5); 0 for
            none.
        speeds: Of playing, drawn evenly: (0.9, 1.0, 1.1) is usual, and changes the pitch too.
        gain: Louder or softer by at most so many decibels.
        noise: Share of the utterances that white noise is added to.
        noise_snr: Least and greatest ratio of speech to noise, in decibels.
    """

    frequency_masks: int = 2
    frequency_width: int = 27
    time_masks: int = 10
    time_ratio: float = 0.04
    time_masks_ratio: float = 0.0
    time_warp: int = 0
    speeds: tuple[float, ...] = (1.0,)
    gain: float = 0.0
    noise: float = 0.0
    noise_snr: tuple[float, float] = (10.0, 30.0)

    def __post_init__(self) -> None:
        names = ("frequency_masks", "frequency_width", "time_masks", "time_masks_ratio",
                 "time_warp", "gain")  # fmt: skip
        wrong = too_small(self, dict.fromkeys(names, 0))
        wrong += [
            f"{name} must be in [0, 1], not {getattr(self, name)}"
            for name in ("time_ratio", "noise")
            if not 0 <= getattr(self, name) <= 1
        ]
        if not self.speeds or not all(0.5 <= speed <= 2 for speed in self.speeds):
            wrong.append(f"speeds must be one or more numbers in [0.5, 2], not {self.speeds}")
        wrong += _wrong_range("noise_snr", self.noise_snr)
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, kw_only=True)
class SyntheticConfig:
    """The built-in utterances: how many there are and what they are like.

    Attributes:
        train_utterances: Of a training epoch; drawn by the recipe's seed.
        validation_utterances: The same in every run, by other speakers.
        words: Fewest and most of an utterance.
        snr: Least and greatest ratio of signal to noise, in decibels.
    """

    train_utterances: int = 4000
    validation_utterances: int = 200
    words: tuple[int, int] = (1, 5)
    snr: tuple[float, float] = (10.0, 40.0)

    def __post_init__(self) -> None:
        wrong = too_small(self, {"train_utterances": 1, "validation_utterances": 1})
        wrong += _wrong_range("words", self.words) + _wrong_range("snr", self.snr)
        if self.words[0] < 1:
            wrong.append(f"words must be 1 or more, not {self.words[0]}")
        if wrong:
            raise ConfigError(wrong)


def too_small(config: Any, least: Mapping[str, float]) -> list[str]:
    """Return a line for each field that is below its least value."""
    return [
        f"{name} must be {number} or more, not {getattr(config, name)}"
        for name, number in least.items()
        if getattr(config, name) < number
    ]


def _wrong_range(name: str, values: tuple[float, float]) -> list[str]:
    low, high = values
    return [f"{name} must be the least and the greatest, not {low}, {high}"] * (low > high)


@dataclass(frozen=True, kw_only=True)
class SpeechDataConfig:
    """Recordings and their transcripts: the `data` section of a recipe.

    Attributes:
        source: PATH (a .jsonl, .json, .csv or .tsv file of recordings and texts, or a folder of
            these, LibriSpeech's, Common Voice's or Kaldi's folders, tar shards, parquet files),
            hf:NAME[:CONFIG[:SPLIT]], builtin:spoken-digits or builtin:spoken-commands.
        validation_source: Another source to validate on: its validation split if it has one, else
            its test split, else all of it.
        audio_column: Name of the column that has the recordings; null for the usual ones.
        text_column: Likewise, of what is said in them.
        train_splits: Names of the source's splits to train on, as train-clean-100; null for those
            whose names say so.
        validation_splits: To validate on, as dev-clean,dev-other; null for those whose names say
            so.
        validation_fraction: Share of the speakers, or of the utterances, that is held out by the
            hash of the name where there is no validation split.
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
    audio_column: str | None = None
    text_column: str | None = None
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
        wrong = too_small(self, {"sample_rate": 1000, "vocab_size": 1, "block": 1})
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


@dataclass(frozen=True, kw_only=True)
class TransducerConfig(TransformerConfig):
    """A Transformer-Transducer: an encoder over filterbanks, a predictor over labels, a joiner.

    The loss is the transducer's, plus `ctc_weight` times CTC on the encoder, plus `lm_weight` times
    the cross-entropy of the predictor as a language model, and so on: the auxiliary losses of Boyer
    et al. 2021 (arXiv 2201.05420), a weight of 0 for none. All are sums of nats over an utterance,
    but for the divergence, which is a mean over its lattice. The weights that ESPnet documents are
    0.5 (CTC), 0.2 (language model), 0.4 (intermediate) and 0.2 (divergence).

    Attributes:
        mel_bins: Features of a frame, as `data.features.mel_bins`; a multiple of 4.
        vocab_size: Labels, blank included; None for as many as the data's tokenizer has.
        front_channels: Of the first and the second pair of convolutions (ESPnet's VGG: 64, 128).
        predictor: "lstm", or "stateless": an embedding and a convolution over the last labels
            (Ghodsi et al. 2020).
        predictor_width: Of the predictor's embedding and output.
        predictor_layers: Of the LSTM.
        predictor_context: Labels that the stateless predictor sees.
        predictor_dropout: Of the predictor's embedding, and between the layers of the LSTM.
        joint_width: Of the joiner's hidden layer.
        ctc_weight: Of the connectionist temporal classification loss on the encoder's features.
        lm_weight: Of the cross-entropy of the next label on the predictor's output.
        lm_smoothing: Label smoothing of that.
        intermediate_weight: Of the transducer loss on features of `intermediate_layers`, through a
            small network each and with the joiner's output layer and the predictor held fixed.
        intermediate_layers: Layers, from 0 at the bottom.
        kl_weight: Of the symmetric divergence of these layers' posteriors from the last layer's. It
            holds the logits of some frames of the lattice at once, and costs as much time again.
        pretrained: Directory of a run of the same shape to begin with, for example of easier data;
            None to begin anew. Its labels and means are not taken from it: give `data.tokenizer
            RUN/assets/tokenizer` and `data.cmvn RUN/assets/cmvn.json`.

    Raises:
        ConfigError: For impossible values, all at once.
    """

    mel_bins: int = 80
    vocab_size: int | None = None
    front_channels: tuple[int, int] = (64, 128)
    predictor: Literal["lstm", "stateless"] = "lstm"
    predictor_width: int = 512
    predictor_layers: int = 2
    predictor_context: int = 2
    predictor_dropout: float = 0.0
    joint_width: int = 640
    ctc_weight: float = 0.3
    lm_weight: float = 0.3
    lm_smoothing: float = 0.05
    intermediate_weight: float = 0.0
    intermediate_layers: tuple[int, ...] = ()
    kl_weight: float = 0.0
    pretrained: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = ("predictor_width", "predictor_layers", "predictor_context", "joint_width")
        weights = ("ctc_weight", "lm_weight", "intermediate_weight", "kl_weight")
        least = {"mel_bins": 4} | dict.fromkeys(sizes, 1) | dict.fromkeys(weights, 0)
        wrong = too_small(self, least)
        wrong += [
            f"{name} must be at least 0 and below 1, not {getattr(self, name)}"
            for name in ("lm_smoothing", "predictor_dropout")
            if not 0 <= getattr(self, name) < 1
        ]
        if self.mel_bins % SUBSAMPLING:
            wrong.append(f"mel_bins ({self.mel_bins}) must be a multiple of {SUBSAMPLING}")
        if min(self.front_channels) < 1:
            wrong.append(f"front_channels must be 1 or more, not {self.front_channels}")
        wrong += self._wrong_layers()
        if self.encoder_layers is not None:
            wrong.append("a transducer has model.layers, and no encoder_layers or decoder_layers")
        if wrong:
            raise ConfigError(wrong)

    def _wrong_layers(self) -> list[str]:
        last = self.layers - 1
        outside = [layer for layer in self.intermediate_layers if not 0 <= layer < last]
        wrong = [
            f"intermediate_layers must be below the last layer, {last}, not {layer}"
            for layer in outside
        ]
        if (self.intermediate_weight or self.kl_weight) and not self.intermediate_layers:
            wrong.append("intermediate_weight and kl_weight need intermediate_layers")
        return wrong
