"""Model and data configurations of speech recognition (no torch import)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Interval

from magneto.config import LARGEST
from magneto.data.sources import builtin_mistakes
from magneto.fields import (
    Dropout,
    Free,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    Share,
    configuration,
    rule,
)
from magneto.nn.config import Layers, TransformerConfig, Width

# Blank label. A tokenizer's token n is label n + 1.
BLANK = 0
# Maximum number of labels per frame. Without a limit a model may never leave a frame; for a trained
# model one or ten make no difference.
SYMBOLS_PER_FRAME = 10
NAMES = ("spoken-digits", "spoken-commands")
# Feature frames per encoder frame, by two max-poolings.
SUBSAMPLING = 4


@configuration
class FilterBankConfig:
    """Log-mel filterbank features as in Kaldi."""

    mel_bins: Annotated[int, Interval(ge=4, lt=LARGEST)] = 80
    """Number of mel filters, and thus of features per frame."""
    frame_length: Annotated[float, Interval(ge=1)] = 25.0
    """Frame length in milliseconds."""
    frame_shift: Annotated[float, Interval(ge=1)] = 10.0
    """Frame shift in milliseconds."""
    low_frequency: NonNegativeFloat = 20.0
    """Lower edge of the lowest filter in Hz."""
    high_frequency: float = 0.0
    """Upper edge of the highest filter in Hz. A value of 0 or less is added to half the sample
    rate."""

    @rule
    def _windows_overlap(self) -> Iterator[str]:
        if self.frame_shift > self.frame_length:
            yield (f"frame_shift must be 1 or more and at most frame_length "
                   f"({self.frame_length} ms), not {self.frame_shift}")  # fmt: skip


@configuration
class AugmentationConfig:
    """Data augmentation, sampled anew in each epoch.

    The defaults are those of the paper (arXiv 2210.06423).
    """

    frequency_masks: NonNegativeInt = 2
    """Number of SpecAugment's frequency masks (arXiv 1904.08779); 0 for none."""
    frequency_width: NonNegativeInt = 27
    """Maximum width of a frequency mask in bins."""
    time_masks: NonNegativeInt = 10
    """Maximum number of SpecAugment's time masks; 0 for none."""
    time_ratio: Probability = 0.04
    """Maximum length of a time mask as a share of the utterance's frames."""
    time_masks_ratio: NonNegativeFloat = 0.0
    """Number of time masks per frame (p_M in arXiv 1912.05533), up to `time_masks` masks per
    utterance. If `time_masks_ratio` is 0, every utterance has `time_masks` masks."""
    time_warp: NonNegativeInt = 0
    """Maximum shift of SpecAugment's time warp in frames (5 in ESPnet); 0 for none."""
    speeds: tuple[Annotated[float, Interval(ge=0.5, le=2)], ...] = (1.0,)
    """Factors of speed perturbation, usually (0.9, 1.0, 1.1). In each epoch, each utterance gets
    one of the factors at random. Speed perturbation also changes the pitch."""
    gain: NonNegativeFloat = 0.0
    """Maximum change of loudness in decibels."""
    noise: Probability = 0.0
    """Probability of adding white noise to an utterance."""
    noise_snr: tuple[float, float] = (10.0, 30.0)
    """Minimum and maximum signal-to-noise ratio in decibels."""

    @rule
    def _ranges_rise(self) -> Iterator[str]:
        yield from falling("noise_snr", self.noise_snr)
        if not self.speeds:
            yield "speeds must have at least one number"


@configuration
class SyntheticConfig:
    """Synthetic utterances of the built-in data sets."""

    train_utterances: PositiveInt = 4000
    """Number of training utterances. The recipe's seed determines the utterances."""
    validation_utterances: PositiveInt = 200
    """Number of validation utterances. The validation utterances are the same in every run. The
    training set and the validation set have different speakers."""
    words: tuple[PositiveInt, PositiveInt] = (1, 5)
    """Minimum and maximum number of words per utterance."""
    snr: tuple[float, float] = (10.0, 40.0)
    """Minimum and maximum signal-to-noise ratio in decibels."""

    @rule
    def _ranges_rise(self) -> Iterator[str]:
        yield from falling("words", self.words)
        yield from falling("snr", self.snr)


def falling(name: str, values: tuple[float, float]) -> Iterator[str]:
    low, high = values
    if low > high:
        yield f"{name} must be a minimum and a maximum, in this order, not {low}, {high}"


@configuration
class SpeechDataConfig:
    """Data section of speech recognition."""

    source: str = "builtin:spoken-digits"
    """Source of the recordings: PATH, hf:NAME[:CONFIG[:SPLIT]], builtin:spoken-digits or
    builtin:spoken-commands. A path is a table of recordings and texts (.jsonl, .json, .csv or
    .tsv), or a folder. A folder contains tables, tar shards or parquet files, or has the layout of
    LibriSpeech, Common Voice or Kaldi."""
    validation_source: str | None = None
    """Separate source of validation utterances. From `validation_source`, Magneto reads the
    validation split, else the test split, else the training split."""
    audio_column: str | None = None
    """Column of the recordings; null looks for a column with a usual name."""
    text_column: str | None = None
    """Column of the transcripts; null looks for a column with a usual name."""
    train_splits: tuple[str, ...] | None = None
    """Training splits of the source, such as train-clean-100; null recognises them by name."""
    validation_splits: tuple[str, ...] | None = None
    """Validation splits, such as dev-clean,dev-other; null recognises them by name."""
    validation_fraction: Share = 0.05
    """Share of speakers or utterances used for validation if the source has no validation split. A
    hash of the speaker or of the utterance's id selects the validation utterances."""
    hold_out: Literal["speaker", "utterance"] = "speaker"
    """Unit of the validation split: "speaker" or "utterance". If fewer than two speakers are known,
    single utterances are held out."""
    validation_limit: PositiveInt | None = None
    """Maximum number of validation utterances, chosen by the hash of their ids; null for all."""
    text_case: Literal["keep", "lower", "upper"] = "keep"
    """Case of the transcripts: unchanged, lower or upper. LibriSpeech's transcripts are upper
    case."""
    sample_rate: Annotated[int, Interval(ge=1000, lt=LARGEST)] = 16000
    """Sample rate in Hz. Recordings with another sample rate are resampled."""
    features: FilterBankConfig = FilterBankConfig()
    """Filterbank features."""
    cmvn: str = "global"
    """Mean and variance normalisation of the features: "global" (over the training split),
    "utterance" (over each utterance), "none", or the path of a run's cmvn.json."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """Data augmentation in training."""
    cached: bool = False
    """Compute features once and cache the features on disk. Speed perturbation, random gain and
    added noise do not work with cached features."""
    tokenizer: str = "sentencepiece"
    """Tokenizer: "characters", "bpe" or "sentencepiece" (trained on the training transcripts),
    "bytes", or the path of a tokenizer."""
    vocab_size: PositiveInt = 5000
    """Vocabulary size of a "bpe" or "sentencepiece" tokenizer (5000 in the paper)."""
    max_duration: Annotated[float, Interval(gt=0, le=86400)] = 30.0
    """Maximum duration of a training utterance in seconds; longer utterances are left out."""
    max_text_rate: PositiveFloat = 60.0
    """Maximum number of characters per second. Training leaves out utterances above this rate,
    because their transcripts are probably wrong."""
    max_frames: PositiveInt = 20_000
    """Maximum number of frames of a group of utterances, padding included. `training.batch_size`
    counts groups."""
    max_cells: PositiveInt = 1_000_000
    """Maximum size of a group's lattice: padded frames x (tokens of the longest transcript + 1).
    The size of the lattice determines the memory of the transducer loss."""
    block: PositiveInt = 20_000
    """Utterances per block. Training shuffles the utterances, then sorts each block by length."""
    synthetic: SyntheticConfig = SyntheticConfig()
    """Built-in synthetic utterances."""

    @rule
    def _groups_fit_the_longest(self) -> Iterator[str]:
        longest = int(self.max_duration * 1000 / self.features.frame_shift)
        longest = int(longest / min(self.augmentation.speeds))
        if self.max_frames < longest:
            yield (f"max_frames ({self.max_frames}) must be {longest} or more, to fit "
                   "an utterance of max_duration")  # fmt: skip

    @rule
    def _filters_fit(self) -> Iterator[str]:
        low, high = self.mel_range
        if not low < high <= self.sample_rate / 2:
            yield (f"features: the lower edge of the filters ({low} Hz) must be below the upper "
                   f"edge ({high} Hz). The upper edge must be at most half the sample rate "
                   f"({self.sample_rate / 2} Hz)")  # fmt: skip

    @rule
    def _cached_features_are_constant(self) -> Iterator[str]:
        varied = (self.augmentation.gain, self.augmentation.noise, self.augmentation.speeds != (1,))
        if self.cached and any(varied):
            yield ("cached does not work with augmentation.speeds, augmentation.gain or "
                   "augmentation.noise. Turn off the cache or the augmentation.")  # fmt: skip

    @rule
    def _builtin_exists(self) -> Iterator[str]:
        yield from builtin_mistakes(self.source, NAMES, "speech")

    @property
    def mel_range(self) -> tuple[float, float]:
        """Lower and upper edge of the filters in Hz."""
        high = self.features.high_frequency
        return self.features.low_frequency, high if high > 0 else self.sample_rate / 2 + high


@configuration
class TransducerConfig(TransformerConfig):
    """Configuration of a Transformer-Transducer.

    The loss is the transducer loss plus weighted auxiliary losses (Boyer et al. 2021, arXiv
    2201.05420). ESPnet's weights are 0.5 (CTC), 0.2 (language model), 0.4 (intermediate) and 0.2
    (divergence). A weight of 0 disables an auxiliary loss. For each utterance, the divergence is a
    mean over frames and labels, and every other loss is a sum. All losses are in nats.
    """

    mel_bins: Annotated[int, Interval(ge=4, lt=LARGEST)] = 80
    """Number of features per frame, a multiple of 4. `model.mel_bins` must equal
    `data.features.mel_bins`."""
    vocab_size: PositiveInt | None = None
    """Number of labels, including blank; null takes it from the data's tokenizer."""
    front_channels: tuple[PositiveInt, PositiveInt] = (64, 128)
    """Channels of the front-end's first and second pair of convolutions (64 and 128 in ESPnet's
    VGG)."""
    predictor: Literal["lstm", "stateless"] = "lstm"
    """Predictor: "lstm" (embedding and LSTM) or "stateless" (embedding and a convolution over the
    last two labels, Ghodsi et al. 2020)."""
    predictor_width: Width = 512
    """Width of the predictor's embedding and output."""
    predictor_layers: Layers = 2
    """Layers of the LSTM."""
    predictor_dropout: Dropout = 0.0
    """Dropout of the predictor's embedding, and between the layers of the LSTM."""
    joint_width: Width = 640
    """Width of the joiner's hidden layer."""
    ctc_weight: NonNegativeFloat = 0.3
    """Weight of the connectionist temporal classification (CTC) loss of the encoder."""
    lm_weight: NonNegativeFloat = 0.3
    """Weight of the language model loss, the cross-entropy of the predictor."""
    lm_smoothing: Dropout = 0.05
    """Label smoothing of the language model loss."""
    intermediate_weight: NonNegativeFloat = 0.0
    """Weight of the transducer loss of `intermediate_layers`. A small network connects each
    intermediate layer to the joiner. The intermediate loss trains neither the predictor nor the
    output layer."""
    intermediate_layers: tuple[NonNegativeInt, ...] = ()
    """Indices of the encoder layers with an intermediate loss; the bottom layer is 0."""
    kl_weight: NonNegativeFloat = 0.0
    """Weight of the symmetric Kullback-Leibler divergence between the posteriors of intermediate
    layers and of the top layer. A weight above 0 doubles the time that the loss takes."""
    pretrained: Free[str | None] = None
    """Directory RUN of a run whose weights initialise the model; null trains from scratch. The
    shapes of the new model and of the run's model must be equal. To keep the run's labels and
    normalisation, set `data.tokenizer` to RUN/assets/tokenizer and `data.cmvn` to
    RUN/assets/cmvn.json."""

    @rule
    def _bins_are_pooled_twice(self) -> Iterator[str]:
        if self.mel_bins % SUBSAMPLING:
            yield f"mel_bins ({self.mel_bins}) must be a multiple of {SUBSAMPLING}"

    @rule
    def _has_one_stack(self) -> Iterator[str]:
        if self.encoder_layers is not None:
            yield "encoder_layers does not apply to a transducer. Give model.layers."

    @rule
    def _intermediate_layers_are_below(self) -> Iterator[str]:
        last = self.layers - 1
        for layer in self.intermediate_layers:
            if layer >= last:
                yield f"intermediate_layers must be below the last layer ({last}), not {layer}"
        if (self.intermediate_weight or self.kl_weight) and not self.intermediate_layers:
            yield "intermediate_weight and kl_weight need intermediate_layers"
