"""Our speech recogniser as a transformers model, and what turns sound into its input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import FeatureExtractionMixin
from transformers.feature_extraction_utils import BatchFeature
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import can_return_tuple

from magneto.hf.auto_map import SavedWithModule, auto_map
from magneto.hf.configuration import MagnetoTransducerConfig
from magneto.hf.wrapper import MagnetoPreTrainedModel, as_mask, hidden_states, like_weights, refuse
from magneto.speech.batching import heard_frames, pad_features
from magneto.speech.config import FilterBankConfig, SpeechDataConfig
from magneto.speech.decoding import GreedySearch, Search
from magneto.speech.features import (
    FilterBank,
    NoNormaliser,
    Normaliser,
    SpeechFeatures,
    UtteranceNormaliser,
)
from magneto.speech.model import Transducer


class MagnetoForTransducer(MagnetoPreTrainedModel):
    """A `Transducer` in `self.core`."""

    config_class = MagnetoTransducerConfig
    core_class = Transducer
    main_input_name = "input_features"

    @can_return_tuple
    def forward(
        self, input_features: Tensor, attention_mask: Tensor | None = None, **others: Any
    ) -> BaseModelOutput:
        """Return the encoder's features, a quarter as many as frames.

        Args:
            input_features: (batch, frames, mel bins).
            attention_mask: (batch, frames), 1 for an utterance's own.
            **others: `output_hidden_states`, and arguments that change no number.
        """
        refuse(self.core, others)
        lengths = frame_counts(input_features, attention_mask)
        with hidden_states(self.core.encoder, self.wants_hidden_states(others)) as states:
            encoded, _ = self.core.encode(like_weights(self.core, input_features), lengths)
        return BaseModelOutput(
            last_hidden_state=encoded,  # type: ignore[arg-type]
            hidden_states=tuple(states) or None,  # type: ignore[arg-type]
        )

    @torch.no_grad()
    def transcribe(
        self,
        input_features: Tensor,
        attention_mask: Tensor | None = None,
        search: Search | None = None,
    ) -> list[list[int]]:
        """Return the tokens of each utterance, for the tokenizer's `batch_decode`.

        Args:
            input_features: (batch, frames, mel bins).
            attention_mask: (batch, frames), 1 for an utterance's own.
            search: How they are found; by default greedily.
        """
        lengths = frame_counts(input_features, attention_mask)
        encoded, lengths = self.core.encode(like_weights(self.core, input_features), lengths)
        found = (search or GreedySearch())(self.core, encoded, lengths)
        return [[label - 1 for label in best[0].labels] for best in found]


def as_sounds(raw_speech: Any) -> list[np.ndarray]:
    """Return the samples of one or of several sounds, each (samples,) in float32.

    Args:
        raw_speech: Samples, or a list of such, or an array with a sound in each row.

    Raises:
        ValueError: If one is no row of numbers in [-1, 1].
    """
    listed = isinstance(raw_speech, list | tuple)
    several = np.ndim(raw_speech[0] if listed and len(raw_speech) else 0) > 0
    rows = raw_speech if several else np.atleast_2d(raw_speech)
    sounds = [np.asarray(each) for each in rows]
    stereo = not several and len(rows) > len(rows[0])  # (samples, channels)
    for sound in sounds:
        if sound.ndim != 1 or stereo:
            raise ValueError("a sound must be mono, (samples,), and sounds (sounds, samples); not "
                             f"of shape {np.shape(rows if stereo else sound)}")  # fmt: skip
        if not np.issubdtype(sound.dtype, np.floating):
            raise ValueError(f"samples must be in [-1, 1], and are {sound.dtype}: "
                             "divide 16-bit ones by 32768")  # fmt: skip
    return [sound.astype(np.float32) for sound in sounds]


def frame_counts(features: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return how many frames are an utterance's own, (batch,).

    Raises:
        ValueError: If the mask has another shape than (batch, frames).
    """
    mask = as_mask(attention_mask, tuple(features.shape[:2]))
    if mask is None:
        return torch.full((len(features),), features.shape[1], device=features.device)
    return mask.sum(1)


class MagnetoSpeechFeatureExtractor(SavedWithModule, FeatureExtractionMixin):
    """Turns sound into normalised log-mel features, as training did."""

    model_input_names = ["input_features", "attention_mask"]  # noqa: RUF012

    def __init__(
        self,
        sampling_rate: int = 16000,
        filter_bank: dict[str, Any] | None = None,
        cmvn: str = "none",
        mean: Sequence[float] = (),
        deviation: Sequence[float] = (),
        **others: Any,
    ) -> None:
        """Take what a run's features are like.

        Args:
            sampling_rate: Of the sound, in Hz.
            filter_bank: Fields of a `FilterBankConfig`.
            cmvn: "global" with mean and deviation, "utterance" or "none".
            mean: Of each feature.
            deviation: Likewise.
            **others: Of transformers' class.
        """
        others["auto_map"] = auto_map({"AutoFeatureExtractor": type(self).__name__})
        super().__init__(**others)
        self.sampling_rate, self.cmvn = sampling_rate, cmvn
        self.filter_bank = filter_bank or asdict(FilterBankConfig())
        self.mean, self.deviation = list(mean), list(deviation)

    @classmethod
    def of(cls, data: SpeechDataConfig) -> MagnetoSpeechFeatureExtractor:
        """Return the extractor of a run's data, with what the run keeps."""
        normaliser: Any = SpeechFeatures(data).normaliser
        kind, given = data.cmvn, {}
        if kind not in ("utterance", "none"):
            kind = "global"
            given = {"mean": normaliser.mean.tolist(), "deviation": normaliser.deviation.tolist()}
        return cls(data.sample_rate, asdict(data.features), kind, **given)

    def __call__(
        self,
        raw_speech: Any,
        sampling_rate: int | None = None,
        return_tensors: str | None = None,
        **_: Any,
    ) -> BatchFeature:
        """Return `input_features` (batch, frames, mel bins), and `attention_mask`.

        Args:
            raw_speech: Mono samples in [-1, 1], or several: a list of such arrays, or the rows of
                one.
            sampling_rate: Of them, to be checked.
            return_tensors: "pt" or "np".

        Raises:
            ValueError: If the samples have another rate, are whole numbers or not mono.
        """
        if sampling_rate not in (None, self.sampling_rate):
            raise ValueError(f"samples are of {sampling_rate} Hz, and the model hears "
                             f"{self.sampling_rate} Hz: resample them")  # fmt: skip
        bank, normalise = self._parts()
        found = [normalise(bank(sound)) for sound in as_sounds(raw_speech)]
        features = pad_features(found, self.filter_bank["mel_bins"]).numpy()
        mask = np.zeros(features.shape[:2], np.int64)
        for row, each in enumerate(found):
            mask[row, : heard_frames(len(each))] = 1
        values = {"input_features": features, "attention_mask": mask}
        return BatchFeature(values, tensor_type=return_tensors)

    def _parts(self) -> tuple[FilterBank, Any]:
        bank = FilterBankConfig(**self.filter_bank)
        data = SpeechDataConfig(sample_rate=self.sampling_rate, features=bank, cmvn="none")
        kinds = {
            "global": lambda: Normaliser(
                np.array(self.mean, np.float32), np.array(self.deviation, np.float32)
            ),
            "utterance": UtteranceNormaliser,
            "none": NoNormaliser,
        }
        return FilterBank(data), kinds[self.cmvn]()
