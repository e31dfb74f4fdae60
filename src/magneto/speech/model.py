"""Transformer-Transducer (paper, section 6) with auxiliary losses.

Convolutions and an encoder process filterbank features. A predictor processes previous labels. A
joiner combines encoder and predictor. The auxiliary losses are those of Boyer et al. (2021, arXiv
2201.05420).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from magneto.functional.cross_entropy import without_autocast
from magneto.functional.transducer import joiner_transducer_loss
from magneto.nn.embedding import VectorTable
from magneto.nn.transformer import Encoder
from magneto.speech.config import BLANK, SUBSAMPLING, TransducerConfig

# Labels in the context of a stateless predictor.
STATELESS_CONTEXT = 2


class Convolution(nn.Conv2d):
    """A 3 x 3 convolution with He initialisation and zero bias.

    Weights are normal with variance 2 / fan-in (He et al. 2015, arXiv 1502.01852). He
    initialisation preserves the scale of a signal from layer to layer. With torch's default
    initialisation, the signal shrinks in each layer, and constant biases dominate the encoder's
    input.
    """

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__(inputs, channels, 3, padding=1)

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]


class ConvolutionPair(nn.Module):
    """Two 3 x 3 convolutions with ReLU, then 2 x 2 max-pooling.

    Padded frames are set to zero, so that padding does not change the result of an utterance.
    """

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.first = Convolution(inputs, channels)
        self.second = Convolution(channels, channels)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, inputs, frames, bins) to (batch, channels, frames // 2, bins // 2)."""
        mask = frame_mask(lengths, x.shape[2])[:, None, :, None]
        x = F.relu(self.first(x)) * mask
        x = F.relu(self.second(x)) * mask
        x, lengths = F.max_pool2d(x, 2), lengths // 2
        return x * frame_mask(lengths, x.shape[2])[:, None, :, None], lengths


class FrontEnd(nn.Module):
    """VGG front-end of ESPnet's transducers: two `ConvolutionPair`s and a linear layer."""

    def __init__(self, config: TransducerConfig) -> None:
        super().__init__()
        first, second = config.front_channels
        self.pairs = nn.ModuleList([ConvolutionPair(1, first), ConvolutionPair(first, second)])
        self.proj = nn.Linear(second * (config.mel_bins // SUBSAMPLING), config.width)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Subsample features (batch, frames, mel bins) of lengths (batch,).

        Returns:
            Features (batch, frames // 4, width) and their lengths (batch,).
        """
        x = (features * frame_mask(lengths, features.shape[1])[..., None])[:, None]
        for pair in self.pairs:
            x, lengths = pair(x, lengths)
        return self.proj(x.transpose(1, 2).flatten(2)), lengths


def frame_mask(lengths: Tensor, frames: int) -> Tensor:
    """Return a mask (batch, frames) that is False for padding."""
    return torch.arange(frames, device=lengths.device) < lengths[:, None]


State = tuple[Tensor, ...]
"""State of a predictor. The first dimension of each tensor is the batch."""


class LSTMPredictor(nn.Module):
    """Predictor with an embedding and an LSTM.

    The LSTM runs without autocast, in the dtype of its weights. On processors without AVX-512,
    torch's bfloat16 LSTM under autocast fails in oneDNN.
    """

    def __init__(self, config: TransducerConfig, vocabulary: int) -> None:
        super().__init__()
        width, layers = config.predictor_width, config.predictor_layers
        self.embedding = VectorTable(vocabulary, width, std=1.0)
        self.dropout = nn.Dropout(config.predictor_dropout)
        between = config.predictor_dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=between)

    def forward(self, labels: Tensor) -> Tensor:
        """Map labels (batch, labels) to outputs (batch, labels + 1, width)."""
        x = self.dropout(self.embedding(F.pad(labels, (1, 0), value=BLANK)))
        with without_autocast(x):
            return self.lstm(x)[0]

    def begin(self, batch: int, device: torch.device) -> State:
        """Return the initial state: two tensors of zeros, (batch, layers, width)."""
        shape = (batch, self.lstm.num_layers, self.lstm.hidden_size)
        zeros = torch.zeros(shape, dtype=self.embedding.weight.dtype, device=device)
        return zeros, zeros.clone()

    def step(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        """Process a label per row, (batch,); return the output (batch, width) and the new state."""
        hidden, cell = (part.transpose(0, 1).contiguous() for part in state)
        x = self.embedding(labels)[:, None].to(hidden.dtype)
        with without_autocast(x):
            output, (hidden, cell) = self.lstm(x, (hidden, cell))
        return output[:, 0], (hidden.transpose(0, 1), cell.transpose(0, 1))


class StatelessPredictor(nn.Module):
    """Predictor with an embedding, a depthwise convolution over the last two labels, and ReLU."""

    def __init__(self, config: TransducerConfig, vocabulary: int) -> None:
        super().__init__()
        width, self.context = config.predictor_width, STATELESS_CONTEXT
        self.embedding = VectorTable(vocabulary, width, std=1.0)
        self.dropout = nn.Dropout(config.predictor_dropout)
        self.conv = nn.Conv1d(width, width, self.context, groups=width)

    def forward(self, labels: Tensor) -> Tensor:
        """Map labels (batch, labels) to outputs (batch, labels + 1, width)."""
        return self._read(F.pad(labels, (self.context, 0), value=BLANK))

    def begin(self, batch: int, device: torch.device) -> State:
        """Return the initial state: only blanks, (batch, context)."""
        return (torch.full((batch, self.context), BLANK, device=device),)

    def step(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        """Process a label per row, (batch,); return the output (batch, width) and the new state."""
        known = torch.cat((state[0][:, 1:], labels[:, None]), 1)
        return self._read(known)[:, 0], (known,)

    def _read(self, labels: Tensor) -> Tensor:
        x = self.dropout(self.embedding(labels)).transpose(1, 2)
        return F.relu(self.conv(x)).transpose(1, 2)


PREDICTORS = {"lstm": LSTMPredictor, "stateless": StatelessPredictor}
# Lattice cells whose logits are computed at a time in the divergence.
CELLS = 8192


def ctc_loss(
    logits: Tensor, targets: Tensor, frames: Sequence[int], labels: Sequence[int]
) -> Tensor:
    """Return the connectionist temporal classification loss (Graves et al. 2006), in nats.

    `logits` are (batch, frames, vocabulary), and `targets` are (batch, labels), padded with blank.
    `frames` and `labels` are each utterance's numbers of frames and labels. They are Python
    integers, which need no copy from the GPU. An utterance with too few frames for its labels has
    the loss 0 and the gradient 0.
    """
    chances = logits.float().log_softmax(-1).transpose(0, 1)
    if chances.is_meta:  # FLOPs are counted; the loss has hardly any
        return chances.sum((0, 2))
    counts: list[Any] = [tuple(frames), tuple(labels)]  # torch's stubs know tensors only
    return F.ctc_loss(
        chances, targets, counts[0], counts[1], BLANK, reduction="none", zero_infinity=True
    )


def label_loss(logits: Tensor, targets: Tensor, lengths: Tensor, smoothing: float) -> Tensor:
    """Return the summed cross-entropy of each utterance's labels in nats, (batch,).

    `logits` are (batch, labels, vocabulary). `targets` are labels, (batch, labels). Utterance i has
    `lengths[i]` labels.
    """
    each = F.cross_entropy(
        logits.float().transpose(1, 2), targets, reduction="none", label_smoothing=smoothing
    )
    return torch.where(frame_mask(lengths, targets.shape[1]), each, 0).sum(1)


def symmetric_divergence(
    first: Tensor,
    second: Tensor,
    predictor: Tensor,
    weight: Tensor,
    bias: Tensor,
    frames: Tensor,
    labels: Tensor,
) -> Tensor:
    """Return KL(p|q) + KL(q|p) of the joiner's posteriors, averaged over each lattice, (batch,).

    The posteriors are p for the top layer and q for an intermediate layer.

    Args:
        first: Projected features of the top layer, (batch, frames, joint).
        second: Projected features of the intermediate layer, (batch, frames, joint).
        predictor: Projected predictor outputs, (batch, labels + 1, joint).
        weight: Weight of the output layer, (vocabulary, joint).
        bias: Bias of the output layer, (vocabulary,).
        frames: Number of frames of each utterance, (batch,).
        labels: Number of labels of each utterance, (batch,).
    """
    batch, time, _ = first.shape
    step = max(1, CELLS // (batch * predictor.shape[1]))
    inside = (
        frame_mask(frames, time)[..., None] & frame_mask(labels + 1, predictor.shape[1])[:, None]
    )
    total = first.new_zeros(batch, dtype=torch.float32)
    for start in range(0, time, step):
        part = slice(start, start + step)
        total = total + checkpoint(
            _divergence, first[:, part], second[:, part], predictor, weight, bias, inside[:, part],
            use_reentrant=False,
        )  # fmt: skip
    return total / inside.sum((1, 2)).clamp(min=1)


def _divergence(
    first: Tensor, second: Tensor, predictor: Tensor, weight: Tensor, bias: Tensor, inside: Tensor
) -> Tensor:
    one, other = (
        F.linear(torch.tanh(x[:, :, None] + predictor[:, None]), weight, bias).float()
        for x in (first, second)
    )
    one, other = one.log_softmax(-1), other.log_softmax(-1)
    both = ((one.exp() - other.exp()) * (one - other)).sum(-1)
    return torch.where(inside, both, 0).sum((1, 2))


@dataclass(frozen=True)
class TransducerLoss:
    """Losses of a batch of utterances.

    Attributes:
        total: Weighted sum of all losses over the counted utterances.
        count: Number of counted utterances, which are usable (weight 1 in `SpeechBatch`) and have a
            finite loss.
        excluded: Mask (batch,) that is True for usable utterances without a finite loss.
        parts: Unweighted losses without gradients, each summed over the counted utterances.
        encoded: Encoder outputs without gradients, (batch, frames // 4, width).
        lengths: Number of encoder frames, (batch,).
    """

    total: Tensor
    count: Tensor
    excluded: Tensor
    parts: dict[str, Tensor]
    encoded: Tensor
    lengths: Tensor


class Joiner(nn.Module):
    """Joiner of encoder output x and predictor output y: W tanh(A x + a + B y) + b."""

    def __init__(self, config: TransducerConfig, vocabulary: int) -> None:
        super().__init__()
        self.encoder_proj = nn.Linear(config.width, config.joint_width)
        self.predictor_proj = nn.Linear(config.predictor_width, config.joint_width, bias=False)
        self.output = nn.Linear(config.joint_width, vocabulary)

    def forward(self, encoder: Tensor, predictor: Tensor) -> tuple[Tensor, Tensor]:
        """Project encoder and predictor outputs to the joiner's width."""
        return self.encoder_proj(encoder), self.predictor_proj(predictor)

    def logits(self, encoder: Tensor, predictor: Tensor) -> Tensor:
        """Return logits (..., vocabulary) of projected outputs (..., joint)."""
        return self.output(torch.tanh(encoder + predictor))


class Transducer(nn.Module):
    """Transducer with front-end, encoder, predictor, joiner, and heads for auxiliary losses."""

    def __init__(self, config: TransducerConfig) -> None:
        super().__init__()
        size = config.vocab_size
        if size is None:
            raise ValueError("vocab_size is not set")
        self.config = config
        self.front_end = FrontEnd(config)
        self.encoder = Encoder(config)
        self.predictor = PREDICTORS[config.predictor](config, size)
        self.joiner = Joiner(config, size)
        self.ctc_head = nn.Linear(config.width, size) if config.ctc_weight else nn.Identity()
        self.lm_head = (
            nn.Linear(config.predictor_width, size) if config.lm_weight else nn.Identity()
        )
        width = config.width
        # Networks from an encoder layer to the joiner's hidden layer (Boyer et al. 2021).
        self.intermediate = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, width), nn.LayerNorm(width), nn.Dropout(config.dropout), nn.ReLU(),
                nn.Linear(width, config.joint_width),
            )
            for _ in config.intermediate_layers
        )  # fmt: skip

    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return encoder outputs (batch, frames // 4, width) and their lengths (batch,).

        `features` (batch, frames, mel bins) are normalised.
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
        """Return the losses; see `SpeechBatch` for the arguments.

        Utterances without a finite loss do not count in any sum, and get no gradient. `sizes` has
        Python integers, which need no copy from the GPU.
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
        usable, finite = weights > 0, total.detach().isfinite()
        counted = usable & finite
        parts = {name: torch.where(counted, loss.detach(), 0).sum()
                 for name, loss in losses.items()}  # fmt: skip
        kept = torch.where(counted, total, torch.zeros_like(total)).sum()
        return TransducerLoss(
            kept, counted.sum(), usable & ~finite, parts, encoded.detach(), lengths
        )

    def _encode_layers(
        self, features: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        chosen = self.config.intermediate_layers
        if not chosen:
            return *self.encode(features, lengths), []
        x, lengths = self.front_end(features, lengths)
        mask = frame_mask(lengths, x.shape[1])
        *inner, last = self.encoder.features(x, [*chosen, self.config.layers - 1], mask)
        projected = [net(x) for net, x in zip(self.intermediate, inner, strict=True)]
        return self.encoder.final_norm(last), lengths, projected
