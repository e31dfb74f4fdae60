"""The `model` and `data` sections of recipes of speech recognition. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from annotated_types import Interval

from magneto.config import LARGEST
from magneto.data.sources import wrong_builtin
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

# The label that says nothing; a tokenizer's token n is label n + 1, so that any tokenizer will do.
BLANK = 0
# Labels written at one frame at most: without a limit a model can write them there for ever; one or
# ten make no difference to a trained one.
SYMBOLS_PER_FRAME = 10
NAMES = ("spoken-digits", "spoken-commands")
# Frames of features to one frame of the encoder: two max-poolings.
SUBSAMPLING = 4


@configuration
class FilterBankConfig:
    """Log-mel filterbank features, as Kaldi computes them."""

    mel_bins: Annotated[int, Interval(ge=4, lt=LARGEST)] = 80
    """Features of a frame."""
    frame_length: Annotated[float, Interval(ge=1)] = 25.0
    """Of a window, in milliseconds."""
    frame_shift: Annotated[float, Interval(ge=1)] = 10.0
    """From one window to the next, in milliseconds."""
    low_frequency: NonNegativeFloat = 20.0
    """Where the lowest filter begins, in Hz."""
    high_frequency: float = 0.0
    """Where the highest ends, in Hz; 0 for half the sample rate, and a negative number that many
    below it."""

    @rule
    def _windows_overlap(self) -> Iterator[str]:
        if self.frame_shift > self.frame_length:
            yield (f"frame_shift must be 1 or more and at most frame_length "
                   f"({self.frame_length} ms), not {self.frame_shift}")  # fmt: skip


@configuration
class AugmentationConfig:
    """What is varied of training utterances, anew in each epoch. The defaults are the paper's."""

    frequency_masks: NonNegativeInt = 2
    """Of SpecAugment (arXiv 1904.08779); 0 for none."""
    frequency_width: NonNegativeInt = 27
    """Widest of them, in bins."""
    time_masks: NonNegativeInt = 10
    """Of SpecAugment, at most; 0 for none."""
    time_ratio: Probability = 0.04
    """Longest of them, as a share of the utterance's frames."""
    time_masks_ratio: NonNegativeFloat = 0.0
    """So many masks a frame, up to `time_masks` (arXiv 1912.05533, p_M); 0 for `time_masks`
    whatever the length."""
    time_warp: NonNegativeInt = 0
    """Frames by which a point of the utterance is moved, at most (ESPnet: 5); 0 for none."""
    speeds: tuple[Annotated[float, Interval(ge=0.5, le=2)], ...] = (1.0,)
    """Of playing, drawn evenly: (0.9, 1.0, 1.1) is usual, and changes the pitch too."""
    gain: NonNegativeFloat = 0.0
    """Louder or softer by at most so many decibels."""
    noise: Probability = 0.0
    """Share of the utterances that white noise is added to."""
    noise_snr: tuple[float, float] = (10.0, 30.0)
    """Least and greatest ratio of speech to noise, in decibels."""

    @rule
    def _ranges_rise(self) -> Iterator[str]:
        yield from falling("noise_snr", self.noise_snr)
        if not self.speeds:
            yield "speeds must be one number or more"


@configuration
class SyntheticConfig:
    """The built-in utterances: how many there are and what they are like."""

    train_utterances: PositiveInt = 4000
    """Of a training epoch; drawn by the recipe's seed."""
    validation_utterances: PositiveInt = 200
    """The same in every run, by other speakers."""
    words: tuple[PositiveInt, PositiveInt] = (1, 5)
    """Fewest and most of an utterance."""
    snr: tuple[float, float] = (10.0, 40.0)
    """Least and greatest ratio of signal to noise, in decibels."""

    @rule
    def _ranges_rise(self) -> Iterator[str]:
        yield from falling("words", self.words)
        yield from falling("snr", self.snr)


def falling(name: str, values: tuple[float, float]) -> Iterator[str]:
    """Yield a line for a range that does not begin with its least value."""
    low, high = values
    if low > high:
        yield f"{name} must be the least and the greatest, not {low}, {high}"


@configuration
class SpeechDataConfig:
    """Recordings and their transcripts: the `data` section of a recipe."""

    source: str = "builtin:spoken-digits"
    """PATH (a .jsonl, .json, .csv or .tsv file of recordings and texts, or a folder of these,
    LibriSpeech's, Common Voice's or Kaldi's folders, tar shards, parquet files),
    hf:NAME[:CONFIG[:SPLIT]], builtin:spoken-digits or builtin:spoken-commands."""
    validation_source: str | None = None
    """Another source to validate on: its validation split if it has one, else its test split, else
    all of it."""
    audio_column: str | None = None
    """Name of the column that has the recordings; null for the usual ones."""
    text_column: str | None = None
    """Likewise, of what is said in them."""
    train_splits: tuple[str, ...] | None = None
    """Names of the source's splits to train on, as train-clean-100; null for those whose names say
    so."""
    validation_splits: tuple[str, ...] | None = None
    """To validate on, as dev-clean,dev-other; null for those whose names say so."""
    validation_fraction: Share = 0.05
    """Share of the speakers, or of the utterances, that is held out by the hash of the name where
    there is no validation split."""
    hold_out: Literal["speaker", "utterance"] = "speaker"
    """Whether whole speakers are held out (where they are known) or utterances."""
    validation_limit: PositiveInt | None = None
    """Utterances to validate on, at most; drawn by the hash of their ids."""
    text_case: Literal["keep", "lower", "upper"] = "keep"
    """What becomes of transcripts: LibriSpeech's are in capitals."""
    sample_rate: Annotated[int, Interval(ge=1000, lt=LARGEST)] = 16000
    """In Hz; recordings with another are resampled."""
    features: FilterBankConfig = FilterBankConfig()
    """What a model sees of the sound."""
    cmvn: str = "global"
    """Normalisation of mean and variance of each feature: "global" (over the training split),
    "utterance", "none", or the path of a run's cmvn.json."""
    augmentation: AugmentationConfig = AugmentationConfig()
    """What is varied in training."""
    cached: bool = False
    """Whether features are computed once and kept on the disk; then without speeds, gain and
    noise."""
    tokenizer: str = "sentencepiece"
    """"characters", "bpe" or "sentencepiece" (learnt from the training transcripts), "bytes", or
    the path of a tokenizer."""
    vocab_size: PositiveInt = 5000
    """Of a "bpe" or "sentencepiece" tokenizer (5000 in the paper's table)."""
    max_duration: Annotated[float, Interval(gt=0, le=86400)] = 30.0
    """Longest utterance that is trained on, in seconds."""
    max_text_rate: PositiveFloat = 60.0
    """Most characters a second of what is trained on: a transcript that nobody can speak in the
    time is a wrong one."""
    max_frames: PositiveInt = 20_000
    """Largest padded size of a group of utterances of like length: its utterances times the
    longest's frames. `training.batch_size` counts groups."""
    max_cells: PositiveInt = 1_000_000
    """Likewise, times the longest's tokens: what the transducer loss goes through."""
    block: PositiveInt = 20_000
    """Utterances that are sorted by length at a time."""
    synthetic: SyntheticConfig = SyntheticConfig()
    """What built-in utterances are like."""

    @rule
    def _groups_hold_the_longest(self) -> Iterator[str]:
        longest = int(self.max_duration * 1000 / self.features.frame_shift)
        longest = int(longest / min(self.augmentation.speeds))
        if self.max_frames < longest:
            yield (f"max_frames ({self.max_frames}) must hold the longest utterance: {longest} "
                   "frames by max_duration")  # fmt: skip

    @rule
    def _filters_fit(self) -> Iterator[str]:
        low, high = self.mel_range
        if not low < high <= self.sample_rate / 2:
            yield (f"features: filters from {low} to {high} Hz don't fit below half the sample "
                   f"rate ({self.sample_rate / 2} Hz)")  # fmt: skip

    @rule
    def _cached_features_stay(self) -> Iterator[str]:
        varied = (self.augmentation.gain, self.augmentation.noise, self.augmentation.speeds != (1,))
        if self.cached and any(varied):
            yield ("cached features can't vary: leave out augmentation's speeds, gain and noise, "
                   "or cached")  # fmt: skip

    @rule
    def _source_is_there(self) -> Iterator[str]:
        yield from wrong_builtin(self.source, NAMES, "speech")

    @property
    def mel_range(self) -> tuple[float, float]:
        """Where the filters begin and end, in Hz."""
        high = self.features.high_frequency
        return self.features.low_frequency, high if high > 0 else self.sample_rate / 2 + high


@configuration
class TransducerConfig(TransformerConfig):
    """A Transformer-Transducer: an encoder over filterbanks, a predictor over labels, a joiner.

    The loss is the transducer's, plus `ctc_weight` times CTC on the encoder, plus `lm_weight` times
    the cross-entropy of the predictor as a language model, and so on: the auxiliary losses of Boyer
    et al. 2021 (arXiv 2201.05420), a weight of 0 for none. All are sums of nats over an utterance,
    but for the divergence, which is a mean over its lattice. The weights that ESPnet documents are
    0.5 (CTC), 0.2 (language model), 0.4 (intermediate) and 0.2 (divergence).
    """

    mel_bins: Annotated[int, Interval(ge=4, lt=LARGEST)] = 80
    """Features of a frame, as `data.features.mel_bins`; a multiple of 4."""
    vocab_size: PositiveInt | None = None
    """Labels, blank included; None for as many as the data's tokenizer has."""
    front_channels: tuple[PositiveInt, PositiveInt] = (64, 128)
    """Of the first and the second pair of convolutions (ESPnet's VGG: 64, 128)."""
    predictor: Literal["lstm", "stateless"] = "lstm"
    """"lstm", or "stateless": an embedding and a convolution over the last two labels (Ghodsi et
    al. 2020)."""
    predictor_width: Width = 512
    """Of the predictor's embedding and output."""
    predictor_layers: Layers = 2
    """Of the LSTM."""
    predictor_dropout: Dropout = 0.0
    """Of the predictor's embedding, and between the layers of the LSTM."""
    joint_width: Width = 640
    """Of the joiner's hidden layer."""
    ctc_weight: NonNegativeFloat = 0.3
    """Of the connectionist temporal classification loss on the encoder's features."""
    lm_weight: NonNegativeFloat = 0.3
    """Of the cross-entropy of the next label on the predictor's output."""
    lm_smoothing: Dropout = 0.05
    """Label smoothing of that."""
    intermediate_weight: NonNegativeFloat = 0.0
    """Of the transducer loss on features of `intermediate_layers`, through a small network each and
    with the joiner's output layer and the predictor held fixed."""
    intermediate_layers: tuple[NonNegativeInt, ...] = ()
    """Layers, from 0 at the bottom."""
    kl_weight: NonNegativeFloat = 0.0
    """Of the symmetric divergence of these layers' posteriors from the last layer's. It holds the
    logits of some frames of the lattice at once, and costs as much time again."""
    pretrained: Free[str | None] = None
    """Directory of a run of the same shape to begin with, for example of easier data; None to begin
    anew. Its labels and means are not taken from it: give `data.tokenizer RUN/assets/tokenizer` and
    `data.cmvn RUN/assets/cmvn.json`."""

    @rule
    def _bins_are_pooled_twice(self) -> Iterator[str]:
        if self.mel_bins % SUBSAMPLING:
            yield f"mel_bins ({self.mel_bins}) must be a multiple of {SUBSAMPLING}"

    @rule
    def _stack_is_one(self) -> Iterator[str]:
        if self.encoder_layers is not None:
            yield "encoder_layers: a transducer has model.layers, and no decoder_layers"

    @rule
    def _intermediate_layers_are_below(self) -> Iterator[str]:
        last = self.layers - 1
        for layer in self.intermediate_layers:
            if layer >= last:
                yield f"intermediate_layers must be below the last layer, {last}, not {layer}"
        if (self.intermediate_weight or self.kl_weight) and not self.intermediate_layers:
            yield "intermediate_weight and kl_weight need intermediate_layers"
