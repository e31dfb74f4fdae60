"""The Transformer-Transducer (paper, section 4.6; appendix, speech recognition)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from magneto.functional.transducer import joiner_transducer_loss
from magneto.nn.transformer import Encoder
from magneto.speech.auxiliary import ctc_loss, label_loss, symmetric_divergence
from magneto.speech.front_end import FrontEnd, frame_mask
from magneto.speech.predictor import build_predictor
from magneto.speech.transducer_config import SUBSAMPLING, TransducerConfig
from magneto.speech.vocabulary import BLANK


@dataclass(frozen=True)
class TransducerLoss:
    """Losses of a batch of utterances.

    Attributes:
        total: What to minimise: the weighted sum of all losses over the utterances that count.
        count: Utterances that count: all that can be used and whose losses are finite.
        excluded: (batch,), True for those that could be used, and whose loss is not finite.
        parts: Sums of each loss over the utterances that count, without its weight or a gradient.
    """

    total: Tensor
    count: Tensor
    excluded: Tensor
    parts: dict[str, Tensor]


class Joiner(nn.Module):
    """From a frame and a label to logits: W tanh(A frame + a + B label) + b."""

    def __init__(self, config: TransducerConfig) -> None:
        super().__init__()
        assert config.vocab_size is not None
        self.encoder_proj = nn.Linear(config.width, config.joint_width)
        self.predictor_proj = nn.Linear(config.predictor_width, config.joint_width, bias=False)
        self.output = nn.Linear(config.joint_width, config.vocab_size)

    def forward(self, encoder: Tensor, predictor: Tensor) -> tuple[Tensor, Tensor]:
        """Project both to the joiner's width; `logits` joins them."""
        return self.encoder_proj(encoder), self.predictor_proj(predictor)

    def logits(self, encoder: Tensor, predictor: Tensor) -> Tensor:
        """Return logits (..., vocabulary) of projected features (..., joint) that broadcast."""
        return self.output(torch.tanh(encoder + predictor))


class IntermediateProjection(nn.Sequential):
    """From an encoder layer to the joiner's hidden layer (Boyer et al. 2021)."""

    def __init__(self, config: TransducerConfig) -> None:
        width = config.width
        super().__init__(
            nn.Linear(width, width), nn.LayerNorm(width), nn.Dropout(config.dropout), nn.ReLU(),
            nn.Linear(width, config.joint_width),
        )  # fmt: skip


class Transducer(nn.Module):
    """Front-end, encoder, predictor, joiner; and the heads of the auxiliary losses."""

    def __init__(self, config: TransducerConfig) -> None:
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("vocab_size is not set")
        self.config = config
        self.front_end = FrontEnd(config)
        self.encoder = Encoder(config)
        self.predictor = build_predictor(config)
        self.joiner = Joiner(config)
        size = config.vocab_size
        self.ctc_head = nn.Linear(config.width, size) if config.ctc_weight else nn.Identity()
        self.lm_head = (
            nn.Linear(config.predictor_width, size) if config.lm_weight else nn.Identity()
        )
        self.intermediate = nn.ModuleList(
            IntermediateProjection(config) for _ in config.intermediate_layers
        )

    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encoder's features, (batch, frames // 4, width), and their lengths.

        Args:
            features: Normalised filterbanks, (batch, frames, mel bins).
            lengths: (batch,) frames.
        """
        x, lengths = self.front_end(features, lengths)
        return self.encoder(x, frame_mask(lengths, x.shape[1])), lengths

    def forward(
        self,
        features: Tensor,
        lengths: Tensor,
        targets: Tensor,
        target_lengths: Tensor,
        weights: Tensor,
        sizes: list[tuple[int, int]],
    ) -> TransducerLoss:
        """Return the losses.

        An utterance whose loss is not finite is left out of every sum, and its gradient is zero.

        Args:
            features: (batch, frames, mel bins).
            lengths: (batch,) frames.
            targets: (batch, labels), blank where there is padding.
            target_lengths: (batch,) labels.
            weights: (batch,), 0 for an utterance that can't be used.
            sizes: Both lengths of each utterance as plain numbers, so that nobody has to read them.
        """
        encoded, lengths, inner = self._encode_layers(features, lengths)
        predicted = self.predictor(targets)
        frames, labels = self.joiner(encoded, predicted)
        output, rest = self.joiner.output, (targets, lengths, target_lengths, BLANK)
        losses = {
            "transducer": joiner_transducer_loss(frames, labels, output.weight, output.bias, *rest)
        }
        config = self.config
        total = losses["transducer"]
        if config.ctc_weight:
            frame_counts = [count // SUBSAMPLING for count, _ in sizes]
            logits = self.ctc_head(encoded)
            losses["ctc"] = ctc_loss(logits, targets, frame_counts, [n for _, n in sizes])
            total = total + config.ctc_weight * losses["ctc"]
        if config.lm_weight:
            logits = self.lm_head(predicted[:, :-1])
            smoothing = config.lm_smoothing if self.training else 0.0
            losses["lm"] = label_loss(logits, targets, target_lengths, smoothing)
            total = total + config.lm_weight * losses["lm"]
        for layer in inner:
            fixed = (labels.detach(), output.weight.detach(), output.bias.detach())
            if config.intermediate_weight:
                one = joiner_transducer_loss(layer, *fixed, *rest) / len(inner)
                losses["intermediate"] = losses.get("intermediate", 0) + one
                total = total + config.intermediate_weight * one
            if config.kl_weight:
                both = symmetric_divergence(frames, layer, *fixed, lengths, target_lengths)
                losses["divergence"] = losses.get("divergence", 0) + both / len(inner)
                total = total + config.kl_weight * both / len(inner)
        return _summed(total, losses, weights)

    def _encode_layers(
        self, features: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the encoder's features, their lengths, and projected ones of chosen layers."""
        chosen = self.config.intermediate_layers
        if not chosen:
            return *self.encode(features, lengths), []
        x, lengths = self.front_end(features, lengths)
        mask = frame_mask(lengths, x.shape[1])
        *inner, last = self.encoder.features(x, [*chosen, self.config.layers - 1], mask)
        projected = [net(x) for net, x in zip(self.intermediate, inner, strict=True)]
        return self.encoder.final_norm(last), lengths, projected


def _summed(total: Tensor, losses: dict[str, Tensor], weights: Tensor) -> TransducerLoss:
    """Add up over the utterances that can be used and are finite."""
    usable = weights > 0
    finite = total.detach().isfinite()
    counted = usable & finite
    parts = {
        name: torch.where(counted, loss.detach(), 0).sum() for name, loss in losses.items()
    }  # fmt: skip
    kept = torch.where(counted, total, torch.zeros_like(total)).sum()
    return TransducerLoss(kept, counted.sum(), usable & ~finite, parts)
