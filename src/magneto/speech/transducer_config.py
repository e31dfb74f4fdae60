"""The `model` section of recipes of speech recognition: a transducer. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magneto.config import ConfigError
from magneto.nn.config import TransformerConfig

# Frames of features to one frame of the encoder: two max-poolings.
SUBSAMPLING = 4


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
        least = {"mel_bins": 4, "predictor_width": 1, "predictor_layers": 1, "joint_width": 1,
                 "predictor_context": 1}  # fmt: skip
        wrong = [
            f"{name} must be {number} or more, not {getattr(self, name)}"
            for name, number in least.items()
            if getattr(self, name) < number
        ]
        wrong += [
            f"{name} must be 0 or more, not {getattr(self, name)}"
            for name in ("ctc_weight", "lm_weight", "intermediate_weight", "kl_weight")
            if getattr(self, name) < 0
        ]
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
